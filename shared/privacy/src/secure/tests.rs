//! Whole rounds in memory: sums are exact, with whoever drops out when, and nothing else can be read.

use std::collections::BTreeSet;

use trainyard_shared::message::{MaskingKeys, ShareFrom};

use super::*;

const VALUES: usize = 1500;

fn context() -> Context {
    Context {
        session: "fed-1".to_owned(),
        round: 3,
    }
}

/// A participant's change.
fn change(number: Number) -> Vec<f64> {
    let value = |place: usize| f64::from(number) * 0.25 - place as f64 / 512.0;
    (0..VALUES).map(value).collect()
}

/// A round up to the masking, in which only `sharing` of `count` participants share.
fn begun(count: usize, threshold: usize, sharing: &[Number]) -> (Roster, Vec<Masking>) {
    let announcing: Vec<Announcing> = (0..count)
        .map(|_| Announcing::new(context()).unwrap())
        .collect();
    let keys = announcing.iter().map(Announcing::public_keys);
    let keys = keys.map(|keys| PublicKeys::from(&MaskingKeys::from(&keys)));
    let keys = keys.collect();
    let roster = Roster::new(threshold, keys).unwrap();
    let (mut waiting, mut sealed) = (Vec::new(), Vec::new());
    for (number, one) in (1..).zip(announcing) {
        if sharing.contains(&number) {
            let (one, shares) = one.share(roster.clone()).unwrap();
            waiting.push((number, one));
            sealed.extend(shares);
        }
    }
    let masking = waiting.into_iter().map(|(number, one)| {
        let own = |shares: &&SealedShares| shares.to == number;
        let passed_on = |shares: &SealedShares| {
            let (from, sealed) = (shares.from, shares.to_wire().sealed);
            SealedShares::from_wire(&ShareFrom { from, sealed }, number)
        };
        let shares: Vec<SealedShares> = sealed.iter().filter(own).map(passed_on).collect();
        one.receive(&shares).unwrap()
    });
    (roster, masking.collect())
}

fn masked(one: &Masking) -> Vec<u64> {
    let mut values: Vec<u64> = change(one.number())
        .into_iter()
        .map(fixed_point::encode)
        .collect();
    let (front, back) = values.split_at_mut(700);
    one.mask(back, 700);
    one.mask(front, 0);
    values
}

