//! The protocol's values as messages carry them, and back.

use trainyard_shared::HexBytes;
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::{self as wire, MaskingKeys, ShareFrom, ShareTo};

use super::{Context, Number, PublicKeys, Revealed, RevealedShare, SealedShares};

impl Context {
    /// That of an attempt at the sum of a round (from 1) of a session.
    pub fn of(session: FederatedSessionId, round: u64, attempt: u64) -> Self {
        Self {
            session: format!("{session}/{attempt}"),
            round,
        }
    }
}

impl From<&PublicKeys> for MaskingKeys {
    fn from(keys: &PublicKeys) -> Self {
        Self {
            sealing_key: HexBytes(keys.sealing),
            masking_key: HexBytes(keys.masking),
            seed_digest: HexBytes(keys.seed_digest),
        }
    }
}

impl From<&MaskingKeys> for PublicKeys {
    fn from(keys: &MaskingKeys) -> Self {
        Self {
            sealing: keys.sealing_key.0,
            masking: keys.masking_key.0,
            seed_digest: keys.seed_digest.0,
        }
    }
}

impl SealedShares {
    /// As whoever sealed them sends them.
    pub fn to_wire(&self) -> ShareTo {
        ShareTo {
            to: self.to,
            sealed: HexBytes(self.sealed),
        }
    }

    /// As whoever can open them gets them.
    pub fn from_wire(share: &ShareFrom, to: Number) -> Self {
        Self {
            from: share.from,
            to,
            sealed: share.sealed.0,
        }
    }
}

impl Revealed {
    /// What a participant says that it reveals.
    pub fn from_wire(seeds: &[wire::RevealedShare], keys: &[wire::RevealedShare]) -> Self {
        let shares = |shares: &[wire::RevealedShare]| {
            let share = |share: &wire::RevealedShare| RevealedShare {
                of: share.of,
                share: share.share.0,
            };
            shares.iter().map(share).collect()
        };
        Self {
            seeds: shares(seeds),
            keys: shares(keys),
        }
    }

    /// The shares of seeds, then those of masking keys, as a participant sends them.
    pub fn to_wire(&self) -> (Vec<wire::RevealedShare>, Vec<wire::RevealedShare>) {
        let shares = |shares: &[RevealedShare]| {
            let share = |share: &RevealedShare| wire::RevealedShare {
                of: share.of,
                share: HexBytes(share.share),
            };
            shares.iter().map(share).collect()
        };
        (shares(&self.seeds), shares(&self.keys))
    }
}
