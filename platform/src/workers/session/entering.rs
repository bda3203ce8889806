//! How a worker comes in: `authenticate` and `worker_register`.

use std::time::Instant;

use actix::prelude::*;
use trainyard_shared::frame::close;
use trainyard_shared::message::{AuthFailed, Authenticate, Authenticated, WorkerRegister};

use super::{Context, HeldLease, Stage, WorkerSession, enrollment_complete};
use crate::database::{DatabaseError, now};
use crate::sockets::Session;
use crate::workers::authentication::{self, Proved, Refused};
use crate::workers::lease::Lease;
use crate::workers::store;
use crate::workers::supervisor::{Connect, Register};

impl WorkerSession {
    pub(super) fn authenticate(&mut self, presented: Authenticate, context: &mut Context) {
        let uuid = self.uuid;
        let database = self.state.database.clone();
        let supervisor = self.state.actors.supervisor.clone();
        let session = context.address();
        let outgoing = self.outgoing.clone();
        let entering = async move {
            let key = presented.api_key.clone();
            let proved = database
                .write(move |c| authentication::authenticate(c, &presented, uuid, now()))
                .await?;
            let connect = Connect {
                worker: proved.worker.clone(),
                session,
                outgoing,
            };
            let lease = supervisor
                .send(connect)
                .await
                .map_err(|_| DatabaseError::Stopped)?;
            let held = HeldLease { lease, supervisor };
            let key = proved.issued.clone().unwrap_or(key);
            let worker = proved.worker.id;
            let valid = database
                .read(move |c| authentication::still_valid(c, key.expose(), worker))
                .await;
            Ok(Entered {
                proved,
                held,
                key_is_valid: valid,
            })
        };
        context.wait(entering.into_actor(self).map(
            |entered: Result<Entered, Refused>, session, context| {
                session.entered(entered, context);
            },
        ));
    }

    fn entered(&mut self, entered: Result<Entered, Refused>, context: &mut Context) {
        let entered = match entered {
            Ok(entered) => entered,
            Err(Refused::Because(reason)) => return self.fail_authentication(reason, context),
            Err(Refused::Database(error)) => {
                tracing::warn!(worker.uuid = %self.uuid, %error, "worker could not be authenticated");
                return self.end(close::GOING_AWAY, "try again later", context);
            }
        };
        let worker = &entered.proved.worker;
        self.stage = Stage::Authenticated(entered.held);
        self.place.known();
        if !matches!(entered.key_is_valid, Ok(true)) {
            return self.end(
                close::AUTHENTICATION_FAILED,
                "the key was replaced",
                context,
            );
        }
        tracing::info!(worker.id = %worker.id, worker.name = worker.name, "worker is authenticated");
        if let Some(api_key) = entered.proved.issued {
            let complete = enrollment_complete(worker, api_key);
            self.say(complete, context);
        }
        let authenticated = Authenticated {
            status: "ok".to_owned(),
            worker_id: self.uuid.to_string(),
        };
        self.say(authenticated, context);
        context.run_later(self.limits.registration, |session, context| {
            if matches!(session.stage, Stage::Authenticated(_)) {
                let reason = "no worker_register in time";
                session.end(close::DEADLINE_PASSED, reason, context);
            }
        });
    }

    pub(super) fn fail_authentication(&mut self, reason: String, context: &mut Context) {
        tracing::warn!(worker.uuid = %self.uuid, address = %self.address, reason, "worker is not let in");
        self.state.worker_failures.record_failure(
            self.address,
            &self.uuid.to_string(),
            Instant::now(),
        );
        self.say(AuthFailed { reason }, context);
        let reason = "authentication failed";
        self.end(close::AUTHENTICATION_FAILED, reason, context);
    }

    pub(super) fn register(
        &mut self,
        lease: Lease,
        register: WorkerRegister,
        context: &mut Context,
    ) {
        let database = self.state.database.clone();
        let supervisor = self.state.actors.supervisor.clone();
        let data = register.data;
        let registering = async move {
            let worker = lease.worker();
            let stored = data.clone();
            database
                .write(move |c| store::register(c, worker, &stored, now()))
                .await?;
            let data = Box::new(data);
            supervisor
                .send(Register { lease, data })
                .await
                .map_err(|_| DatabaseError::Stopped)
        };
        context.wait(
            registering
                .into_actor(self)
                .map(|registered, session, context| match registered {
                    Ok(()) => session.stage.register(),
                    Err(error) => {
                        tracing::warn!(worker.uuid = %session.uuid, %error, "worker could not be registered");
                        session.end(close::GOING_AWAY, "try again later", context);
                    }
                }),
        );
    }
}

struct Entered {
    proved: Proved,
    held: HeldLease,
    key_is_valid: Result<bool, DatabaseError>,
}
