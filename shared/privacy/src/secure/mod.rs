//! Secure aggregation with drop-out recovery: the platform learns the sum of the participants' changes and nothing of any
//! single one (Bonawitz et al. 2017, <https://eprint.iacr.org/2017/281>, for servers that follow the protocol).
//!
//! One sum, of changes that the participants have made before:
//!
//! 1. Every participant makes two fresh X25519 key pairs and the seed of a mask of its own, and announces its
//!    [`PublicKeys`] ([`Announcing`]).
//! 2. The platform sends everybody the [`Roster`]. Each participant splits its masking key and its seed into shares of
//!    which `threshold` are needed, and sends every other one its shares, sealed for it ([`Announcing::share`]).
//! 3. The platform passes the shares on. Whoever's shares arrived takes part: the others know to mask against it
//!    ([`Sharing::receive`]).
//! 4. Each turns its change into integers modulo 2^64 ([`fixed_point`]) and adds its own mask, and for each other
//!    participant one that both know and that one of them adds and the other subtracts ([`Masking::mask`]).
//! 5. The platform says whose masked change has arrived. Everybody reveals its shares of the seeds of those, and of the
//!    masking keys of the others, never both of one ([`Masking::reveal`]).
//! 6. With `threshold` answers the platform removes what is left of the masks from the sum ([`Unmasking`]). The pairwise
//!    ones of those who are all there have gone by themselves.

pub mod fixed_point;
mod keys;
mod masks;
mod participant;
mod sealed;
mod shamir;
#[cfg(test)]
mod tests;
mod unmasking;
mod wire;

pub use keys::PublicKeys;
pub use masks::Mask;
pub use participant::{Announcing, Masking, Revealed, RevealedShare, Sharing};
pub use sealed::{SEALED_BYTES, SealedShares};
pub use unmasking::Unmasking;

/// Participants of a round at most; shares are numbered by one byte.
pub const MOST_PARTICIPANTS: usize = 255;

/// What binds keys to one round, so that nothing of another one fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The session.
    pub session: String,
    /// The round.
    pub round: u64,
}

impl Context {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"trainyard secure aggregation 1\0".to_vec();
        bytes.extend(self.round.to_le_bytes());
        bytes.extend(self.session.as_bytes());
        bytes
    }
}

/// Number of a participant within a round, from 1.
pub type Number = u8;

/// Who was there at a round's beginning, and how many of them must be there at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    threshold: usize,
    members: Vec<PublicKeys>,
}

impl Roster {
    /// Participants in the order of their numbers.
    ///
    /// More than half of them must be needed to reveal anything. With fewer, two halves could be told different stories
    /// of who has dropped out, and a single change be unmasked.
    ///
    /// # Errors
    /// [`SecureError::Threshold`], [`SecureError::Participants`], [`SecureError::SameKeys`].
    pub fn new(threshold: usize, members: Vec<PublicKeys>) -> Result<Self, SecureError> {
        let count = members.len();
        if !(2..=MOST_PARTICIPANTS).contains(&count) {
            return Err(SecureError::Participants { count });
        }
        if threshold > count || 2 * threshold <= count {
            return Err(SecureError::Threshold { threshold, count });
        }
        let is_double = |(place, keys): (usize, &PublicKeys)| {
            let mut before = members[..place].iter();
            before.any(|other| other.shares_a_key_with(keys))
        };
        if members.iter().enumerate().any(is_double) {
            return Err(SecureError::SameKeys);
        }
        Ok(Self { threshold, members })
    }

    /// Answers that are needed at the end.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// Numbers and keys of all.
    pub fn members(&self) -> impl Iterator<Item = (Number, &PublicKeys)> {
        (1..=Number::MAX).zip(&self.members)
    }

    fn keys_of(&self, number: Number) -> Result<&PublicKeys, SecureError> {
        let place = usize::from(number).checked_sub(1);
        let keys = place.and_then(|place| self.members.get(place));
        keys.ok_or(SecureError::Unknown { number })
    }
}

/// Why a round of secure aggregation cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecureError {
    /// The operating system gave no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandomness,
    /// A mask must have someone to be shared with.
    #[error("secure aggregation needs 2 to 255 participants, not {count}")]
    Participants {
        /// How many there are.
        count: usize,
    },
    /// More than half must be needed, and no more than there are.
    #[error(
        "a threshold of {threshold} does not fit {count} participants: it must be more than half of them, and no more than all"
    )]
    Threshold {
        /// The threshold.
        threshold: usize,
        /// How many participants there are.
        count: usize,
    },
    /// Keys are made afresh by everyone, so two never agree.
    #[error("two participants have the same key")]
    SameKeys,
    /// A participant finds its own keys nowhere among the others.
    #[error("the list of participants lacks this participant's own keys")]
    NotListed,
    /// A number that the roster does not have.
    #[error("there is no participant {number}")]
    Unknown {
        /// The number.
        number: Number,
    },
    /// One of two things that are said of a participant only once.
    #[error("participant {number} stands twice")]
    Twice {
        /// The participant.
        number: Number,
    },
    /// A key that agrees on nothing secret.
    #[error("the key of participant {number} is not usable")]
    WeakKey {
        /// The participant.
        number: Number,
    },
    /// Shares that were not sealed for this participant in this round.
    #[error("the shares of participant {number} cannot be opened")]
    NotOpened {
        /// Who sealed them.
        number: Number,
    },
    /// Too few participants are left.
    #[error("{count} participants are too few, {threshold} are needed")]
    TooFew {
        /// How many there are.
        count: usize,
        /// How many are needed.
        threshold: usize,
    },
    /// Revealing by another list would reveal both secrets of someone.
    #[error("shares have been revealed for another list already")]
    AlreadyRevealed,
    /// An answer that does not fit what was asked.
    #[error("what participant {number} reveals is not what was asked for")]
    WrongShares {
        /// Who answered.
        number: Number,
    },
    /// Shares that fit together to nothing that was announced.
    #[error("the secret of participant {number} cannot be put together from its shares")]
    NotRecovered {
        /// Whose secret it is.
        number: Number,
    },
}
