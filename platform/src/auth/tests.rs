//! Signing in and what comes with it, over a real socket.

use chrono::TimeDelta;
use reqwest::header;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{CSRF_HEADER, Credential, SESSION_COOKIE, ws_tokens};
use crate::database::{Database, DatabaseError, now};
use crate::testing::{ADMIN_EMAIL, ADMIN_PASSWORD, Platform, answer};

fn code(answer: &(StatusCode, Value)) -> (u16, &str) {
    (
        answer.0.as_u16(),
        answer.1["error"]["code"].as_str().unwrap_or_default(),
    )
}

async fn try_login(platform: &Platform, email: &str, password: &str) -> (StatusCode, Value) {
    let body = json!({ "email": email, "password": password });
    answer(
        platform
            .request(Method::POST, "/api/auth/login")
            .json(&body)
            .send()
            .await
            .unwrap(),
    )
    .await
}

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
    assert_eq!(code(&admin.get("/api/me").await), (401, "unauthenticated"));
}

#[actix_web::test]
async fn failed_logins_look_alike_and_are_held_up_after_ten() {
    let platform = Platform::start(&[]).await;
    let unknown = try_login(&platform, "nobody@example.org", "wrong-password").await;
    let wrong = try_login(&platform, ADMIN_EMAIL, "wrong-password").await;
    assert_eq!(code(&unknown), (401, "login_failed"));
    assert_eq!(unknown.1, wrong.1);
    for _ in 1..10 {
        assert_eq!(
            code(&try_login(&platform, ADMIN_EMAIL, "wrong-password").await),
            (401, "login_failed")
        );
    }
    let body = json!({ "email": ADMIN_EMAIL, "password": ADMIN_PASSWORD });
    let held = platform
        .request(Method::POST, "/api/auth/login")
        .json(&body)
        .send()
        .await
        .unwrap();
    let wait: u64 = held.headers()[header::RETRY_AFTER]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(code(&answer(held).await), (429, "rate_limited"));
    assert_eq!(
        code(&try_login(&platform, "other@example.org", "wrong-password").await).0,
        401
    );
}

#[actix_web::test]
async fn the_cookie_is_closed_to_scripts_and_changes_need_its_csrf_token() {
    let platform = Platform::start(&[]).await;
    let body = json!({ "email": ADMIN_EMAIL, "password": ADMIN_PASSWORD });
    let login = platform
        .request(Method::POST, "/api/auth/login")
        .json(&body)
        .send()
        .await
        .unwrap();
    let cookie = login.headers()[header::SET_COOKIE]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        cookie.starts_with(&format!("{SESSION_COOKIE}=ses_")),
        "{cookie}"
    );
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure"), "there is no TLS here");
    let csrf = answer(login).await.1["csrf_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let pair = cookie.split(';').next().unwrap();

    let request = |method, path| platform.request(method, path).header(header::COOKIE, pair);
    let (status, me) = answer(request(Method::GET, "/api/me").send().await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), me["csrf_token"].as_str()),
        (200, Some(csrf.as_str()))
    );
    let bare = answer(request(Method::POST, "/api/ws-token").send().await.unwrap()).await;
    assert_eq!(code(&bare), (403, "csrf_required"));
    let forged = request(Method::POST, "/api/ws-token").header(CSRF_HEADER, "0".repeat(64));
    assert_eq!(
        code(&answer(forged.send().await.unwrap()).await),
        (403, "csrf_required")
    );
    let right = request(Method::POST, "/api/ws-token").header(CSRF_HEADER, &csrf);
    assert_eq!(answer(right.send().await.unwrap()).await.0, 200);
    let wrong_header = request(Method::GET, "/api/me").bearer_auth("ses_wrong");
    assert_eq!(
        wrong_header.send().await.unwrap().status(),
        401,
        "a header counts before the cookie"
    );
}

#[actix_web::test]
async fn behind_tls_the_cookie_is_sent_over_tls_only() {
    let platform = Platform::start(&[("PUBLIC_URL", "https://yard.example/base")]).await;
    let body = json!({ "email": ADMIN_EMAIL, "password": ADMIN_PASSWORD });
    let login = platform
        .request(Method::POST, "/api/auth/login")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert!(
        login.headers()[header::SET_COOKIE]
            .to_str()
            .unwrap()
            .contains("Secure")
    );
    assert!(
        login
            .headers()
            .contains_key(header::STRICT_TRANSPORT_SECURITY)
    );
    let (_, ws) = platform
        .admin()
        .await
        .post("/api/ws-token", json!({}))
        .await;
    assert!(
        ws["url"]
            .as_str()
            .unwrap()
            .starts_with("wss://yard.example/base/ws/user/1?token=wst_"),
        "{ws}"
    );
}

