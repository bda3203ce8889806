//! `GET /ws/user/{id}`: a one-use token opens a dashboard's connection. And how the loss of a right reaches
//! the connections that were opened with it.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use trainyard_shared::ids::UserId;

use super::hub::Revoke;
use super::session::DashboardSession;
use crate::actors::Actors;
use crate::auth::{Credential, Revocation, Revocations, Role, ws_tokens};
use crate::database::{Database, DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::StrictQuery;
use crate::server::AppState;
use crate::sockets;
use crate::sockets::outgoing::Outgoing;
use crate::users;

/// What may wait for one dashboard.
const MAX_WAITING_BYTES: usize = 1 << 20;
const MAX_WAITING_FRAMES: usize = 16_384;

/// The token of a dashboard's connection.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Token {
    /// What `POST /api/ws-token` gave.
    token: Option<String>,
}

/// A dashboard's connection.
#[utoipa::path(get, path = "/ws/user/{id}", tag = "sockets", security(()),
    params(("id" = i64, Path), Token), responses(
    (status = 101, description = "a WebSocket"),
    (status = 400, description = "no WebSocket upgrade"),
    (status = 401, description = "no valid token of that user"),
    (status = 429, description = "too many dashboards of that user are open"),
))]
pub async fn open(
    state: web::Data<AppState>,
    request: HttpRequest,
    StrictQuery(query): StrictQuery<Token>,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let refused = || {
        let message = "the token is not valid; POST /api/ws-token gives a new one";
        ApiError::new(ErrorCode::Unauthenticated, message)
    };
    let token = query.token.ok_or_else(refused)?;
    // Whatever else is wrong, the token is used up.
    let path = request.match_info().get("id").unwrap_or_default();
    let user = path.parse::<UserId>().map_or(0, UserId::get);
    let owner = state
        .database
        .write::<_, DatabaseError, _>(move |c| ws_tokens::redeem(c, &token, user, now()))
        .await?
        .ok_or_else(refused)?;
    let place = state.connection_caps.dashboard(UserId(owner.user_id))?;
    let max_frame_bytes = state.config.max_frame_bytes;
    let (outgoing, frames) = Outgoing::new(MAX_WAITING_BYTES, MAX_WAITING_FRAMES);
    let session = DashboardSession::new(state, owner, place, outgoing);
    sockets::start(session, frames, max_frame_bytes, &request, payload)
}

/// Carries the news of void credentials to the hub and to open answers, until the platform stops.
pub async fn carry_revocations(actors: Actors, database: Database, revocations: Revocations) {
    let mut news = revocations.subscribe();
    drop(revocations);
    loop {
        let revoke = match news.recv().await {
            Ok(Revocation::Session(id)) => Revoke::Credential(Credential::Session(id)),
            Ok(Revocation::ApiToken(id)) => Revoke::Credential(Credential::ApiToken(id)),
            Ok(Revocation::User(id)) => user_now(&database, id).await,
            Err(RecvError::Lagged(_)) => Revoke::Everything,
            Err(RecvError::Closed) => return,
        };
        actors.inferences.revoke(revoke);
        if actors.dashboards.send(revoke).await.is_err() {
            return;
        }
    }
}

/// What a user may do now. Where that cannot be found out, nothing.
async fn user_now(database: &Database, id: i64) -> Revoke {
    match database.read(move |c| users::store::get(c, id)).await {
        Ok(user) => Revoke::ChangedUser(UserId(id), Role::from_stored(&user.role)),
        Err(DatabaseError::NotFound) => Revoke::DeletedUser(UserId(id)),
        Err(_) => Revoke::Everything,
    }
}
