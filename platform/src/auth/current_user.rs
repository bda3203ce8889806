//! The signed-in user as an extractor: every handler that takes a [`CurrentUser`] is closed to others.

use actix_web::http::Method;
use actix_web::{FromRequest, HttpRequest, dev::Payload, web};
use futures_util::future::LocalBoxFuture;
use subtle::ConstantTimeEq;

use super::{Role, TokenHash, TokenKind, api_tokens, bearer_token, sessions};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::server::AppState;

/// Name of the page's cookie.
pub const SESSION_COOKIE: &str = "trainyard_session";
/// Header that must accompany the cookie on requests that change something.
pub const CSRF_HEADER: &str = "x-csrf-token";

/// With what a user has shown who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// A session, by its id.
    Session(i64),
    /// An API token, by its id.
    ApiToken(i64),
}

/// The user that a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentUser {
    /// The user's number.
    pub id: i64,
    /// Its e-mail.
    pub email: String,
    /// What it may do; with an API token no more than that allows.
    pub role: Role,
    /// With what it has shown who it is.
    pub credential: Credential,
    /// What [`CSRF_HEADER`] must hold when this session is used through the cookie.
    pub csrf_token: String,
}

impl CurrentUser {
    /// Refuses a user with fewer rights than `least`.
    ///
    /// # Errors
    /// 403.
    pub fn require(&self, least: Role) -> Result<(), ApiError> {
        if self.role < least {
            return Err(ApiError::new(
                ErrorCode::Forbidden,
                format!("this needs the role {least}"),
            ));
        }
        Ok(())
    }

    /// Whether objects of that user may be seen.
    pub fn can_see(&self, owner_id: i64) -> bool {
        self.role != Role::Member || self.id == owner_id
    }

    /// Refuses to show an object of that user: 404, as if it did not exist.
    ///
    /// # Errors
    /// 404 for `what`.
    pub fn require_sight(&self, owner_id: i64, what: &str) -> Result<(), ApiError> {
        if self.can_see(owner_id) {
            Ok(())
        } else {
            Err(ApiError::not_found(what))
        }
    }

    /// Refuses a change to an object of that user: 404 where it may not even be seen, else 403.
    ///
    /// # Errors
    /// 404 for `what`, or 403.
    pub fn require_change(&self, owner_id: i64, what: &str) -> Result<(), ApiError> {
        self.require_sight(owner_id, what)?;
        self.require(Role::Member)
    }

    /// The only owner whose objects are listed; `None`: everyone's.
    pub fn listed_owner(&self) -> Option<i64> {
        (self.role == Role::Member).then_some(self.id)
    }
}

impl FromRequest for CurrentUser {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let request = request.clone();
        Box::pin(async move { authenticate(&request).await })
    }
}

async fn authenticate(request: &HttpRequest) -> Result<CurrentUser, ApiError> {
    let state = request
        .app_data::<web::Data<AppState>>()
        .ok_or_else(|| ApiError::internal("no application state"))?
        .clone();
    let refused = || ApiError::new(ErrorCode::Unauthenticated, "sign in, or send a valid token");
    let presented = present(request).ok_or_else(refused)?;
    let hash = TokenHash::of(&presented.token);
    let found = if TokenKind::Session.matches(&presented.token) {
        let read = move |connection: &mut _| sessions::find(connection, &hash, now());
        state
            .database
            .read::<_, DatabaseError, _>(read)
            .await?
            .map(|owner| {
                (
                    owner.user_id,
                    owner.email,
                    owner.role,
                    Credential::Session(owner.session_id),
                )
            })
    } else if TokenKind::ApiToken.matches(&presented.token) && presented.by == By::Header {
        let read = move |connection: &mut _| api_tokens::find(connection, &hash, now());
        state
            .database
            .read::<_, DatabaseError, _>(read)
            .await?
            .map(|owner| {
                (
                    owner.user_id,
                    owner.email,
                    owner.role,
                    Credential::ApiToken(owner.api_token_id),
                )
            })
    } else {
        None
    };
    let (id, email, role, credential) = found.ok_or_else(refused)?;
    let csrf_token = state.secret.csrf_token(&hash);
    if presented.by == By::Cookie && changes_something(request.method()) {
        require_csrf_token(request, &csrf_token)?;
    }
    Ok(CurrentUser {
        id,
        email,
        role,
        credential,
        csrf_token,
    })
}

struct Presented {
    token: String,
    by: By,
}

#[derive(PartialEq, Eq)]
enum By {
    Header,
    Cookie,
}

/// A header counts before a cookie, so that a program is never taken for the page.
fn present(request: &HttpRequest) -> Option<Presented> {
    if request
        .headers()
        .contains_key(actix_web::http::header::AUTHORIZATION)
    {
        return bearer_token(request).map(|token| Presented {
            token: token.to_owned(),
            by: By::Header,
        });
    }
    let cookie = request.cookie(SESSION_COOKIE)?;
    Some(Presented {
        token: cookie.value().to_owned(),
        by: By::Cookie,
    })
}

fn changes_something(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn require_csrf_token(request: &HttpRequest, expected: &str) -> Result<(), ApiError> {
    let given = request
        .headers()
        .get(CSRF_HEADER)
        .map(|value| value.as_bytes())
        .unwrap_or_default();
    if bool::from(given.ct_eq(expected.as_bytes())) {
        return Ok(());
    }
    let message = format!(
        "a change made with the cookie needs the {CSRF_HEADER} header that GET /api/me tells"
    );
    Err(ApiError::new(ErrorCode::CsrfRequired, message))
}
