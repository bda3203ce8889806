//! One dashboard's connection: it subscribes, and reads. What it is sent comes straight from the hub into its
//! queue.

use std::time::Duration;

use actix::prelude::*;
use actix_http::ws::{Message as WsMessage, ProtocolError};
use actix_web::web;
use actix_web_actors::ws::WebsocketContext;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{JobId, UserId};
use trainyard_shared::message::{Error, ErrorCode, FromDashboard, ToDashboard};

use super::hub::{Join, Leave, SessionId, Unsubscribe};
use crate::auth::ws_tokens::WsTokenOwner;
use crate::jobs::actor::{Show, SubscribeRefused};
use crate::jobs::directory::JobError;
use crate::server::AppState;
use crate::sockets::Session;
use crate::sockets::caps::DashboardPlace;
use crate::sockets::incoming::{Incoming, Received};
use crate::sockets::outgoing::Outgoing;
use crate::sockets::rate::OF_DASHBOARD;

/// A dashboard that takes nothing for so long, although something waits, is closed.
const STALL: Duration = Duration::from_secs(30);
/// How often that is looked at, and whether the hub has ended the connection.
const LOOK: Duration = Duration::from_secs(1);

/// The actor.
pub struct DashboardSession {
    state: web::Data<AppState>,
    owner: WsTokenOwner,
    outgoing: Outgoing,
    incoming: Incoming,
    joined: Option<SessionId>,
    ending: bool,
    _place: DashboardPlace,
}

type Context = WebsocketContext<DashboardSession>;

impl DashboardSession {
    /// A session of a user whose token has just been redeemed.
    pub fn new(
        state: web::Data<AppState>,
        owner: WsTokenOwner,
        place: DashboardPlace,
        outgoing: Outgoing,
    ) -> Self {
        let incoming = Incoming::new(state.config.max_frame_bytes, OF_DASHBOARD);
        Self {
            state,
            owner,
            outgoing,
            incoming,
            joined: None,
            ending: false,
            _place: place,
        }
    }

    fn take(&mut self, text: &str, context: &mut Context) {
        let Some(session) = self.joined else {
            return;
        };
        match FromDashboard::decode(text) {
            Ok(FromDashboard::SubscribeJob(subscribe)) => {
                self.subscribe(session, subscribe.job_id, context);
            }
            Ok(FromDashboard::UnsubscribeJob(unsubscribe)) => {
                let job = unsubscribe.job_id;
                let left = self
                    .state
                    .actors
                    .dashboards
                    .send(Unsubscribe { session, job });
                // Fails only when the platform stops.
                context.wait(left.into_actor(self).map(|_, _, _| ()));
            }
            Err(error) => self.refuse(error.to_error(), context),
        }
    }

    fn subscribe(&mut self, session: SessionId, job: JobId, context: &mut Context) {
        let actors = self.state.actors.clone();
        let (user, role) = (UserId(self.owner.user_id), self.owner.role);
        let showing = async move {
            let show = || Show {
                session,
                user,
                role,
            };
            actors.jobs.ask(&actors, job, show).await
        };
        context.wait(
            showing
                .into_actor(self)
                .map(move |shown, session, context| {
                    let (code, why) = match shown {
                        Ok(Ok(())) => return,
                        Ok(Err(SubscribeRefused::NotFound)) | Err(JobError::NotFound) => {
                            (ErrorCode::NotFound, format!("there is no job {job}"))
                        }
                        Ok(Err(SubscribeRefused::TooMany)) => (
                            ErrorCode::TooManySubscriptions,
                            "unsubscribe from some jobs first".to_owned(),
                        ),
                        Ok(Err(SubscribeRefused::Stopped)) | Err(_) => {
                            (ErrorCode::TryAgain, "try again later".to_owned())
                        }
                    };
                    let error = Error {
                        job_id: Some(job),
                        ..Error::in_reply_to("subscribe_job", code, why)
                    };
                    session.refuse(error, context);
                }),
        );
    }

    fn refuse(&mut self, error: Error, context: &mut Context) {
        let text = ToDashboard::Error(error).encode().into();
        if self.outgoing.push(text, None).is_err() {
            let reason = "too much is waiting to be taken";
            self.end_now(reason, context);
        }
        if self.incoming.count_error(self.state.actors.clock.now()) {
            let reason = "too many messages that had to be refused";
            self.end(close::PROTOCOL_VIOLATION, reason, context);
        }
    }

    fn end_now(&mut self, reason: &str, context: &mut Context) {
        self.outgoing.close_now(close::DEADLINE_PASSED, reason);
        self.end(close::DEADLINE_PASSED, reason, context);
    }

    fn look(&mut self, context: &mut Context) {
        if self.outgoing.is_closing() {
            // The hub has ended it; its code is the one that counts.
            self.end(close::GOING_AWAY, "", context);
        } else if self.outgoing.stalled_for() >= STALL {
            self.end_now("nothing was taken for 30 seconds", context);
        }
    }
}

impl Actor for DashboardSession {
    type Context = Context;

    fn started(&mut self, context: &mut Context) {
        let join = Join {
            user: UserId(self.owner.user_id),
            role: self.owner.role,
            credential: self.owner.credential,
            outgoing: self.outgoing.clone(),
        };
        let joining = self.state.actors.dashboards.send(join);
        context.wait(
            joining
                .into_actor(self)
                .map(|joined, session, context| match joined {
                    Ok(id) => session.joined = Some(id),
                    Err(_) => session.end(close::GOING_AWAY, "the platform stops", context),
                }),
        );
        context.run_interval(LOOK, |session, context| session.look(context));
    }

    fn stopped(&mut self, _: &mut Context) {
        self.outgoing
            .close(close::GOING_AWAY, "the session has ended");
        if let Some(id) = self.joined {
            let leaving = self.state.actors.dashboards.send(Leave(id));
            // Fails only when the platform stops.
            actix::spawn(async move {
                let _ = leaving.await;
            });
        }
    }
}

impl Session for DashboardSession {
    fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    fn ending(&mut self) -> &mut bool {
        &mut self.ending
    }
}

impl StreamHandler<Result<WsMessage, ProtocolError>> for DashboardSession {
    fn handle(&mut self, frame: Result<WsMessage, ProtocolError>, context: &mut Context) {
        if self.outgoing.is_closing() {
            return;
        }
        match self.incoming.take(frame, self.state.actors.clock.now()) {
            Received::Text(text) => self.take(&text, context),
            Received::Ping(payload) => self.outgoing.pong(payload),
            Received::Nothing => {}
            Received::Closed => self.end(1000, "", context),
            Received::Fault(fault) => self.end(fault.code, fault.reason, context),
        }
    }
}