#[actix_web::test]
async fn a_new_password_ends_all_other_sessions() {
    let platform = Platform::start(&[]).await;
    let (here, elsewhere) = (platform.admin().await, platform.admin().await);
    let change =
        |current: &str, new: &str| json!({ "current_password": current, "new_password": new });
    let wrong = here
        .post("/api/me/password", change("wrong-password", "new-password"))
        .await;
    assert_eq!(code(&wrong), (401, "login_failed"));
    let short = here
        .post("/api/me/password", change(ADMIN_PASSWORD, "short"))
        .await;
    assert_eq!(code(&short), (400, "invalid_request"));
    assert_eq!(short.1["error"]["details"][0]["field"], "new_password");
    assert_eq!(
        here.post("/api/me/password", change(ADMIN_PASSWORD, "new-password"))
            .await
            .0,
        204
    );
    assert_eq!(here.get("/api/me").await.0, 200);
    assert_eq!(elsewhere.get("/api/me").await.0, 401);
    assert_eq!(
        try_login(&platform, ADMIN_EMAIL, ADMIN_PASSWORD).await.0,
        401
    );
    assert_eq!(
        try_login(&platform, ADMIN_EMAIL, "new-password").await.0,
        200
    );
}

#[actix_web::test]
async fn an_api_token_has_the_lower_of_its_role_and_its_owner_s() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let too_high = member
        .post("/api/api-tokens", json!({ "name": "x", "role": "admin" }))
        .await;
    assert_eq!(code(&too_high), (403, "forbidden"));
    let (status, made) = admin
        .post("/api/api-tokens", json!({ "name": "ci", "role": "viewer" }))
        .await;
    assert_eq!(status, 201, "{made}");
    let text = made["token"].as_str().unwrap();
    assert!(text.starts_with("usr_") && text.len() == 4 + 43);
    let viewer = crate::testing::Session {
        platform: &platform,
        token: text.to_owned(),
    };
    assert_eq!(viewer.get("/api/me").await.1["role"], "viewer");
    assert_eq!(code(&viewer.get("/api/users").await), (403, "forbidden"));
    let change = json!({ "current_password": ADMIN_PASSWORD, "new_password": "new-password" });
    assert_eq!(
        code(&viewer.post("/api/me/password", change).await),
        (403, "forbidden")
    );

    let (_, list) = admin.get("/api/api-tokens").await;
    assert_eq!(list["items"][0]["name"], "ci");
    assert!(!list.to_string().contains(text), "the text is shown once");
    let path = format!("/api/api-tokens/{}", made["id"]);
    assert_eq!(member.delete(&path).await.0, 404, "another's token");
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(viewer.get("/api/me").await.0, 401);
    assert_eq!(admin.delete(&path).await.0, 404);
}

#[actix_web::test]
async fn an_api_token_ends_when_it_says() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    for seconds in [0, -5, i64::MAX] {
        let refused = admin
            .post(
                "/api/api-tokens",
                json!({ "name": "x", "expires_in_seconds": seconds }),
            )
            .await;
        assert_eq!(
            refused.1["error"]["details"][0]["field"], "expires_in_seconds",
            "{seconds}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(&folder.path().join("t.db")).unwrap();
    let found = database
        .write::<_, DatabaseError, _>(|c| {
            let user = crate::users::store::NewUser {
                email: "a@b".to_owned(),
                password_hash: String::new(),
                role: super::Role::Member,
                max_concurrent_jobs: None,
                max_storage_bytes: None,
            };
            let id = crate::users::store::insert(c, &user, now())?;
            let end = now() + TimeDelta::seconds(5);
            let (_, token) =
                super::api_tokens::insert(c, id, "x", super::Role::Member, Some(end), now())?;
            let before =
                super::api_tokens::find(c, &token.hash, end - TimeDelta::seconds(1))?.is_some();
            Ok((
                before,
                super::api_tokens::find(c, &token.hash, end)?.is_some(),
            ))
        })
        .await
        .unwrap();
    assert_eq!(found, (true, false));
}

/// Promise P5: what is stored gives no token and no password away.
#[actix_web::test]
async fn tokens_and_passwords_are_nowhere_in_the_data_folder() {
    let platform = Platform::start(&[]).await;
    let admin = platform.admin().await;
    let (_, ws) = admin.post("/api/ws-token", json!({})).await;
    let (_, key) = admin.post("/api/enrollment-keys", json!({})).await;
    let secrets = [
        admin.token.clone(),
        ws["token"].as_str().unwrap().into(),
        key["key"].as_str().unwrap().into(),
    ];
    let folder = platform.stop().await;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        for secret in secrets.iter().map(String::as_str).chain([ADMIN_PASSWORD]) {
            let holds = bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes());
            assert!(!holds, "{} holds {secret}", path.display());
        }
    }
}

