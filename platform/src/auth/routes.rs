//! REST routes around signing in: login, logout, the own account, API tokens, WebSocket tokens.

use actix_web::cookie::{Cookie, SameSite};
use actix_web::{HttpRequest, HttpResponse, web};
use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use std::time::Instant;
use trainyard_shared::Secret;
use utoipa::ToSchema;

use super::{
    Credential, CurrentUser, Revocation, Role, SESSION_COOKIE, api_tokens, client_address,
    password, sessions, ws_tokens,
};
use crate::database::{DatabaseError, now, shown_time};
use crate::error::{ApiError, ErrorCode, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::server::AppState;
use crate::users::{self, UserView, normalize_email};

/// Longest name of an API token, in characters.
const MAX_NAME_CHARACTERS: usize = 100;

/// What a login takes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    email: String,
    #[schema(value_type = String)]
    password: Secret,
}

/// What a login gives.
#[derive(Serialize, ToSchema)]
pub struct LoginAnswer {
    /// For `Authorization: Bearer`.
    #[schema(value_type = String)]
    token: Secret,
    /// What `x-csrf-token` must hold where the cookie is used instead.
    csrf_token: String,
    user: UserView,
}

/// Signs in. All failures look alike.
#[utoipa::path(post, path = "/api/auth/login", tag = "accounts", security(()), request_body = LoginRequest, responses(
    (status = 200, body = LoginAnswer, description = "signed in; the token is also set as an HttpOnly cookie"),
    (status = 401, description = "e-mail or password is wrong"),
    (status = 429, description = "too many failures; see Retry-After"),
))]
pub async fn login(
    state: web::Data<AppState>,
    request: HttpRequest,
    StrictJson(body): StrictJson<LoginRequest>,
) -> Result<HttpResponse, ApiError> {
    let address = client_address(&request, &state.config);
    // What is no e-mail address is nobody's.
    let email = normalize_email(&body.email).unwrap_or_default();
    state
        .login_failures
        .check(address, &email, Instant::now())
        .map_err(|wait| {
            ApiError::new(
                ErrorCode::RateLimited,
                "too many failed logins; wait a while",
            )
            .with_retry_after(wait)
        })?;
    // Counted beforehand, so that tries made at once do not slip through together.
    state
        .login_failures
        .record_failure(address, &email, Instant::now());
    let wanted = email.clone();
    let user = state
        .database
        .read::<_, DatabaseError, _>(move |c| users::store::find_by_email(c, &wanted))
        .await?;
    let stored = user.as_ref().map(|user| user.password_hash.clone());
    if !password::verify(body.password, stored).await? {
        tracing::info!(client.address = %address, "login failed");
        return Err(ApiError::new(
            ErrorCode::LoginFailed,
            "e-mail or password is wrong",
        ));
    }
    let Some(user) = user else {
        return Err(ApiError::internal("a password fitted nobody"));
    };
    state.login_failures.forgive(address, &email);
    let user_id = user.id;
    let token = state
        .database
        .write::<_, DatabaseError, _>(move |c| sessions::insert(c, user_id, now()))
        .await?;
    tracing::info!(user.id = user_id, client.address = %address, "signed in");
    let cookie = session_cookie(&state, token.secret.expose(), sessions::LIFETIME);
    Ok(HttpResponse::Ok().cookie(cookie).json(LoginAnswer {
        csrf_token: state.secret.csrf_token(&token.hash),
        token: token.secret,
        user: user.into(),
    }))
}

/// Ends the session (or revokes the API token) that the request was made with.
#[utoipa::path(post, path = "/api/auth/logout", tag = "accounts", responses((status = 204, description = "signed out")))]
pub async fn logout(
    state: web::Data<AppState>,
    user: CurrentUser,
) -> Result<HttpResponse, ApiError> {
    let credential = user.credential;
    state
        .database
        .write::<_, DatabaseError, _>(move |connection| match credential {
            Credential::Session(id) => sessions::delete(connection, id),
            Credential::ApiToken(id) => api_tokens::delete(connection, user.id, id).map(drop),
        })
        .await?;
    state.revocations.publish(match credential {
        Credential::Session(id) => Revocation::Session(id),
        Credential::ApiToken(id) => Revocation::ApiToken(id),
    });
    Ok(HttpResponse::NoContent()
        .cookie(session_cookie(&state, "", TimeDelta::zero()))
        .finish())
}

