//! Signing in and what comes with it, over a real socket.

use reqwest::Method;
use serde_json::json;

use crate::testing::{ADMIN_EMAIL, ADMIN_PASSWORD, Platform, answer};

#[actix_web::test]
async fn a_login_gives_a_token_that_works_until_the_logout() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    assert!(admin.token.starts_with("ses_"));
    let (status, me) = admin.get("/api/me").await;
    assert_eq!(
        (status.as_u16(), me["email"].as_str()),
        (200, Some(ADMIN_EMAIL))
    );
    assert_eq!(me["role"], "admin");
    assert_eq!(admin.post("/api/auth/logout", json!({})).await.0, 204);
    let (status, refused) = admin.get("/api/me").await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (401, Some("unauthenticated"))
    );
}