/// A database with two users, 1 and 2, and a session of user 1.
async fn two_users(folder: &std::path::Path) -> (Database, Credential) {
    let database = Database::open(&folder.join("t.db")).unwrap();
    let session = database
        .write::<_, DatabaseError, _>(|c| {
            for email in ["one@example.org", "two@example.org"] {
                let user = crate::users::store::NewUser {
                    email: email.to_owned(),
                    password_hash: String::new(),
                    role: super::Role::Member,
                    max_concurrent_jobs: None,
                    max_storage_bytes: None,
                };
                crate::users::store::insert(c, &user, now())?;
            }
            let token = super::sessions::insert(c, 1, now())?;
            Ok(super::sessions::find(c, &token.hash, now())?
                .unwrap()
                .session_id)
        })
        .await
        .unwrap();
    (database, Credential::Session(session))
}

async fn ws_token(database: &Database, credential: Credential) -> String {
    let write = move |c: &mut _| ws_tokens::insert(c, 1, credential, now());
    database
        .write::<_, DatabaseError, _>(write)
        .await
        .unwrap()
        .secret
        .expose()
        .to_owned()
}

async fn redeemed(database: &Database, token: &str, user_id: i64, after: TimeDelta) -> bool {
    let token = token.to_owned();
    let write = move |c: &mut _| ws_tokens::redeem(c, &token, user_id, now() + after);
    database
        .write::<_, DatabaseError, _>(write)
        .await
        .unwrap()
        .is_some()
}

/// G023: sixty seconds, one use, one user; any try uses the token up.
#[actix_web::test]
async fn g023_a_ws_token_opens_once_in_time_for_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let (database, credential) = two_users(folder.path()).await;
    let at_once = TimeDelta::zero();

    let token = ws_token(&database, credential).await;
    assert!(redeemed(&database, &token, 1, at_once).await);
    assert!(
        !redeemed(&database, &token, 1, at_once).await,
        "a second use"
    );

    let token = ws_token(&database, credential).await;
    assert!(redeemed(&database, &token, 1, TimeDelta::seconds(59)).await);
    let token = ws_token(&database, credential).await;
    assert!(
        !redeemed(&database, &token, 1, TimeDelta::seconds(61)).await,
        "expired"
    );

    let token = ws_token(&database, credential).await;
    assert!(
        !redeemed(&database, &token, 2, at_once).await,
        "another user"
    );
    assert!(
        !redeemed(&database, &token, 1, at_once).await,
        "used up by the wrong try"
    );
    assert!(!redeemed(&database, "wst_unknown", 1, at_once).await);
}

/// G023: of many tries at once exactly one succeeds.
#[actix_web::test]
async fn g023_of_parallel_tries_with_one_token_exactly_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let (database, credential) = two_users(folder.path()).await;
    let token = ws_token(&database, credential).await;
    let tries = (0..20).map(|_| redeemed(&database, &token, 1, TimeDelta::zero()));
    let outcomes = futures_util::future::join_all(tries).await;
    assert_eq!(
        outcomes.into_iter().filter(|succeeded| *succeeded).count(),
        1
    );
}

/// G024: a token that was asked for with a session does not outlive it.
#[actix_web::test]
async fn g024_a_ws_token_is_void_once_its_session_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (database, credential) = two_users(folder.path()).await;
    let token = ws_token(&database, credential).await;
    let Credential::Session(session) = credential else {
        unreachable!()
    };
    database
        .write::<_, DatabaseError, _>(move |c| super::sessions::delete(c, session))
        .await
        .unwrap();
    assert!(!redeemed(&database, &token, 1, TimeDelta::zero()).await);
}

/// G024: open sockets hear of it when what they were opened with is revoked.
#[actix_web::test]
async fn g024_revocations_are_told_to_those_who_listen() {
    use super::Revocation;
    let platform = Platform::start(&[]).await;
    let mut news = platform.server.state.revocations.subscribe();
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    assert_eq!(member.post("/api/auth/logout", json!({})).await.0, 204);
    let Revocation::Session(_) = news.recv().await.unwrap() else {
        panic!("a session was ended")
    };
    let (_, token) = admin.post("/api/api-tokens", json!({ "name": "x" })).await;
    admin
        .delete(&format!("/api/api-tokens/{}", token["id"]))
        .await;
    assert_eq!(
        news.recv().await.unwrap(),
        Revocation::ApiToken(token["id"].as_i64().unwrap())
    );
    admin
        .send(
            Method::PATCH,
            "/api/users/2",
            Some(json!({ "role": "viewer" })),
        )
        .await;
    assert_eq!(news.recv().await.unwrap(), Revocation::User(2));
    admin.delete("/api/users/2").await;
    assert_eq!(news.recv().await.unwrap(), Revocation::User(2));
}