/// The own account.
#[derive(Serialize, ToSchema)]
pub struct Me {
    #[serde(flatten)]
    user: UserView,
    /// What `x-csrf-token` must hold where the cookie is used.
    csrf_token: String,
}

/// The account that the request was made with.
#[utoipa::path(get, path = "/api/me", tag = "accounts", responses((status = 200, body = Me, description = "the account")))]
pub async fn me(state: web::Data<AppState>, user: CurrentUser) -> Result<web::Json<Me>, ApiError> {
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| users::store::get(c, user.id))
        .await?;
    let mut view = UserView::from(found);
    view.role = user.role;
    Ok(web::Json(Me {
        user: view,
        csrf_token: user.csrf_token,
    }))
}

/// A change of the own password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordRequest {
    #[schema(value_type = String)]
    current_password: Secret,
    #[schema(value_type = String)]
    new_password: Secret,
}

/// Changes the own password and ends all other sessions. An API token cannot do this.
#[utoipa::path(post, path = "/api/me/password", tag = "accounts", request_body = PasswordRequest, responses(
    (status = 204, description = "changed"),
    (status = 401, description = "the current password is wrong"),
    (status = 403, description = "made with an API token"),
))]
pub async fn change_password(
    state: web::Data<AppState>,
    request: HttpRequest,
    user: CurrentUser,
    StrictJson(body): StrictJson<PasswordRequest>,
) -> Result<HttpResponse, ApiError> {
    let Credential::Session(session_id) = user.credential else {
        return Err(ApiError::new(
            ErrorCode::Forbidden,
            "sign in with the password to change it",
        ));
    };
    password::check_strength(body.new_password.expose())
        .map_err(|message| ApiError::invalid_field("new_password", message))?;
    let address = client_address(&request, &state.config);
    state
        .login_failures
        .check(address, &user.email, Instant::now())
        .map_err(|wait| {
            ApiError::new(ErrorCode::RateLimited, "too many failures; wait a while")
                .with_retry_after(wait)
        })?;
    state
        .login_failures
        .record_failure(address, &user.email, Instant::now());
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| users::store::get(c, user.id))
        .await?;
    if !password::verify(body.current_password, Some(found.password_hash)).await? {
        return Err(ApiError::new(
            ErrorCode::LoginFailed,
            "the current password is wrong",
        ));
    }
    state.login_failures.forgive(address, &user.email);
    let hashed = password::hash(body.new_password).await?;
    let ended = state
        .database
        .write::<_, DatabaseError, _>(move |connection| {
            users::store::set_password(connection, user.id, &hashed)?;
            sessions::delete_others(connection, user.id, Some(session_id))
        })
        .await?;
    for id in ended {
        state.revocations.publish(Revocation::Session(id));
    }
    Ok(HttpResponse::NoContent().finish())
}

/// A personal API token, without its text.
#[derive(Serialize, ToSchema)]
pub struct ApiTokenView {
    id: i64,
    name: String,
    role: Role,
    created_at: DateTime<Utc>,
    /// Null: it does not end by itself.
    expires_at: Option<DateTime<Utc>>,
}

impl From<api_tokens::ApiToken> for ApiTokenView {
    fn from(token: api_tokens::ApiToken) -> Self {
        Self {
            id: token.id,
            name: token.name,
            role: Role::from_stored(&token.role),
            created_at: shown_time(token.created_at),
            expires_at: token.expires_at.map(shown_time),
        }
    }
}

/// The own API tokens, newest first.
#[utoipa::path(get, path = "/api/api-tokens", tag = "accounts", params(PageQuery),
    responses((status = 200, body = Page<ApiTokenView>, description = "the tokens")))]
pub async fn list_api_tokens(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<ApiTokenView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let read = move |connection: &mut _| api_tokens::list(connection, user.id, before, limit + 1);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    Ok(web::Json(Page::of(
        rows,
        limit,
        |token| token.id,
        ApiTokenView::from,
    )))
}

/// What a new API token is to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiTokenRequest {
    name: String,
    /// No higher than the own role, which it is when absent.
    role: Option<Role>,
    /// Absent: it does not end by itself.
    expires_in_seconds: Option<i64>,
}

/// A new API token with its text, which is shown this once.
#[derive(Serialize, ToSchema)]
pub struct NewApiToken {
    id: i64,
    name: String,
    role: Role,
    expires_at: Option<DateTime<Utc>>,
    #[schema(value_type = String)]
    token: Secret,
}

