//! A participant's side of a round. Each stage consumes the one before it, so none can be repeated with another outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use subtle::ConstantTimeEq;

use super::keys::{agreed_key, public_key, random_bytes, seed_digest};
use super::masks::Mask;
use super::sealed::{HeldShares, open, seal};
use super::shamir::{Secret, split};
use super::{Context, Number, PublicKeys, Roster, SealedShares, SecureError};

const SEALING: &str = "seal";
pub(super) const MASKING: &str = "mask";

/// A participant that has announced its keys.
pub struct Announcing {
    context: Context,
    sealing: Secret,
    masking: Secret,
    seed: Secret,
}

impl Announcing {
    /// Makes the keys of one round.
    ///
    /// # Errors
    /// [`SecureError::NoRandomness`].
    pub fn new(context: Context) -> Result<Self, SecureError> {
        Ok(Self {
            context,
            sealing: random_bytes()?,
            masking: random_bytes()?,
            seed: random_bytes()?,
        })
    }

    /// What everybody is told.
    pub fn public_keys(&self) -> PublicKeys {
        PublicKeys {
            sealing: public_key(&self.sealing),
            masking: public_key(&self.masking),
            seed_digest: seed_digest(&self.seed),
        }
    }

    /// Splits the secrets among the participants. The shares for the others are to be passed on.
    ///
    /// # Errors
    /// [`SecureError::NotListed`] where `roster` lacks this participant, [`SecureError::WeakKey`],
    /// [`SecureError::NoRandomness`].
    pub fn share(self, roster: Roster) -> Result<(Sharing, Vec<SealedShares>), SecureError> {
        let own_keys = self.public_keys();
        let own = roster.members().find(|(_, keys)| **keys == own_keys);
        let own = own.ok_or(SecureError::NotListed)?.0;
        let count = roster.members().count();
        let keys = split(&self.masking, roster.threshold(), count)?;
        let seeds = split(&self.seed, roster.threshold(), count)?;
        let mut sealing_keys = BTreeMap::new();
        let mut held = BTreeMap::new();
        let mut sealed = Vec::new();
        for ((to, public), (key, seed)) in roster.members().zip(keys.into_iter().zip(seeds)) {
            let shares = HeldShares { key, seed };
            if to == own {
                held.insert(own, shares);
                continue;
            }
            let sides = ((own, &self.sealing), (to, &public.sealing));
            let key = agreed_key(sides.0, sides.1, SEALING, &self.context)?;
            sealed.push(seal(&shares, own, to, &key, &self.context));
            sealing_keys.insert(to, key);
        }
        let sharing = Sharing {
            secrets: self,
            roster,
            own,
            sealing_keys,
            held,
        };
        Ok((sharing, sealed))
    }
}

/// A participant that has split its secrets and waits for the shares of the others.
pub struct Sharing {
    secrets: Announcing,
    roster: Roster,
    own: Number,
    sealing_keys: BTreeMap<Number, Secret>,
    held: BTreeMap<Number, HeldShares>,
}

impl Sharing {
    /// This participant's number.
    pub fn number(&self) -> Number {
        self.own
    }

    /// Takes the shares that others sealed for this participant. Those whose shares are there, and itself, take part.
    ///
    /// # Errors
    /// [`SecureError::Unknown`], [`SecureError::Twice`], [`SecureError::NotOpened`]; [`SecureError::TooFew`] where fewer
    /// than the threshold take part; [`SecureError::WeakKey`].
    pub fn receive(mut self, shares: &[SealedShares]) -> Result<Masking, SecureError> {
        for sealed in shares {
            let number = sealed.from;
            let key = self.sealing_keys.get(&number);
            let key = key.ok_or(SecureError::Unknown { number })?;
            if sealed.to != self.own {
                return Err(SecureError::NotOpened { number });
            }
            let opened = open(sealed, key, &self.secrets.context)?;
            if self.held.insert(number, opened).is_some() {
                return Err(SecureError::Twice { number });
            }
        }
        let (count, threshold) = (self.held.len(), self.roster.threshold());
        if count < threshold {
            return Err(SecureError::TooFew { count, threshold });
        }
        let mut masks = vec![Mask::added(self.secrets.seed.clone())];
        for number in self.held.keys().copied().filter(|one| *one != self.own) {
            let public = &self.roster.keys_of(number)?.masking;
            let sides = ((self.own, &self.secrets.masking), (number, public));
            let key = agreed_key(sides.0, sides.1, MASKING, &self.secrets.context)?;
            masks.push(pairwise(self.own, number, key));
        }
        Ok(Masking {
            threshold,
            own: self.own,
            held: self.held,
            masks,
            revealed: None,
        })
    }
}