fn sum_of(uploads: &[Vec<u64>]) -> Vec<u64> {
    let mut sum = vec![0_u64; VALUES];
    for upload in uploads {
        for (sum, value) in sum.iter_mut().zip(upload) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sum
}

/// Plays the end of a round; `answering` answer the platform's question.
fn unmasked(
    roster: &Roster,
    masking: &mut [Masking],
    uploaded: &[Number],
    answering: &[Number],
) -> Result<Vec<f64>, SecureError> {
    let participants: BTreeSet<Number> = masking.iter().map(Masking::number).collect();
    let uploads: Vec<Vec<u64>> = masking
        .iter()
        .filter(|one| uploaded.contains(&one.number()))
        .map(masked)
        .collect();
    let mut sum = sum_of(&uploads);
    let asked = uploaded.iter().copied().collect();
    let mut unmasking = Unmasking::new(context(), roster.clone(), &participants, asked)?;
    for one in masking
        .iter_mut()
        .filter(|one| answering.contains(&one.number()))
    {
        let (seeds, keys) = one.reveal(uploaded)?.to_wire();
        let revealed = Revealed::from_wire(&seeds, &keys);
        unmasking.add(one.number(), revealed.clone())?;
        unmasking.add(one.number(), revealed)?;
    }
    for mask in unmasking.masks()? {
        mask.apply(&mut sum, 0);
    }
    Ok(sum.into_iter().map(fixed_point::decode).collect())
}

fn exact_sum(of: &[Number]) -> Vec<f64> {
    let sum = |place: usize| of.iter().map(|number| change(*number)[place]).sum();
    (0..VALUES).map(sum).collect()
}

#[test]
fn the_sum_of_all_is_exact() {
    let everyone = [1, 2, 3, 4, 5];
    let (roster, mut masking) = begun(5, 3, &everyone);
    let found = unmasked(&roster, &mut masking, &everyone, &[2, 4, 5]).unwrap();
    assert_eq!(found, exact_sum(&everyone));
}

#[test]
fn whoever_drops_out_at_any_stage_costs_only_its_own_change() {
    // 6 announces and is gone, 5 shares and never uploads, 4 uploads and answers nothing.
    let (roster, mut masking) = begun(6, 4, &[1, 2, 3, 4, 5]);
    let answering = [1, 2, 3, 5];
    let found = unmasked(&roster, &mut masking, &[1, 2, 3, 4], &answering).unwrap();
    assert_eq!(found, exact_sum(&[1, 2, 3, 4]));
}

#[test]
fn too_few_answers_or_uploads_reveal_nothing() {
    let everyone = [1, 2, 3, 4];
    let (roster, mut masking) = begun(4, 3, &everyone);
    let few = SecureError::TooFew {
        count: 2,
        threshold: 3,
    };
    let answers = unmasked(&roster, &mut masking, &everyone, &[1, 2]);
    assert_eq!(answers.unwrap_err(), few);
    let (roster, mut masking) = begun(4, 3, &everyone);
    assert_eq!(masking[0].reveal(&[1, 2]).err(), Some(few.clone()));
    let uploads = unmasked(&roster, &mut masking, &[1, 2], &everyone);
    assert_eq!(uploads.unwrap_err(), few);
}

#[test]
fn an_upload_looks_random_and_differs_from_round_to_round() {
    let (_, masking) = begun(3, 2, &[1, 2, 3]);
    let (_, again) = begun(3, 2, &[1, 2, 3]);
    let upload = masked(&masking[0]);
    assert_ne!(upload, masked(&again[0]));
    let ones: u32 = upload.iter().map(|value| value.count_ones()).sum();
    let share = f64::from(ones) / (64 * VALUES) as f64;
    assert!((share - 0.5).abs() < 0.02, "{share}");
}

#[test]
fn no_participant_reveals_by_two_lists() {
    let (_, mut masking) = begun(4, 3, &[1, 2, 3, 4]);
    let first = masking[0].reveal(&[1, 2, 3]).unwrap();
    assert!(masking[0].reveal(&[3, 2, 1]).unwrap() == first);
    let other = masking[0].reveal(&[1, 2, 4]);
    assert_eq!(other.err(), Some(SecureError::AlreadyRevealed));
    for share in &first.seeds {
        assert!(first.keys.iter().all(|key| key.of != share.of));
    }
}

#[test]
fn shares_of_another_round_or_of_nobody_cannot_be_opened() {
    let announcing = |round: u64| {
        let context = Context { round, ..context() };
        Announcing::new(context).unwrap()
    };
    let (one, other) = (announcing(1), announcing(2));
    let keys = vec![one.public_keys(), other.public_keys()];
    let roster = Roster::new(2, keys).unwrap();
    let (one, _) = one.share(roster.clone()).unwrap();
    let (other, sealed) = other.share(roster).unwrap();
    let error = one.receive(&sealed).err();
    assert_eq!(error, Some(SecureError::NotOpened { number: 2 }));
    let forged = SealedShares {
        from: 1,
        to: 2,
        sealed: [0; SEALED_BYTES],
    };
    let error = other.receive(&[forged]).err();
    assert_eq!(error, Some(SecureError::NotOpened { number: 1 }));
}

#[test]
fn a_wrong_share_is_noticed_and_names_whose_secret_is_lost() {
    let everyone = [1, 2, 3];
    let (roster, mut masking) = begun(3, 2, &everyone);
    let participants = BTreeSet::from(everyone);
    for of_key in [false, true] {
        let uploaded = BTreeSet::from([1, 2]);
        let mut unmasking =
            Unmasking::new(context(), roster.clone(), &participants, uploaded).unwrap();
        for one in &mut masking[..2] {
            let mut revealed = one.reveal(&[1, 2]).unwrap();
            match of_key {
                true => revealed.keys[0].share[5] ^= 1,
                false => revealed.seeds[1].share[5] ^= 1,
            }
            unmasking.add(one.number(), revealed).unwrap();
        }
        let number = if of_key { 3 } else { 2 };
        let error = unmasking.masks().err();
        assert_eq!(error, Some(SecureError::NotRecovered { number }));
    }
}

#[test]
fn answers_that_were_not_asked_for_are_refused() {
    let (roster, mut masking) = begun(3, 2, &[1, 2, 3]);
    let participants = BTreeSet::from([1, 2, 3]);
    let mut unmasking =
        Unmasking::new(context(), roster, &participants, BTreeSet::from([1, 2])).unwrap();
    let too_much = masking[0].reveal(&[1, 2, 3]).unwrap();
    let error = unmasking.add(1, too_much.clone());
    assert_eq!(error, Err(SecureError::WrongShares { number: 1 }));
    let error = unmasking.add(9, too_much);
    assert_eq!(error, Err(SecureError::Unknown { number: 9 }));
}

#[test]
fn a_roster_needs_a_majority_and_different_keys() {
    let keys = |count: usize| -> Vec<PublicKeys> {
        let one = |_| Announcing::new(context()).unwrap().public_keys();
        (0..count).map(one).collect()
    };
    for (count, threshold) in [(4, 2), (4, 5), (3, 1)] {
        let error = Roster::new(threshold, keys(count)).unwrap_err();
        assert_eq!(error, SecureError::Threshold { threshold, count });
    }
    let error = Roster::new(1, keys(1)).unwrap_err();
    assert_eq!(error, SecureError::Participants { count: 1 });
    let mut same = keys(3);
    same[2].masking = same[0].masking;
    assert_eq!(Roster::new(2, same).unwrap_err(), SecureError::SameKeys);
    let mut weak = keys(2);
    let own = Announcing::new(context()).unwrap();
    weak[0].sealing = [0; 32];
    weak[1] = own.public_keys();
    let roster = Roster::new(2, weak.clone()).unwrap();
    assert!(weak[1].are_usable() && !weak[0].are_usable());
    let error = own.share(roster).err();
    assert_eq!(error, Some(SecureError::WeakKey { number: 1 }));
}
