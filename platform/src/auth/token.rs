//! Owns the form of every token and key: a prefix that says what it is, and 43 characters of randomness. Only
//! the SHA-256 is ever stored.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use trainyard_shared::Secret;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A signed-in user.
    Session,
    /// A user's program.
    ApiToken,
    /// One connection of one dashboard.
    WebSocket,
    /// One worker.
    Worker,
    /// A machine that is to become a worker.
    Enrollment,
}

/// Characters behind the prefix: 32 bytes in base64url without padding.
const RANDOM_CHARACTERS: usize = 43;

impl TokenKind {
    /// What its tokens begin with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Session => "ses_",
            Self::ApiToken => "usr_",
            Self::WebSocket => "wst_",
            Self::Worker => "wkr_",
            Self::Enrollment => "enroll_",
        }
    }

    /// Whether `text` has the form of such a token. Says nothing about whether it was ever issued.
    pub fn matches(self, text: &str) -> bool {
        text.strip_prefix(self.prefix()).is_some_and(|rest| {
            rest.len() == RANDOM_CHARACTERS
                && rest
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        })
    }

    /// A new token of this kind.
    pub fn issue(self) -> NewToken {
        let random: [u8; 32] = rand::random();
        let text = format!("{}{}", self.prefix(), URL_SAFE_NO_PAD.encode(random));
        NewToken {
            hash: TokenHash::of(&text),
            secret: Secret::from(text),
        }
    }
}

/// A token that was just made: the only moment at which its text is known.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The text, for whoever asked for it.
    pub secret: Secret,
    /// What is stored.
    pub hash: TokenHash,
}

/// The SHA-256 of a token: what is stored and looked up.
#[derive(Debug, Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token's text.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// The bytes to store or to look up.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether `stored` is the same hash; takes the same time wherever they differ.
    pub fn is(&self, stored: &[u8]) -> bool {
        self.0.ct_eq(stored).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [TokenKind; 5] = [
        TokenKind::Session,
        TokenKind::ApiToken,
        TokenKind::WebSocket,
        TokenKind::Worker,
        TokenKind::Enrollment,
    ];

    #[test]
    fn tokens_have_their_form_and_no_two_are_the_same() {
        for kind in KINDS {
            let (one, other) = (kind.issue(), kind.issue());
            assert!(kind.matches(one.secret.expose()));
            assert_eq!(one.secret.expose().len(), kind.prefix().len() + 43);
            assert_ne!(one.secret, other.secret);
            assert!(
                !KINDS
                    .iter()
                    .any(|k| *k != kind && k.matches(one.secret.expose()))
            );
        }
    }

    /// G025: hashes are compared by value, in constant time, and the text is not part of what is kept.
    #[test]
    fn g025_a_hash_matches_its_own_token_only() {
        let (one, other) = (TokenKind::Worker.issue(), TokenKind::Worker.issue());
        assert!(TokenHash::of(one.secret.expose()).is(one.hash.as_bytes()));
        assert!(!one.hash.is(other.hash.as_bytes()));
        assert!(!one.hash.is(&one.hash.as_bytes()[..31]));
        assert!(!one.hash.is(&[]));
        assert!(!format!("{one:?}").contains(one.secret.expose()));
    }
}
