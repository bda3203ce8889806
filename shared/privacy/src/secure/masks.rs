//! Masks: integers modulo 2^64 that look random to whoever does not know their seed.

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use zeroize::Zeroize;

use super::shamir::Secret;

/// A mask that is added to all values, or subtracted from them.
#[derive(Clone)]
pub struct Mask {
    key: Secret,
    is_subtracted: bool,
}

/// Values that are masked at once.
const PIECE_VALUES: usize = 1024;

impl Mask {
    pub(super) fn added(key: Secret) -> Self {
        Self {
            key,
            is_subtracted: false,
        }
    }

    pub(super) fn subtracted(key: Secret) -> Self {
        Self {
            key,
            is_subtracted: true,
        }
    }

    /// Adds the mask to `values`, or subtracts it from them; the first of them is number `first` of all. Any parts may be
    /// masked in any order.
    pub fn apply(&self, values: &mut [u64], first: u64) {
        let mut cipher = ChaCha20::new((&*self.key).into(), &[0; 12].into());
        cipher.seek(first * 8);
        let mut stream = [0_u8; 8 * PIECE_VALUES];
        for piece in values.chunks_mut(PIECE_VALUES) {
            let stream = &mut stream[..8 * piece.len()];
            stream.fill(0);
            cipher.apply_keystream(stream);
            let (numbers, _) = stream.as_chunks::<8>();
            for (value, number) in piece.iter_mut().zip(numbers) {
                let number = u64::from_le_bytes(*number);
                *value = match self.is_subtracted {
                    true => value.wrapping_sub(number),
                    false => value.wrapping_add(number),
                };
            }
        }
        stream.zeroize();
    }
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_the_same_however_it_is_cut() {
        let key = Secret::new([9; 32]);
        let added = Mask::added(key.clone());
        let mut whole = vec![0; 3000];
        added.apply(&mut whole, 0);
        let mut parts = vec![0; 3000];
        for (first, length) in [(2500, 500), (0, 1), (1, 2499)] {
            added.apply(&mut parts[first..first + length], first as u64);
        }
        assert_eq!(whole, parts);
        Mask::subtracted(key).apply(&mut whole, 0);
        assert_eq!(whole, [0; 3000]);
    }
}
