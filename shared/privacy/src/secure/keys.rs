//! Keys of one round, and the secrets that two participants agree on with them.

use hkdf::Hkdf;
use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::shamir::Secret;
use super::{Context, Number, SecureError};

/// What a participant announces at a round's beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKeys {
    /// X25519 key by which shares are sealed for it.
    pub sealing: [u8; 32],
    /// X25519 key by which the masks are agreed on.
    pub masking: [u8; 32],
    /// SHA-256 of the seed of its own mask, so that it is known whether that was put together well.
    pub seed_digest: [u8; 32],
}

impl PublicKeys {
    /// Whether something secret can be agreed on with them: points of a low order give the same to everybody.
    pub fn are_usable(&self) -> bool {
        // A secret key's lowest bits are always 0, so any other one tells the same.
        let any = StaticSecret::from([1; 32]);
        let is_usable = |public: &[u8; 32]| {
            let agreed = any.diffie_hellman(&PublicKey::from(*public));
            agreed.was_contributory()
        };
        is_usable(&self.sealing) && is_usable(&self.masking)
    }

    /// Whether a key of one is also the other's: keys are made afresh by everyone, so two never agree.
    pub fn shares_a_key_with(&self, other: &Self) -> bool {
        self.sealing == other.sealing || self.masking == other.masking
    }
}

/// Bytes that nobody can foresee.
pub(super) fn random_bytes() -> Result<Secret, SecureError> {
    let mut bytes = Secret::default();
    SysRng
        .try_fill_bytes(bytes.as_mut_slice())
        .map_err(|_| SecureError::NoRandomness)?;
    Ok(bytes)
}

/// The digest by which the seed of a mask is known again.
pub(super) fn seed_digest(seed: &Secret) -> [u8; 32] {
    Sha256::digest(seed.as_slice()).into()
}

/// The public key of a secret one.
pub(super) fn public_key(secret: &Secret) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(**secret)).to_bytes()
}

/// What two participants agree on, for one purpose in one round: a key that is the same on both sides.
pub(super) fn agreed_key(
    own: (Number, &Secret),
    other: (Number, &[u8; 32]),
    purpose: &str,
    context: &Context,
) -> Result<Secret, SecureError> {
    let (own_number, secret) = own;
    let (number, public) = other;
    let shared = StaticSecret::from(**secret).diffie_hellman(&PublicKey::from(*public));
    if !shared.was_contributory() {
        return Err(SecureError::WeakKey { number });
    }
    let own_public = public_key(secret);
    let mut sides = [
        (own_number, own_public.as_slice()),
        (number, public.as_slice()),
    ];
    sides.sort_unstable();
    let mut info = Zeroizing::new(purpose.as_bytes().to_vec());
    for (number, public) in sides {
        info.push(number);
        info.extend(public);
    }
    let mut key = Secret::default();
    Hkdf::<Sha256>::new(Some(&context.bytes()), shared.as_bytes())
        .expand(&info, key.as_mut_slice())
        .expect("32 bytes are not too long for SHA-256");
    Ok(key)
}
