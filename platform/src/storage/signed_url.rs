//! Owns URLs that carry their own permission: HMAC-SHA256 over method, key, expiry and, for an upload, the
//! exact size and digest of what may be sent.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trainyard_shared::Secret;
use url::Url;

use super::StorageKey;

/// What exactly may be uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadTerms {
    /// Size of the file.
    pub size_bytes: u64,
    /// Digest of the file, as 64 lower-case hex digits.
    pub sha256: String,
}

/// Where and how a file is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct UploadTarget {
    /// Target of an HTTP PUT.
    #[schema(value_type = String)]
    pub url: Secret,
    /// Headers that the PUT must carry.
    pub headers: BTreeMap<String, String>,
    /// For how long the URL is valid, in seconds.
    pub expires_in: u64,
}

/// The query of a signed URL.
#[derive(Debug, Clone, Deserialize)]
pub struct SignedQuery {
    expires: u64,
    signature: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    most: Option<u64>,
}

/// What a URL permits to be uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermittedUpload {
    /// Exactly these bytes.
    Exactly(UploadTerms),
    /// Any file of at most so many bytes.
    AtMost(u64),
}

/// Makes and checks signed URLs of the platform's own storage.
#[derive(Clone)]
pub struct UrlSigner {
    keyed: Hmac<Sha256>,
    base: Url,
}

impl UrlSigner {
    /// `base` is the platform's public address, with a slash at the end of its path.
    pub fn new(key: &[u8; 32], base: Url) -> Self {
        let keyed = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        Self { keyed, base }
    }

    /// A URL for reading an object.
    pub fn download_url(&self, key: &StorageKey, valid_for: Duration, now: SystemTime) -> Secret {
        let expires = unix_seconds(now + valid_for);
        let mut url = self.object_url(key);
        url.query_pairs_mut()
            .append_pair("expires", &expires.to_string())
            .append_pair(
                "signature",
                &hex::encode(self.sign(&Grant::Download, key, expires)),
            );
        Secret::from(String::from(url))
    }

    /// A URL for writing exactly one version of an object.
    pub fn upload_target(
        &self,
        key: &StorageKey,
        terms: &UploadTerms,
        valid_for: Duration,
        now: SystemTime,
    ) -> UploadTarget {
        let expires = unix_seconds(now + valid_for);
        let mut url = self.object_url(key);
        url.query_pairs_mut()
            .append_pair("expires", &expires.to_string())
            .append_pair("size", &terms.size_bytes.to_string())
            .append_pair("sha256", &terms.sha256)
            .append_pair(
                "signature",
                &hex::encode(self.sign(&Grant::Upload(terms), key, expires)),
            );
        UploadTarget {
            url: Secret::from(String::from(url)),
            headers: BTreeMap::from([(
                "Content-Type".to_owned(),
                "application/octet-stream".to_owned(),
            )]),
            expires_in: valid_for.as_secs(),
        }
    }

    /// A URL for writing any version of an object that has at most `most` bytes.
    pub fn open_upload_url(
        &self,
        key: &StorageKey,
        most: u64,
        valid_for: Duration,
        now: SystemTime,
    ) -> Secret {
        let expires = unix_seconds(now + valid_for);
        let mut url = self.object_url(key);
        url.query_pairs_mut()
            .append_pair("expires", &expires.to_string())
            .append_pair("most", &most.to_string())
            .append_pair(
                "signature",
                &hex::encode(self.sign(&Grant::UploadAtMost(most), key, expires)),
            );
        Secret::from(String::from(url))
    }

    /// Whether the query permits reading `key` now.
    pub fn permits_download(&self, key: &StorageKey, query: &SignedQuery, now: SystemTime) -> bool {
        self.is_valid(&Grant::Download, key, query, now)
    }

    /// What the query permits to be written to `key` now, if anything.
    pub fn permitted_upload(
        &self,
        key: &StorageKey,
        query: &SignedQuery,
        now: SystemTime,
    ) -> Option<PermittedUpload> {
        if let Some(most) = query.most {
            return self
                .is_valid(&Grant::UploadAtMost(most), key, query, now)
                .then_some(PermittedUpload::AtMost(most));
        }
        let terms = UploadTerms {
            size_bytes: query.size?,
            sha256: query.sha256.clone()?,
        };
        self.is_valid(&Grant::Upload(&terms), key, query, now)
            .then_some(PermittedUpload::Exactly(terms))
    }

    fn is_valid(
        &self,
        grant: &Grant<'_>,
        key: &StorageKey,
        query: &SignedQuery,
        now: SystemTime,
    ) -> bool {
        let Ok(given) = hex::decode(&query.signature) else {
            return false;
        };
        let right = self
            .mac(grant, key, query.expires)
            .verify_slice(&given)
            .is_ok();
        right && unix_seconds(now) < query.expires
    }

    fn sign(&self, grant: &Grant<'_>, key: &StorageKey, expires: u64) -> Vec<u8> {
        self.mac(grant, key, expires)
            .finalize()
            .into_bytes()
            .to_vec()
    }

