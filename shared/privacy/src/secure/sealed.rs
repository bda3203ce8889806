//! Shares on their way from one participant to another, which the platform passes on and cannot read.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use zeroize::Zeroizing;

use super::shamir::Secret;
use super::{Context, Number, SecureError};

/// Two shares of 32 bytes and the tag of 16.
pub const SEALED_BYTES: usize = 80;

/// Two shares, sealed for one participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedShares {
    /// Whose secrets they are shares of.
    pub from: Number,
    /// Who can open them.
    pub to: Number,
    /// The sealed bytes.
    pub sealed: [u8; SEALED_BYTES],
}

/// The shares of one participant's secrets that another one holds.
#[derive(Clone)]
pub(super) struct HeldShares {
    /// Of the masking key.
    pub key: Secret,
    /// Of the seed of its own mask.
    pub seed: Secret,
}

pub(super) fn seal(
    shares: &HeldShares,
    from: Number,
    to: Number,
    key: &Secret,
    context: &Context,
) -> SealedShares {
    let text = Zeroizing::new([shares.key.as_slice(), shares.seed.as_slice()].concat());
    let payload = Payload {
        msg: &text,
        aad: &context.bytes(),
    };
    let sealed = cipher(key).encrypt(&nonce(from, to), payload);
    let sealed = sealed.ok().and_then(|sealed| sealed.try_into().ok());
    let sealed = sealed.expect("64 bytes are not too long to be sealed, and get a tag of 16");
    SealedShares { from, to, sealed }
}

pub(super) fn open(
    sealed: &SealedShares,
    key: &Secret,
    context: &Context,
) -> Result<HeldShares, SecureError> {
    let SealedShares { from, to, sealed } = sealed;
    let payload = Payload {
        msg: sealed.as_slice(),
        aad: &context.bytes(),
    };
    let not_opened = SecureError::NotOpened { number: *from };
    let text = cipher(key).decrypt(&nonce(*from, *to), payload);
    let text = Zeroizing::new(text.map_err(|_| not_opened.clone())?);
    let (key, seed) = text
        .split_at_checked(32)
        .ok_or_else(|| not_opened.clone())?;
    let secret = |bytes: &[u8]| bytes.try_into().map(Secret::new);
    Ok(HeldShares {
        key: secret(key).map_err(|_| not_opened.clone())?,
        seed: secret(seed).map_err(|_| not_opened)?,
    })
}

fn cipher(key: &Secret) -> ChaCha20Poly1305 {
    ChaCha20Poly1305::new(&Key::from(**key))
}

/// A key seals two texts in all, one in each direction.
fn nonce(from: Number, to: Number) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..2].copy_from_slice(&[from, to]);
    Nonce::from(nonce)
}
