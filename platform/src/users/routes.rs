//! REST routes of user accounts, for administrators.

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Deserializer};
use trainyard_shared::Secret;
use trainyard_shared::ids::UserId;
use utoipa::ToSchema;

use super::store::{self, NewUser, UserChange};
use super::{UserView, normalize_email};
use crate::auth::{CurrentUser, Revocation, Role, password};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::server::AppState;

/// All users, newest first.
#[utoipa::path(get, path = "/api/users", tag = "users", params(PageQuery),
    responses((status = 200, body = Page<UserView>, description = "the users")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<UserView>>, ApiError> {
    user.require(Role::Admin)?;
    let (limit, before) = (page.limit()?, page.before()?);
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, before, limit + 1))
        .await?;
    Ok(web::Json(Page::of(
        rows,
        limit,
        |user| user.id,
        UserView::from,
    )))
}

/// One user.
#[utoipa::path(get, path = "/api/users/{id}", tag = "users", params(("id" = i64, Path)), responses(
    (status = 200, body = UserView, description = "the user"),
    (status = 404, description = "no such user"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<UserId>,
) -> Result<web::Json<UserView>, ApiError> {
    user.require(Role::Admin)?;
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::get(c, id.get()))
        .await;
    Ok(web::Json(found.map_err(no_such_user)?.into()))
}

/// A new user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    email: String,
    #[schema(value_type = String)]
    password: Secret,
    role: Role,
    max_concurrent_jobs: Option<i64>,
    max_storage_bytes: Option<i64>,
}

/// Makes a user.
#[utoipa::path(post, path = "/api/users", tag = "users", request_body = UserRequest, responses(
    (status = 201, body = UserView, description = "made"),
    (status = 409, description = "the e-mail is taken"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<UserRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Admin)?;
    let mut problems = Vec::new();
    let email = normalize_email(&body.email).unwrap_or_else(|message| {
        problems.push(FieldProblem::new("email", message));
        String::new()
    });
    check_password(&body.password, &mut problems);
    check_quota(
        "max_concurrent_jobs",
        body.max_concurrent_jobs,
        &mut problems,
    );
    check_quota("max_storage_bytes", body.max_storage_bytes, &mut problems);
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    let new = NewUser {
        email,
        password_hash: password::hash(body.password).await?,
        role: body.role,
        max_concurrent_jobs: body.max_concurrent_jobs,
        max_storage_bytes: body.max_storage_bytes,
    };
    let made = state
        .database
        .write::<_, DatabaseError, _>(move |connection| {
            let id = store::insert(connection, &new, now())?;
            store::get(connection, id)
        })
        .await;
    match made {
        Ok(made) => Ok(HttpResponse::Created().json(UserView::from(made))),
        Err(DatabaseError::Duplicate(_)) => Err(ApiError::new(
            ErrorCode::AlreadyExists,
            "a user with this e-mail exists already",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Changes of a user; what is absent stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    role: Option<Role>,
    #[schema(value_type = Option<String>)]
    password: Option<Secret>,
    /// Null: no limit.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    max_concurrent_jobs: Option<Option<i64>>,
    /// Null: no limit.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<i64>)]
    max_storage_bytes: Option<Option<i64>>,
}

/// Tells null from absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<i64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Changes a user. A new role or password ends what the user has open.
#[utoipa::path(patch, path = "/api/users/{id}", tag = "users", params(("id" = i64, Path)), request_body = UserPatch,
    responses(
        (status = 200, body = UserView, description = "changed"),
        (status = 404, description = "no such user"),
        (status = 409, description = "the last administrator cannot be demoted"),
    ))]
pub async fn update(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<UserId>,
    StrictJson(body): StrictJson<UserPatch>,
) -> Result<web::Json<UserView>, ApiError> {
    user.require(Role::Admin)?;
    let mut problems = Vec::new();
    if let Some(new) = &body.password {
        check_password(new, &mut problems);
    }
    check_quota(
        "max_concurrent_jobs",
        body.max_concurrent_jobs.flatten(),
        &mut problems,
    );
    check_quota(
        "max_storage_bytes",
        body.max_storage_bytes.flatten(),
        &mut problems,
    );
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    let ends_open_things = body.role.is_some() || body.password.is_some();
    let ends_sessions = body.password.is_some();
    let demotes = body.role.is_some_and(|role| role != Role::Admin);
    let change = UserChange {
        role: body.role.map(|role| role.as_str().to_owned()),
        password_hash: match body.password {
            Some(new) => Some(password::hash(new).await?),
            None => None,
        },
        max_concurrent_jobs: body.max_concurrent_jobs,
        max_storage_bytes: body.max_storage_bytes,
    };
    let changed = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            store::get(connection, id.get()).map_err(no_such_user)?;
            if demotes && !store::has_other_admin(connection, id.get())? {
                return Err(last_admin());
            }
            if ends_sessions {
                crate::auth::sessions::delete_others(connection, id.get(), None)?;
            }
            Ok(store::update(connection, id.get(), &change)?)
        })
        .await?;
    if ends_open_things {
        state.revocations.publish(Revocation::User(id.get()));
    }
    Ok(web::Json(changed.into()))
}

/// Deletes a user and all its credentials. What it made stays.
#[utoipa::path(delete, path = "/api/users/{id}", tag = "users", params(("id" = i64, Path)), responses(
    (status = 204, description = "deleted"),
    (status = 404, description = "no such user"),
    (status = 409, description = "the last administrator cannot be deleted"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<UserId>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Admin)?;
    state
        .database
        .write::<_, ApiError, _>(move |connection| {
            let found = store::get(connection, id.get()).map_err(no_such_user)?;
            if Role::from_stored(&found.role) == Role::Admin
                && !store::has_other_admin(connection, id.get())?
            {
                return Err(last_admin());
            }
            Ok(store::delete(connection, id.get(), now())?)
        })
        .await?;
    state.revocations.publish(Revocation::User(id.get()));
    Ok(HttpResponse::NoContent().finish())
}

fn no_such_user(error: DatabaseError) -> ApiError {
    match error {
        DatabaseError::NotFound => ApiError::not_found("user"),
        other => other.into(),
    }
}

fn last_admin() -> ApiError {
    ApiError::new(
        ErrorCode::LastAdmin,
        "the last administrator can be neither deleted nor demoted",
    )
}

fn check_password(new: &Secret, problems: &mut Vec<FieldProblem>) {
    if let Err(message) = password::check_strength(new.expose()) {
        problems.push(FieldProblem::new("password", message));
    }
}

fn check_quota(field: &str, quota: Option<i64>, problems: &mut Vec<FieldProblem>) {
    if quota.is_some_and(|quota| quota < 0) {
        problems.push(FieldProblem::new(field, "must not be negative"));
    }
}
