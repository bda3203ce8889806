//! User accounts and what their roles may do, over a real socket.

use reqwest::Method;
use serde_json::json;

use super::normalize_email;
use crate::testing::{ADMIN_EMAIL, ADMIN_PASSWORD, Platform};

#[actix_web::test]
async fn users_are_made_shown_changed_and_deleted() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let new = json!({ "email": "Ada@Example.org", "password": "user-password", "role": "member",
        "max_concurrent_jobs": 2 });
    let (status, made) = admin.post("/api/users", new.clone()).await;
    assert_eq!(
        (status.as_u16(), made["email"].as_str()),
        (201, Some("ada@example.org")),
        "{made}"
    );
    assert!(!made.to_string().contains("password"), "{made}");
    let (status, taken) = admin.post("/api/users", new).await;
    assert_eq!(
        (status.as_u16(), taken["error"]["code"].as_str()),
        (409, Some("already_exists"))
    );

    let path = format!("/api/users/{}", made["id"]);
    let change = json!({ "max_concurrent_jobs": null, "max_storage_bytes": 100 });
    let (status, changed) = admin.send(Method::PATCH, &path, Some(change)).await;
    assert_eq!(status, 200);
    assert_eq!(
        (
            changed["max_concurrent_jobs"].as_i64(),
            changed["max_storage_bytes"].as_i64()
        ),
        (None, Some(100))
    );
    assert_eq!(changed["role"], "member", "what is absent stays");

    let ada = platform.login("ada@example.org", "user-password").await;
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(ada.get("/api/me").await.0, 401);
    assert_eq!(admin.get(&path).await.0, 404);
    assert_eq!(admin.delete(&path).await.0, 404);
    let again =
        json!({ "email": "ada@example.org", "password": "user-password", "role": "viewer" });
    assert_eq!(
        admin.post("/api/users", again).await.0,
        201,
        "the e-mail is free again"
    );
}

#[actix_web::test]
async fn all_problems_of_a_new_user_are_named_at_once() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let wrong = json!({ "email": "nobody", "password": "short", "role": "member", "max_storage_bytes": -1 });
    let (status, answer) = admin.post("/api/users", wrong).await;
    let fields: Vec<&str> = answer["error"]["details"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        (status.as_u16(), fields),
        (400, vec!["email", "password", "max_storage_bytes"])
    );
    let (_, answer) = admin
        .post(
            "/api/users",
            json!({ "email": "a@b", "password": "long enough", "role": "boss" }),
        )
        .await;
    assert_eq!(answer["error"]["details"][0]["field"], "role");
}

#[actix_web::test]
async fn the_last_administrator_stays() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let (status, answer) = admin.delete("/api/users/1").await;
    assert_eq!(
        (status.as_u16(), answer["error"]["code"].as_str()),
        (409, Some("last_admin"))
    );
    let demotion = json!({ "role": "member" });
    assert_eq!(
        admin
            .send(Method::PATCH, "/api/users/1", Some(demotion.clone()))
            .await
            .0,
        409
    );
    platform.user("second@example.org", "admin").await;
    assert_eq!(
        admin
            .send(Method::PATCH, "/api/users/1", Some(demotion))
            .await
            .0,
        200
    );
    assert_eq!(admin.get("/api/users").await.0, 403);
}

#[actix_web::test]
async fn a_new_password_by_the_administrator_ends_the_user_s_sessions() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let user = platform.user("user@example.org", "member").await;
    let change = json!({ "password": "another-password" });
    assert_eq!(
        admin
            .send(Method::PATCH, "/api/users/2", Some(change))
            .await
            .0,
        200
    );
    assert_eq!(user.get("/api/me").await.0, 401);
    platform.login("user@example.org", "another-password").await;
}

