//! REST routes of enrolment keys, for administrators.

use actix_web::{HttpResponse, web};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use trainyard_shared::Secret;
use utoipa::ToSchema;

use super::store::{self, EnrollmentKey, NewEnrollmentKey};
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now, shown_time};
use crate::error::{ApiError, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::server::AppState;

/// How long a key is valid where nothing else is asked for.
const DEFAULT_LIFETIME: TimeDelta = TimeDelta::hours(24);
/// Longest that can be asked for.
const MAX_LIFETIME: TimeDelta = TimeDelta::days(3660);
/// Longest prefix of workers' names, in characters.
const MAX_PREFIX_CHARACTERS: usize = 40;

/// An enrolment key, without its text.
#[derive(Serialize, ToSchema)]
pub struct EnrollmentKeyView {
    id: i64,
    name_prefix: Option<String>,
    /// Null: no limit until it expires.
    max_uses: Option<i64>,
    uses: i64,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    revoked_at: Option<DateTime<Utc>>,
}

impl From<EnrollmentKey> for EnrollmentKeyView {
    fn from(key: EnrollmentKey) -> Self {
        Self {
            id: key.id,
            name_prefix: key.name_prefix,
            max_uses: key.max_uses,
            uses: key.uses,
            created_at: shown_time(key.created_at),
            expires_at: shown_time(key.expires_at),
            revoked_at: key.revoked_at.map(shown_time),
        }
    }
}

/// All enrolment keys, newest first.
#[utoipa::path(get, path = "/api/enrollment-keys", tag = "enrolment", params(PageQuery),
    responses((status = 200, body = Page<EnrollmentKeyView>, description = "the keys")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<EnrollmentKeyView>>, ApiError> {
    user.require(Role::Admin)?;
    let (limit, before) = (page.limit()?, page.before()?);
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, before, limit + 1))
        .await?;
    Ok(web::Json(Page::of(
        rows,
        limit,
        |key| key.id,
        EnrollmentKeyView::from,
    )))
}

/// A new enrolment key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentKeyRequest {
    /// Workers are named PREFIX-1, PREFIX-2, …; "worker" when absent.
    name_prefix: Option<String>,
    /// Machines that may enrol with it; no limit when absent.
    max_uses: Option<i64>,
    /// 24 hours when absent.
    expires_in_seconds: Option<i64>,
}

/// A new enrolment key with its text, which is shown this once.
#[derive(Serialize, ToSchema)]
pub struct NewEnrollmentKeyAnswer {
    id: i64,
    #[schema(value_type = String)]
    key: Secret,
    /// To be pasted into a shell of the machine that is to become a worker.
    #[schema(value_type = String)]
    command: Secret,
    expires_at: DateTime<Utc>,
}

/// Makes an enrolment key.
#[utoipa::path(post, path = "/api/enrollment-keys", tag = "enrolment", request_body = EnrollmentKeyRequest,
    responses((status = 201, body = NewEnrollmentKeyAnswer, description = "made; the key is shown this once")))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<EnrollmentKeyRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Admin)?;
    let lifetime = check(&body)?;
    let now = now();
    let new = NewEnrollmentKey {
        name_prefix: body.name_prefix,
        max_uses: body.max_uses,
        created_by: user.id,
        expires_at: now + lifetime,
    };
    let expires_at = shown_time(new.expires_at);
    let (id, key) = state
        .database
        .write::<_, DatabaseError, _>(move |c| store::insert(c, &new, now))
        .await?;
    let platform = state.public_url.as_str().trim_end_matches('/');
    let command = format!(
        "PLATFORM_URL={} WORKER_KEY={} trainyard-worker run",
        shell_quoted(platform),
        key.secret.expose()
    );
    Ok(HttpResponse::Created().json(NewEnrollmentKeyAnswer {
        id,
        key: key.secret,
        command: Secret::from(command),
        expires_at,
    }))
}

/// Revokes an enrolment key. Workers that were enrolled with it stay.
#[utoipa::path(delete, path = "/api/enrollment-keys/{id}", tag = "enrolment", params(("id" = i64, Path)), responses(
    (status = 204, description = "revoked"),
    (status = 404, description = "no such key"),
))]
pub async fn revoke(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<i64>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Admin)?;
    if !state
        .database
        .write::<_, DatabaseError, _>(move |c| store::revoke(c, id, now()))
        .await?
    {
        return Err(ApiError::not_found("enrolment key"));
    }
    Ok(HttpResponse::NoContent().finish())
}

fn check(body: &EnrollmentKeyRequest) -> Result<TimeDelta, ApiError> {
    let mut problems = Vec::new();
    if let Some(prefix) = &body.name_prefix {
        let fits = (1..=MAX_PREFIX_CHARACTERS).contains(&prefix.chars().count())
            && prefix
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !fits {
            let message = format!(
                "must be 1 to {MAX_PREFIX_CHARACTERS} of ASCII letters, digits, '-', '_', '.'"
            );
            problems.push(FieldProblem::new("name_prefix", message));
        }
    }
    if body.max_uses.is_some_and(|uses| uses < 1) {
        problems.push(FieldProblem::new("max_uses", "must be at least 1"));
    }
    let lifetime = body
        .expires_in_seconds
        .map_or(Some(DEFAULT_LIFETIME), TimeDelta::try_seconds);
    match lifetime.filter(|lifetime| *lifetime > TimeDelta::zero() && *lifetime <= MAX_LIFETIME) {
        Some(lifetime) if problems.is_empty() => return Ok(lifetime),
        Some(_) => {}
        None => problems.push(FieldProblem::new(
            "expires_in_seconds",
            "must lie between 1 second and ten years",
        )),
    }
    Err(ApiError::invalid(problems))
}

/// A word that a POSIX shell takes as it stands.
fn shell_quoted(text: &str) -> String {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~/:[]%@+,".contains(&byte));
    if is_plain && !text.contains(['[', ']']) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
