//! Data sets in other formats than JSON lines.

use serde_json::Value;

use super::{listed, stored_files};
use crate::testing::Platform;

/// A Parquet file of `tests/golden`.
fn golden(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/parquet/");
    std::fs::read(format!("{folder}{name}.parquet")).unwrap()
}

#[actix_web::test]
async fn every_format_is_taken_in_by_its_name_or_by_the_files_and_shown() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for (query, file, places) in [
        (
            "name=a&format=json",
            b"[{\"text\":\"a\"},\n{\"text\":\"b\"}]".to_vec(),
            ["element 1 (line 1)", "element 2 (line 2)"],
        ),
        (
            "name=a.csv",
            b"id,text\r\n1,a\r\n2,b\r\n".to_vec(),
            ["line 2", "line 3"],
        ),
        (
            "name=a&format=tsv",
            b"id\ttext\n1\ta\n2\tb\n".to_vec(),
            ["line 2", "line 3"],
        ),
        ("name=a.txt", b"a\n\n\nb".to_vec(), ["line 1", "line 4"]),
    ] {
        let (status, made) = admin.upload(query, file).await;
        assert_eq!(
            (status.as_u16(), made["rows"].as_i64()),
            (201, Some(2)),
            "{query}: {made}"
        );
        let path = format!("/api/datasets/{}/preview", made["id"]);
        let (_, preview) = admin.get(&path).await;
        for (item, (place, text)) in preview["items"]
            .as_array()
            .unwrap()
            .iter()
            .zip(places.into_iter().zip(["a", "b"]))
        {
            assert_eq!(
                (&item["place"], &item["row"]["text"]),
                (&place.into(), &text.into()),
                "{query}"
            );
        }
    }
}

#[actix_web::test]
async fn a_parquet_file_is_checked_once_it_is_stored_and_shown_by_row() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let (status, made) = admin
        .upload(
            "name=chats&format=parquet&max_bad_rows=3",
            golden("messages"),
        )
        .await;
    assert_eq!(status, 201, "{made}");
    let count = |name: &str| made[name].as_i64();
    assert_eq!(
        (count("rows"), count("bad_rows"), count("untrainable_rows")),
        (Some(2), Some(3), Some(1))
    );
    assert_eq!(made["problems"][1]["place"], "row 4");
    assert_eq!(made["problems"][1]["line"], 4);
    let path = format!("/api/datasets/{}", made["id"]);
    let (_, preview) = admin.get(&format!("{path}/preview?limit=3")).await;
    let items = preview["items"].as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert_eq!(items[0]["row"]["messages"][0]["content"], "hello");
    assert_eq!(
        (&items[2]["place"], &items[2]["row"]),
        (&"row 3".into(), &Value::Null)
    );
    assert_eq!(admin.delete(&path).await.0, 204);

    let (status, refused) = admin
        .upload("name=chats&format=parquet", golden("messages"))
        .await;
    assert_eq!(
        (status.as_u16(), &refused["error"]["code"]),
        (422, &"bad_rows".into())
    );
    assert_eq!(
        (
            listed(&admin).await,
            stored_files(&platform.folder.path().join("storage"))
        ),
        (0, 0)
    );
}

#[actix_web::test]
async fn a_file_that_is_not_what_it_is_said_to_be_is_refused_with_what_it_is() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for (query, file, expected) in [
        (
            "name=a",
            golden("messages"),
            "file: this is not jsonl: it is a Parquet file",
        ),
        (
            "name=a&format=parquet",
            b"text\na\n".to_vec(),
            "file: this is not parquet: it does not begin with `PAR1`",
        ),
        (
            "name=a.csv",
            b"[{\"text\":\"a\"}]".to_vec(),
            "file: this is not csv: it begins with `[`",
        ),
        (
            "name=a.csv",
            b"\xff\xfet\0e\0".to_vec(),
            "file: this is not csv: it is UTF-16",
        ),
        (
            "name=a.json",
            b"[{\"text\":\"a\"},]".to_vec(),
            "line 1: after element 1: a comma stands before",
        ),
        (
            "name=a.csv",
            b"id,Text\n1,a\n".to_vec(),
            "file: no known column: there are `id`, `Text`",
        ),
        ("name=a.csv", b"text\n".to_vec(), "the file holds no rows"),
        ("name=a.parquet", Vec::new(), "the file holds no rows"),
    ] {
        // Damage is no bad row: none may be skipped.
        let (status, refused) = admin
            .upload(&format!("{query}&max_bad_rows=99"), file)
            .await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert_eq!(status, 422, "{query}: {refused}");
        assert!(message.starts_with(expected), "{query}: {message}");
    }
    assert_eq!(
        (
            listed(&admin).await,
            stored_files(&platform.folder.path().join("storage"))
        ),
        (0, 0)
    );
}