/// The mask that `own` applies on account of `other`: whoever's number is smaller adds it.
pub(super) fn pairwise(own: Number, other: Number, key: Secret) -> Mask {
    match own < other {
        true => Mask::added(key),
        false => Mask::subtracted(key),
    }
}

/// A participant that masks its change, and at the end reveals what is needed to unmask the sum.
pub struct Masking {
    threshold: usize,
    own: Number,
    held: BTreeMap<Number, HeldShares>,
    masks: Vec<Mask>,
    revealed: Option<BTreeSet<Number>>,
}

/// A share that is revealed.
#[derive(Clone, PartialEq, Eq)]
pub struct RevealedShare {
    /// Whose secret it is a share of.
    pub of: Number,
    /// The share.
    pub share: [u8; 32],
}

/// What a participant reveals.
#[derive(Clone, PartialEq, Eq)]
pub struct Revealed {
    /// Shares of the seeds of those whose masked change has arrived.
    pub seeds: Vec<RevealedShare>,
    /// Shares of the masking keys of those who have dropped out.
    pub keys: Vec<RevealedShare>,
}

impl fmt::Debug for Revealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Revealed")
    }
}

impl Masking {
    /// This participant's number.
    pub fn number(&self) -> Number {
        self.own
    }

    /// Those who take part, itself among them.
    pub fn participants(&self) -> impl Iterator<Item = Number> {
        self.held.keys().copied()
    }

    /// What is added to a change to mask it, all of it.
    pub fn masks(&self) -> &[Mask] {
        &self.masks
    }

    /// Masks a change, or a part of it that begins with value number `first`.
    pub fn mask(&self, values: &mut [u64], first: u64) {
        for mask in &self.masks {
            mask.apply(values, first);
        }
    }

    /// Reveals the shares that unmask the sum of the changes of `uploaded`. Asked again with the same list, it answers the
    /// same.
    ///
    /// # Errors
    /// [`SecureError::AlreadyRevealed`] for another list; [`SecureError::Unknown`] for someone who does not take part;
    /// [`SecureError::TooFew`] where a sum of so few would be revealed.
    pub fn reveal(&mut self, uploaded: &[Number]) -> Result<Revealed, SecureError> {
        let uploaded: BTreeSet<Number> = uploaded.iter().copied().collect();
        if let Some(number) = uploaded.iter().find(|one| !self.held.contains_key(one)) {
            return Err(SecureError::Unknown { number: *number });
        }
        let (count, threshold) = (uploaded.len(), self.threshold);
        if count < threshold {
            return Err(SecureError::TooFew { count, threshold });
        }
        if self
            .revealed
            .as_ref()
            .is_some_and(|before| *before != uploaded)
        {
            return Err(SecureError::AlreadyRevealed);
        }
        let (seeds, keys): (Vec<_>, Vec<_>) = self
            .held
            .iter()
            .partition(|(number, _)| uploaded.contains(number));
        let share = |of: &Number, share: &Secret| RevealedShare {
            of: *of,
            share: **share,
        };
        let answer = Revealed {
            seeds: seeds
                .iter()
                .map(|(of, held)| share(of, &held.seed))
                .collect(),
            keys: keys.iter().map(|(of, held)| share(of, &held.key)).collect(),
        };
        self.revealed = Some(uploaded);
        Ok(answer)
    }
}

/// Whether two secrets or digests are the same, in a time that says nothing of where they differ.
pub(super) fn are_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}