#[actix_web::test]
async fn only_administrators_see_users_and_enrolment_keys() {
    let platform = Platform::start(&[]).await;
    for role in ["viewer", "member"] {
        let user = platform.user(&format!("{role}@example.org"), role).await;
        for (method, path) in [
            (Method::GET, "/api/users"),
            (Method::GET, "/api/users/1"),
            (Method::DELETE, "/api/users/1"),
            (Method::GET, "/api/enrollment-keys"),
            (Method::DELETE, "/api/enrollment-keys/1"),
        ] {
            assert_eq!(
                user.send(method.clone(), path, None).await.0,
                403,
                "{role} {method} {path}"
            );
        }
        assert_eq!(user.post("/api/enrollment-keys", json!({})).await.0, 403);
        let new = json!({ "email": "x@y", "password": "user-password", "role": "admin" });
        assert_eq!(user.post("/api/users", new).await.0, 403);
    }
}

#[actix_web::test]
async fn lists_come_in_pages_newest_first() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for nth in 0..4 {
        platform
            .user(&format!("user{nth}@example.org"), "viewer")
            .await;
    }
    let mut ids = Vec::new();
    let mut path = "/api/users?limit=2".to_owned();
    loop {
        let (_, page) = admin.get(&path).await;
        ids.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|user| user["id"].as_i64().unwrap()),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/users?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(ids, [5, 4, 3, 2, 1]);
    for wrong in [
        "limit=0",
        "limit=x",
        "cursor=x",
        "what=1",
        "limit=1&limit=2",
    ] {
        assert_eq!(
            admin.get(&format!("/api/users?{wrong}")).await.0,
            400,
            "{wrong}"
        );
    }
}

#[actix_web::test]
async fn the_first_administrator_is_made_once_with_a_password_of_its_own_where_none_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let sources = crate::config::Sources::default()
        .with_flag("BIND", "127.0.0.1:0")
        .with_flag("ADMIN_EMAIL", ADMIN_EMAIL)
        .with_flag("DATA_DIR", folder.path().to_str().unwrap());
    let config = crate::config::Config::resolve(&sources).unwrap();
    let first = crate::server::start(config.clone()).await.unwrap();
    let made = first.first_admin.clone().unwrap();
    assert_eq!(made.email, ADMIN_EMAIL);
    let generated = made.generated_password.unwrap().expose().to_owned();
    assert!(generated.len() >= 20);
    first.stop().await;

    let platform = Platform::start_in(folder, &[]).await;
    assert!(
        platform.server.first_admin.is_none(),
        "an administrator exists already"
    );
    platform.login(ADMIN_EMAIL, &generated).await;
    let with_setting = json!({ "email": ADMIN_EMAIL, "password": ADMIN_PASSWORD });
    let refused = platform
        .request(Method::POST, "/api/auth/login")
        .json(&with_setting)
        .send()
        .await
        .unwrap();
    assert_eq!(
        refused.status(),
        401,
        "ADMIN_PASSWORD counts at the first start only"
    );
}

#[actix_web::test]
async fn a_second_platform_in_the_same_folder_is_refused() {
    let platform = Platform::start(&[]).await;
    let sources = crate::config::Sources::default()
        .with_flag("BIND", "127.0.0.1:0")
        .with_flag("DATA_DIR", platform.folder.path().to_str().unwrap());
    let config = crate::config::Config::resolve(&sources).unwrap();
    let refused = crate::server::start(config).await.err().unwrap();
    assert!(
        refused.to_string().contains("in use by another platform"),
        "{refused}"
    );
    Platform::start_in(platform.stop().await, &[]).await;
}

#[test]
fn an_e_mail_address_has_two_sides_and_no_spaces() {
    assert_eq!(
        normalize_email(" Ada@Example.ORG ").unwrap(),
        "ada@example.org"
    );
    assert!(normalize_email("admin@localhost").is_ok());
    let long = format!("{}@b", "a".repeat(300));
    for wrong in ["", "ada", "@x", "ada@", "a@b@c", "a b@c", "a\n@b", &long] {
        assert!(normalize_email(wrong).is_err(), "{wrong:?}");
    }
}
