//! The platform's side of a round's end: what is left of the masks in the sum, from what the participants reveal.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{agreed_key, public_key, seed_digest};
use super::masks::Mask;
use super::participant::{MASKING, Revealed, RevealedShare, are_same, pairwise};
use super::shamir::{Secret, combine};
use super::{Context, Number, Roster, SecureError};

/// Gathers what participants reveal until the sum can be unmasked.
pub struct Unmasking {
    context: Context,
    roster: Roster,
    /// Whose masked change is in the sum.
    uploaded: BTreeSet<Number>,
    /// Who masked against the others and whose change is not in the sum.
    dropped: BTreeSet<Number>,
    revealed: BTreeMap<Number, Revealed>,
}

impl Unmasking {
    /// For the sum of the changes of `uploaded`, out of those whose shares were passed on.
    ///
    /// # Errors
    /// [`SecureError::Unknown`] for an upload of someone who did not take part, [`SecureError::TooFew`] for fewer uploads
    /// than the threshold.
    pub fn new(
        context: Context,
        roster: Roster,
        participants: &BTreeSet<Number>,
        uploaded: BTreeSet<Number>,
    ) -> Result<Self, SecureError> {
        for number in participants {
            roster.keys_of(*number)?;
        }
        if let Some(number) = uploaded.difference(participants).next() {
            return Err(SecureError::Unknown { number: *number });
        }
        let (count, threshold) = (uploaded.len(), roster.threshold());
        if count < threshold {
            return Err(SecureError::TooFew { count, threshold });
        }
        Ok(Self {
            context,
            dropped: participants.difference(&uploaded).copied().collect(),
            roster,
            uploaded,
            revealed: BTreeMap::new(),
        })
    }

    /// Whose changes are summed: what participants are asked with.
    pub fn uploaded(&self) -> impl Iterator<Item = Number> {
        self.uploaded.iter().copied()
    }

    /// Takes an answer. A repeated one changes nothing.
    ///
    /// # Errors
    /// [`SecureError::Unknown`], [`SecureError::WrongShares`] where it has not just the shares that were asked for.
    pub fn add(&mut self, from: Number, revealed: Revealed) -> Result<(), SecureError> {
        if !self.uploaded.contains(&from) && !self.dropped.contains(&from) {
            return Err(SecureError::Unknown { number: from });
        }
        let are_of = |shares: &[RevealedShare], asked: &BTreeSet<Number>| {
            shares.len() == asked.len() && shares.iter().all(|share| asked.contains(&share.of))
        };
        if !are_of(&revealed.seeds, &self.uploaded) || !are_of(&revealed.keys, &self.dropped) {
            return Err(SecureError::WrongShares { number: from });
        }
        self.revealed.entry(from).or_insert(revealed);
        Ok(())
    }

    /// Whether enough have answered.
    pub fn is_complete(&self) -> bool {
        self.revealed.len() >= self.roster.threshold()
    }

    /// The masks that take those out of the sum which are still in it.
    ///
    /// # Errors
    /// [`SecureError::TooFew`] before it is complete; [`SecureError::NotRecovered`] naming the participant whose secret its
    /// shares do not give: some share is wrong.
    pub fn masks(&self) -> Result<Vec<Mask>, SecureError> {
        let (count, threshold) = (self.revealed.len(), self.roster.threshold());
        if count < threshold {
            return Err(SecureError::TooFew { count, threshold });
        }
        let mut masks = Vec::new();
        for &number in &self.uploaded {
            let seed = self.recovered(number, |revealed| &revealed.seeds)?;
            let announced = &self.roster.keys_of(number)?.seed_digest;
            if !are_same(&seed_digest(&seed), announced) {
                return Err(SecureError::NotRecovered { number });
            }
            masks.push(Mask::subtracted(seed));
        }
        for &number in &self.dropped {
            let key = self.recovered(number, |revealed| &revealed.keys)?;
            if !are_same(&public_key(&key), &self.roster.keys_of(number)?.masking) {
                return Err(SecureError::NotRecovered { number });
            }
            for &other in &self.uploaded {
                let public = &self.roster.keys_of(other)?.masking;
                let agreed = agreed_key((number, &key), (other, public), MASKING, &self.context)?;
                // Just what the one who dropped out would have added, which the other one's is the opposite of.
                masks.push(pairwise(number, other, agreed));
            }
        }
        Ok(masks)
    }

    fn recovered(
        &self,
        of: Number,
        shares: impl Fn(&Revealed) -> &Vec<RevealedShare>,
    ) -> Result<Secret, SecureError> {
        let share = |(from, revealed): (&Number, &Revealed)| {
            let share = shares(revealed).iter().find(|share| share.of == of)?;
            Some((*from, Secret::new(share.share)))
        };
        let found: Vec<(Number, Secret)> = self
            .revealed
            .iter()
            .filter_map(share)
            .take(self.roster.threshold())
            .collect();
        match found.len() == self.roster.threshold() {
            true => Ok(combine(&found)),
            false => Err(SecureError::NotRecovered { number: of }),
        }
    }
}
