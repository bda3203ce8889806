//! What the store does when things go wrong.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::object_store::StoredObject;
use super::writer::RESERVED_BYTES;
use super::*;

const SHA256_OF_HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn store_in(folder: &Path) -> LocalStore {
    let base = url::Url::parse("http://127.0.0.1:1/").unwrap();
    LocalStore::open(&folder.join("storage"), UrlSigner::new(&[1; 32], base)).unwrap()
}

fn key(text: &str) -> StorageKey {
    StorageKey::parse(text).unwrap()
}

fn exactly(size_bytes: u64, sha256: &str) -> Expected {
    Expected::exactly(&UploadTerms {
        size_bytes,
        sha256: sha256.to_owned(),
    })
}

async fn put(
    store: &LocalStore,
    at: &str,
    bytes: &'static [u8],
) -> Result<StoredObject, StorageError> {
    let mut writer = store.create(&key(at), Expected::at_most(1 << 20)).await?;
    writer.write(Bytes::from_static(bytes)).await?;
    writer.finish().await
}

async fn read(store: &LocalStore, at: &str, range: Option<ByteRange>) -> Vec<u8> {
    let object = store.open(&key(at), range).await.unwrap();
    let chunks: Vec<Bytes> = object.chunks.map(Result::unwrap).collect().await;
    chunks.concat()
}

/// Every file below the store's root, whatever its name.
fn files(store: &LocalStore) -> usize {
    let mut count = 0;
    visit_files(&store.root, &mut |_| {
        count += 1;
        Ok(())
    })
    .unwrap();
    count
}

#[tokio::test]
async fn an_object_is_kept_with_its_digest_and_read_wholly_or_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let stored = put(&store, "a/b/hello.txt", b"hello").await.unwrap();
    assert_eq!(
        stored,
        StoredObject {
            size_bytes: 5,
            sha256: SHA256_OF_HELLO.to_owned()
        }
    );
    assert_eq!(read(&store, "a/b/hello.txt", None).await, b"hello");
    assert_eq!(
        read(&store, "a/b/hello.txt", Some(ByteRange::FromTo(1, 3))).await,
        b"ell"
    );
    assert_eq!(
        store.sha256(&key("a/b/hello.txt")).await.unwrap(),
        SHA256_OF_HELLO
    );
    let mode = fs::metadata(store.root.join("a/b/hello.txt"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Promise P4: nothing of an unfinished file is ever seen.
#[tokio::test]
async fn an_object_is_invisible_until_it_is_finished_and_gone_when_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let mut writer = store
        .create(&key("x/y"), Expected::at_most(100))
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"half")).await.unwrap();
    assert!(matches!(
        store.info(&key("x/y")).await,
        Err(StorageError::NotFound)
    ));
    assert!(store.list(&key("x")).await.unwrap().is_empty());
    drop(writer);
    assert_eq!(files(&store), 0);
}

#[tokio::test]
async fn a_new_version_replaces_the_old_one_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    put(&store, "v", b"old").await.unwrap();
    let before = store.info(&key("v")).await.unwrap();
    let mut writer = store
        .create(&key("v"), exactly(5, SHA256_OF_HELLO))
        .await
        .unwrap();
    writer.write(Bytes::from_static(b"jello")).await.unwrap();
    assert!(matches!(
        writer.finish().await,
        Err(StorageError::WrongDigest { .. })
    ));
    assert_eq!(read(&store, "v", None).await, b"old");
    put(&store, "v", b"new").await.unwrap();
    assert_eq!(read(&store, "v", None).await, b"new");
    assert_ne!(store.info(&key("v")).await.unwrap().etag, before.etag);
    assert_eq!(files(&store), 1);
}

/// Promise P4: a file that is not what was announced never appears.
#[tokio::test]
async fn other_bytes_than_those_announced_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    for (bytes, expected) in [
        (&b"hell"[..], "short"),
        (b"jello", "other"),
        (b"hello!", "long"),
    ] {
        let mut writer = store
            .create(&key("z"), exactly(5, SHA256_OF_HELLO))
            .await
            .unwrap();
        let outcome = match writer.write(Bytes::from_static(bytes)).await {
            Ok(()) => writer.finish().await.map(drop),
            Err(error) => Err(error),
        };
        match (expected, outcome) {
            (
                "short",
                Err(StorageError::WrongSize {
                    expected_bytes: 5,
                    found_bytes: 4,
                }),
            )
            | ("other", Err(StorageError::WrongDigest { .. }))
            | ("long", Err(StorageError::TooLarge { limit_bytes: 5 })) => {}
            (_, outcome) => panic!("{expected}: {outcome:?}"),
        }
    }
    assert!(store.list(&key("z")).await.unwrap().is_empty());
}

