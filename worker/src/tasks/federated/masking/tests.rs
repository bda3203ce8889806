//! Workers that bring a sum about with each other, order by order.

use trainyard_shared::message::{MaskingKeys, ShareFrom, UploadTarget};

use super::*;

const SESSION: FederatedSessionId = FederatedSessionId(9);
const ROUND: u64 = 3;

fn held() -> Held {
    Held {
        round: ROUND,
        file: PathBuf::from("result"),
        weights: PathBuf::from("weights"),
        num_examples: 6,
        steps: 5,
        loss: Some(1.5),
    }
}

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// One that has never helped to read a sum.
fn fresh(threshold: u64) -> Masker {
    let name = trainyard_shared::ids::MessageId::random().to_string();
    let file = FOLDER.with(|folder| folder.path().join(name));
    Masker::new(SESSION, threshold, file)
}

fn said(masker: &mut Masker, order: SumOrder) -> FromWorker {
    match masker.take(order, Some(&held())) {
        Answer::Say(message) => *message,
        other => panic!("{other:?}"),
    }
}

fn failure(masker: &mut Masker, order: SumOrder) -> MaskingFailedData {
    match said(masker, order) {
        FromWorker::MaskingFailed(failed) => failed.data,
        other => panic!("{other:?}"),
    }
}

fn announce(attempt: u64) -> SumOrder {
    let round = ROUND;
    SumOrder::AnnounceKeys(AnnounceKeysData { round, attempt })
}

fn keys(masker: &mut Masker, attempt: u64) -> MaskingKeys {
    match said(masker, announce(attempt)) {
        FromWorker::KeysAnnounced(announced) => announced.data.keys,
        other => panic!("{other:?}"),
    }
}

fn share(attempt: u64, threshold: u8, members: &[MaskingKeys]) -> SumOrder {
    SumOrder::ShareSecrets(ShareSecretsData {
        round: ROUND,
        attempt,
        threshold,
        members: members.to_vec(),
    })
}

fn shares(masker: &mut Masker, order: SumOrder) -> Vec<ShareTo> {
    match said(masker, order) {
        FromWorker::SecretsShared(shared) => shared.data.shares,
        other => panic!("{other:?}"),
    }
}

fn mask(attempt: u64, shares: Vec<ShareFrom>) -> SumOrder {
    SumOrder::MaskResult(MaskResultData {
        round: ROUND,
        attempt,
        shares,
        examples_divisor: Some(12),
        upload: UploadTarget {
            url: "http://x/u".into(),
            key: "key".to_owned(),
        },
    })
}

fn reveal(attempt: u64, arrived: &[u8]) -> SumOrder {
    SumOrder::RevealShares(RevealSharesData {
        round: ROUND,
        attempt,
        arrived: arrived.to_vec(),
    })
}

/// Three workers whose shares the others have, and what each is to be told of them.
fn shared(attempt: u64) -> (Vec<Masker>, Vec<SumOrder>) {
    let mut maskers: Vec<Masker> = (0..3).map(|_| fresh(2)).collect();
    let members: Vec<_> = maskers.iter_mut().map(|one| keys(one, attempt)).collect();
    let all: Vec<_> = maskers
        .iter_mut()
        .map(|one| shares(one, share(attempt, 2, &members)))
        .collect();
    let orders = (1..=3).map(|to| {
        let for_it = (1..).zip(&all).filter_map(|(from, shares)| {
            let share = shares.iter().find(|share| share.to == to)?;
            let sealed = share.sealed;
            Some(ShareFrom { from, sealed })
        });
        mask(attempt, for_it.collect())
    });
    let orders = orders.collect();
    (maskers, orders)
}