    /// No field can hold a line break, so that two grants never read the same.
    fn mac(&self, grant: &Grant<'_>, key: &StorageKey, expires: u64) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        match grant {
            Grant::Download => mac.update(format!("GET\n{key}\n{expires}").as_bytes()),
            Grant::Upload(UploadTerms { size_bytes, sha256 }) => {
                mac.update(format!("PUT\n{key}\n{expires}\n{size_bytes}\n").as_bytes());
                mac.update(sha256.as_bytes());
            }
            Grant::UploadAtMost(most) => {
                mac.update(format!("PUT\n{key}\n{expires}\nat most {most}").as_bytes());
            }
        }
        mac
    }

    fn object_url(&self, key: &StorageKey) -> Url {
        self.base
            .join(&format!("storage/{key}"))
            .expect("a storage key holds only characters that a path may hold")
    }
}

enum Grant<'a> {
    Download,
    Upload(&'a UploadTerms),
    UploadAtMost(u64),
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn signer() -> UrlSigner {
        UrlSigner::new(&[7; 32], Url::parse("https://yard.example/base/").unwrap())
    }

    fn key(text: &str) -> StorageKey {
        StorageKey::parse(text).unwrap()
    }

    fn query_of(url: &str) -> SignedQuery {
        let pairs: BTreeMap<String, String> = Url::parse(url)
            .unwrap()
            .query_pairs()
            .into_owned()
            .collect();
        SignedQuery {
            expires: pairs["expires"].parse().unwrap(),
            signature: pairs["signature"].clone(),
            size: pairs.get("size").map(|size| size.parse().unwrap()),
            sha256: pairs.get("sha256").cloned(),
            most: pairs.get("most").map(|most| most.parse().unwrap()),
        }
    }

    #[test]
    fn a_download_url_opens_its_key_until_it_expires_and_nothing_else() {
        let (signer, now) = (signer(), SystemTime::now());
        let url = signer.download_url(&key("a/b.bin"), HOUR, now);
        assert!(
            url.expose()
                .starts_with("https://yard.example/base/storage/a/b.bin?"),
            "{}",
            url.expose()
        );
        let query = query_of(url.expose());
        assert!(signer.permits_download(&key("a/b.bin"), &query, now));
        assert!(!signer.permits_download(&key("a/c.bin"), &query, now));
        assert!(!signer.permits_download(&key("a/b.bin"), &query, now + HOUR));
        assert!(
            signer
                .permitted_upload(&key("a/b.bin"), &query, now)
                .is_none()
        );
        let longer = SignedQuery {
            expires: query.expires + 1,
            ..query.clone()
        };
        assert!(!signer.permits_download(&key("a/b.bin"), &longer, now));
        for signature in ["", "zz", &query.signature[2..], &"00".repeat(32)] {
            let forged = SignedQuery {
                signature: signature.to_owned(),
                ..query.clone()
            };
            assert!(
                !signer.permits_download(&key("a/b.bin"), &forged, now),
                "{signature:?}"
            );
        }
        let other = UrlSigner::new(&[8; 32], Url::parse("https://yard.example/base/").unwrap());
        assert!(!other.permits_download(&key("a/b.bin"), &query, now));
    }

    #[test]
    fn an_upload_url_is_bound_to_size_and_digest() {
        let (signer, now) = (signer(), SystemTime::now());
        let terms = UploadTerms {
            size_bytes: 5,
            sha256: "ab".repeat(32),
        };
        let target = signer.upload_target(&key("a"), &terms, HOUR, now);
        assert_eq!(target.expires_in, 3600);
        let query = query_of(target.url.expose());
        assert_eq!(
            signer.permitted_upload(&key("a"), &query, now),
            Some(PermittedUpload::Exactly(terms))
        );
        assert!(!signer.permits_download(&key("a"), &query, now));
        let larger = SignedQuery {
            size: Some(6),
            ..query.clone()
        };
        assert!(signer.permitted_upload(&key("a"), &larger, now).is_none());
        let other = SignedQuery {
            sha256: Some("cd".repeat(32)),
            ..query
        };
        assert!(signer.permitted_upload(&key("a"), &other, now).is_none());
    }

    #[test]
    fn an_open_upload_url_is_bound_to_its_key_and_its_limit() {
        let (signer, now) = (signer(), SystemTime::now());
        let url = signer.open_upload_url(&key("a"), 500, HOUR, now);
        let query = query_of(url.expose());
        let permitted = signer.permitted_upload(&key("a"), &query, now);
        assert_eq!(permitted, Some(PermittedUpload::AtMost(500)));
        assert!(signer.permitted_upload(&key("b"), &query, now).is_none());
        assert!(
            signer
                .permitted_upload(&key("a"), &query, now + HOUR)
                .is_none()
        );
        assert!(!signer.permits_download(&key("a"), &query, now));
        let most = Some(501);
        let larger = SignedQuery { most, ..query };
        assert!(signer.permitted_upload(&key("a"), &larger, now).is_none());
    }
}