#[tokio::test]
async fn objects_are_listed_in_order_and_empty_folders_go_with_their_last_object() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    for at in ["job/2/b", "job/2/a", "job/1/x", "other/1"] {
        put(&store, at, b"1").await.unwrap();
    }
    let listed = store.list(&key("job")).await.unwrap();
    let keys: Vec<&str> = listed.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["job/1/x", "job/2/a", "job/2/b"]);
    for object in &listed {
        store.delete(&object.key).await.unwrap();
        store.delete(&object.key).await.unwrap();
    }
    assert!(store.list(&key("job")).await.unwrap().is_empty());
    assert!(!store.root.join("job").exists());
    assert!(store.root.join("other/1").exists());
}

/// G041: a full disk is an error of its own and leaves nothing half; with space again all is well.
#[tokio::test]
async fn g041_a_full_disk_is_told_apart_and_heals() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store_in(folder.path());
    put(&store, "kept", b"kept").await.unwrap();
    store.free_space = |_| Ok(RESERVED_BYTES - 1);
    assert!(matches!(
        put(&store, "new", b"hello").await,
        Err(StorageError::Full)
    ));
    assert_eq!(read(&store, "kept", None).await, b"kept");
    assert_eq!(files(&store), 1);
    store.free_space = free_space;
    put(&store, "new", b"hello").await.unwrap();
}

/// G041: the same when the space ends in the middle of an object, whatever was measured before.
#[tokio::test]
async fn g041_space_that_ends_within_an_object_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let mut writer = LocalWriter::begin(&store, &key("big"), Expected::at_most(1 << 30)).unwrap();
    // Every write to this device fails as one to a full disk does.
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    writer.file = tokio::fs::File::from_std(full);
    let mut writer: Box<dyn ObjectWriter> = Box::new(writer);
    let mut outcome = Ok(());
    for _ in 0..64 {
        outcome = writer.write(Bytes::from(vec![0; 64 << 10])).await;
        if outcome.is_err() {
            break;
        }
    }
    assert!(matches!(outcome, Err(StorageError::Full)), "{outcome:?}");
    drop(writer);
    assert_eq!(files(&store), 0);
}

/// G043: what a crash left behind is removed at the next start, whole objects stay.
#[tokio::test]
async fn g043_unfinished_files_of_a_crash_are_removed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    put(&store, "a/whole", b"whole").await.unwrap();
    let writer = LocalWriter::begin(&store, &key("a/half"), Expected::at_most(10)).unwrap();
    std::mem::forget(writer.partial);
    assert_eq!(files(&store), 2);
    let again = store_in(folder.path());
    assert_eq!(files(&again), 1);
    assert_eq!(read(&again, "a/whole", None).await, b"whole");
}

/// Promise P7, G044: a link within the root leads nowhere, for reading, writing, listing and deleting alike.
#[tokio::test]
async fn g044_links_within_the_root_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink(&outside, store.root.join("link")).unwrap();
    symlink(outside.join("secret"), store.root.join("file")).unwrap();
    for at in ["link/secret", "file", "link/new/deep"] {
        assert!(store.open(&key(at), None).await.is_err(), "{at} was opened");
        assert!(store.info(&key(at)).await.is_err(), "{at} was looked at");
        assert!(store.sha256(&key(at)).await.is_err(), "{at} was read");
        assert!(
            put(&store, at, b"overwritten").await.is_err(),
            "{at} was written"
        );
        assert!(store.delete(&key(at)).await.is_err(), "{at} was deleted");
    }
    assert!(store.list(&key("link")).await.is_err());
    assert_eq!(
        fs::read_to_string(outside.join("secret")).unwrap(),
        "secret"
    );
    assert!(!outside.join("new").exists());
}

#[tokio::test]
async fn a_folder_is_no_object() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    put(&store, "a/b", b"1").await.unwrap();
    assert!(matches!(
        store.open(&key("a"), None).await,
        Err(StorageError::NotFound)
    ));
    assert!(matches!(
        store.open(&key("a/b/c"), None).await,
        Err(StorageError::NotFound)
    ));
    assert!(put(&store, "a", b"2").await.is_err());
    assert_eq!(read(&store, "a/b", None).await, b"1");
}

#[tokio::test]
async fn the_store_shows_whether_it_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store_in(folder.path());
    store.check().await.unwrap();
    assert_eq!(files(&store), 0);
    store.free_space = |_| Ok(0);
    assert!(store.check().await.is_err());
}