/// Makes a personal API token.
#[utoipa::path(post, path = "/api/api-tokens", tag = "accounts", request_body = ApiTokenRequest, responses(
    (status = 201, body = NewApiToken, description = "made; the text is shown this once"),
    (status = 403, description = "the role is higher than the own one"),
))]
pub async fn create_api_token(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<ApiTokenRequest>,
) -> Result<HttpResponse, ApiError> {
    let mut problems = Vec::new();
    let name = body.name.trim().to_owned();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARACTERS {
        problems.push(FieldProblem::new(
            "name",
            format!("must have 1 to {MAX_NAME_CHARACTERS} characters"),
        ));
    }
    let expires_at = expiry(body.expires_in_seconds, now())
        .map_err(|problem| problems.push(problem))
        .ok()
        .flatten();
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    let role = body.role.unwrap_or(user.role);
    user.require(role)?;
    let shown_name = name.clone();
    let (id, token) = state
        .database
        .write::<_, DatabaseError, _>(move |c| {
            api_tokens::insert(c, user.id, &name, role, expires_at, now())
        })
        .await?;
    let expires_at = expires_at.map(shown_time);
    Ok(HttpResponse::Created().json(NewApiToken {
        id,
        name: shown_name,
        role,
        expires_at,
        token: token.secret,
    }))
}

fn expiry(seconds: Option<i64>, now: NaiveDateTime) -> Result<Option<NaiveDateTime>, FieldProblem> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    TimeDelta::try_seconds(seconds)
        .filter(|span| *span > TimeDelta::zero() && *span <= TimeDelta::days(3660))
        .map(|span| Some(now + span))
        .ok_or_else(|| {
            FieldProblem::new(
                "expires_in_seconds",
                "must lie between 1 second and ten years",
            )
        })
}

/// Revokes one of the own API tokens.
#[utoipa::path(delete, path = "/api/api-tokens/{id}", tag = "accounts", params(("id" = i64, Path)), responses(
    (status = 204, description = "revoked"),
    (status = 404, description = "no such token"),
))]
pub async fn delete_api_token(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<i64>,
) -> Result<HttpResponse, ApiError> {
    let write = move |connection: &mut _| api_tokens::delete(connection, user.id, id);
    if !state.database.write::<_, DatabaseError, _>(write).await? {
        return Err(ApiError::not_found("API token"));
    }
    state.revocations.publish(Revocation::ApiToken(id));
    Ok(HttpResponse::NoContent().finish())
}

/// What opens a dashboard's WebSocket.
#[derive(Serialize, ToSchema)]
pub struct WsToken {
    #[schema(value_type = String)]
    token: Secret,
    user_id: i64,
    /// Seconds.
    expires_in: i64,
    /// The WebSocket's address with the token in it.
    #[schema(value_type = String)]
    url: Secret,
}

/// Makes a token for one WebSocket connection of the own user.
#[utoipa::path(post, path = "/api/ws-token", tag = "accounts",
    responses((status = 200, body = WsToken, description = "valid for 60 seconds and one use")))]
pub async fn create_ws_token(
    state: web::Data<AppState>,
    user: CurrentUser,
) -> Result<web::Json<WsToken>, ApiError> {
    let (user_id, credential) = (user.id, user.credential);
    let token = state
        .database
        .write::<_, DatabaseError, _>(move |c| ws_tokens::insert(c, user_id, credential, now()))
        .await?;
    let url = websocket_url(&state, user_id, token.secret.expose())?;
    Ok(web::Json(WsToken {
        token: token.secret,
        user_id,
        expires_in: ws_tokens::LIFETIME.num_seconds(),
        url,
    }))
}

fn websocket_url(state: &AppState, user_id: i64, token: &str) -> Result<Secret, ApiError> {
    let mut url = state
        .public_url
        .join(&format!("ws/user/{user_id}"))
        .map_err(ApiError::internal)?;
    let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
    url.set_scheme(scheme)
        .map_err(|()| ApiError::internal("the public address has no WebSocket form"))?;
    url.query_pairs_mut().append_pair("token", token);
    Ok(Secret::from(String::from(url)))
}

fn session_cookie(state: &AppState, value: &str, lifetime: TimeDelta) -> Cookie<'static> {
    Cookie::build(SESSION_COOKIE, value.to_owned())
        .path("/")
        .http_only(true)
        .same_site(SameSite::Strict)
        .secure(state.public_url.scheme() == "https")
        .max_age(actix_web::cookie::time::Duration::seconds(
            lifetime.num_seconds(),
        ))
        .finish()
}
