//! Shamir's secret sharing of 32 bytes, byte by byte over GF(2^8) (Shamir 1979): any `threshold` shares give the secret, and
//! fewer say nothing of it. Branches and memory accesses never depend on secret bytes.

use zeroize::Zeroizing;

use super::keys::random_bytes;
use super::{Number, SecureError};

/// A secret, or a share of one.
pub(super) type Secret = Zeroizing<[u8; 32]>;

/// Splits a secret into shares for the participants 1 to `count`.
pub(super) fn split(
    secret: &Secret,
    threshold: usize,
    count: usize,
) -> Result<Vec<Secret>, SecureError> {
    let mut coefficients = vec![secret.clone()];
    for _ in 1..threshold {
        coefficients.push(random_bytes()?);
    }
    let share = |x: Number| {
        let mut share = Secret::default();
        for coefficient in coefficients.iter().rev() {
            for (sum, c) in share.iter_mut().zip(coefficient.iter()) {
                *sum = multiply(*sum, x) ^ c;
            }
        }
        share
    };
    Ok((1..=Number::MAX).take(count).map(share).collect())
}

/// Puts a secret together from exactly `threshold` shares of different participants (Lagrange's polynomials at 0).
pub(super) fn combine(shares: &[(Number, Secret)]) -> Secret {
    let mut secret = Secret::default();
    for (x, share) in shares {
        let others = shares.iter().filter(|(other, _)| other != x);
        // The numbers are no secrets.
        let weight = others.fold(1, |weight, (other, _)| {
            multiply(weight, multiply(*other, inverse(other ^ x)))
        });
        for (sum, y) in secret.iter_mut().zip(share.iter()) {
            *sum ^= multiply(*y, weight);
        }
    }
    secret
}

/// The product in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1.
fn multiply(mut a: u8, b: u8) -> u8 {
    let mut product = 0;
    for bit in 0..8 {
        product ^= a & 0_u8.wrapping_sub(b >> bit & 1);
        a = (a << 1) ^ (0x1b & 0_u8.wrapping_sub(a >> 7));
    }
    product
}

/// a^254, which is 1 / a.
fn inverse(a: u8) -> u8 {
    let mut power = a;
    for _ in 0..6 {
        power = multiply(multiply(power, power), a);
    }
    multiply(power, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_but_zero_has_an_inverse() {
        for a in 1..=u8::MAX {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
        }
        // From the standard of AES, which uses the same field.
        assert_eq!(multiply(0x57, 0x83), 0xc1);
    }

    #[test]
    fn any_threshold_of_the_shares_give_the_secret() {
        let secret = random_bytes().unwrap();
        for (threshold, count) in [(1, 1), (2, 3), (3, 5), (5, 5), (128, 255)] {
            let shares = split(&secret, threshold, count).unwrap();
            let mut numbered: Vec<(Number, Secret)> = (1..=u8::MAX).zip(shares).collect();
            for _ in 0..count.min(7) {
                numbered.rotate_left(1);
                assert_eq!(combine(&numbered[..threshold]), secret);
            }
        }
    }

    #[test]
    fn one_share_less_gives_any_secret() {
        let secret = Secret::new([7; 32]);
        let shares = split(&secret, 3, 5).unwrap();
        let two: Vec<(Number, Secret)> = (1..).zip(shares).take(2).collect();
        assert_ne!(combine(&two), secret);
        // Whatever the secret was, some third share fits it: two shares say nothing.
        for other in 0..=u8::MAX {
            let third = |byte: u8| {
                let mut shares = two.clone();
                shares.push((3, Secret::new([byte; 32])));
                combine(&shares)[0]
            };
            assert!((0..=u8::MAX).any(|byte| third(byte) == other));
        }
    }
}