fn work(masker: &mut Masker, order: SumOrder) -> Arc<MaskWork> {
    match masker.take(order, Some(&held())) {
        Answer::Mask(work) => work,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sum_is_brought_about_and_what_is_asked_again_is_answered_the_same() {
    let (mut maskers, orders) = shared(7);
    let mut revealed = Vec::new();
    for (masker, order) in maskers.iter_mut().zip(orders) {
        let first = work(masker, order.clone());
        assert_eq!(
            (first.attempt, first.factor, first.key.as_str()),
            (7, 0.5, "key")
        );
        assert_eq!(first.masks.len(), 3, "its own, and one for each other");
        assert_eq!(work(masker, order).masks.len(), 3);
        let answer = said(masker, reveal(7, &[1, 2]));
        assert_eq!(said(masker, reveal(7, &[2, 1])), answer);
        revealed.push(answer);
    }
    let FromWorker::SharesRevealed(first) = &revealed[0] else {
        panic!("{revealed:?}");
    };
    let of = |shares: &[trainyard_shared::message::RevealedShare]| {
        shares.iter().map(|share| share.of).collect::<Vec<_>>()
    };
    assert_eq!(of(&first.data.seeds), [1, 2]);
    assert_eq!(of(&first.data.keys), [3]);
}

#[test]
fn by_another_list_or_for_a_sum_of_too_few_nothing_is_revealed() {
    let (mut maskers, orders) = shared(7);
    for (masker, order) in maskers.iter_mut().zip(orders) {
        work(masker, order);
    }
    let few = failure(&mut maskers[2], reveal(7, &[1]));
    assert!(few.error.contains("too few"), "{few:?}");
    said(&mut maskers[0], reveal(7, &[1, 2]));
    failure(&mut maskers[0], reveal(7, &[1, 2, 3]));
    // What has failed stays so.
    failure(&mut maskers[0], reveal(7, &[1, 2]));

    let mut strict = fresh(3);
    let members = [keys(&mut strict, 8), keys(&mut maskers[1], 8)];
    let few = failure(&mut strict, share(8, 2, &members));
    assert!(few.error.contains("so few"), "{few:?}");
}

#[test]
fn an_attempt_has_keys_of_its_own_and_forgets_the_one_before() {
    let mut masker = fresh(2);
    let first = keys(&mut masker, 7);
    assert_eq!(keys(&mut masker, 7), first);
    let next = keys(&mut masker, 8);
    assert_ne!(next, first);
    let other = keys(&mut fresh(2), 7);
    failure(&mut masker, share(7, 2, &[first, other]));
    assert_eq!(keys(&mut masker, 8), next, "the newer attempt goes on");
}

#[test]
fn whose_shares_cannot_be_opened_is_named() {
    let (mut maskers, orders) = shared(7);
    let SumOrder::MaskResult(mut data) = orders[0].clone() else {
        panic!("{orders:?}");
    };
    data.shares[1].sealed.0[0] ^= 1;
    let wrong = data.shares[1].from;
    let failed = failure(&mut maskers[0], SumOrder::MaskResult(data));
    assert_eq!((failed.because_of, failed.attempt), (Some(wrong), 7));
}

#[test]
fn without_a_result_of_the_round_there_are_no_keys() {
    let mut masker = fresh(2);
    for held in [None, Some(Held { round: 2, ..held() })] {
        let answer = masker.take(announce(7), held.as_ref());
        let Answer::Say(message) = answer else {
            panic!("{answer:?}");
        };
        assert!(
            matches!(*message, FromWorker::MaskingFailed(_)),
            "{message:?}"
        );
    }
}

#[test]
fn whoever_has_helped_to_read_a_sum_of_a_round_helps_with_no_other_also_after_a_restart() {
    let (mut maskers, orders) = shared(7);
    for (masker, order) in maskers.iter_mut().zip(orders) {
        work(masker, order);
    }
    said(&mut maskers[0], reveal(7, &[1, 2]));
    // One that has revealed nothing yet takes part in another attempt.
    keys(&mut maskers[1], 8);
    let refused = failure(&mut maskers[0], announce(8));
    assert!(refused.error.contains("helps with no other"), "{refused:?}");
    // What was asked before is answered again.
    said(&mut maskers[0], reveal(7, &[1, 2]));

    let file = maskers[0].revealed_file.clone();
    let kept = std::fs::read(&file).unwrap();
    for damaged in ["", "three"] {
        std::fs::write(&file, damaged).unwrap();
        let mut unsure = Masker::new(SESSION, 2, file.clone());
        let refused = failure(&mut unsure, announce(9));
        assert!(refused.error.contains("cannot be read"), "{refused:?}");
    }
    std::fs::write(&file, kept).unwrap();
    let mut restarted = Masker::new(SESSION, 2, file);
    let refused = failure(&mut restarted, announce(9));
    assert!(refused.error.contains("helps with no other"), "{refused:?}");
    let next = SumOrder::AnnounceKeys(AnnounceKeysData {
        round: ROUND + 1,
        attempt: 9,
    });
    let held = Held {
        round: ROUND + 1,
        ..held()
    };
    let answer = restarted.take(next, Some(&held));
    assert!(
        matches!(&answer, Answer::Say(said) if matches!(**said, FromWorker::KeysAnnounced(_))),
        "{answer:?}"
    );
}
