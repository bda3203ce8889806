//! What a worker does in a federated session (as the worker's `tasks::federated` does): one session at a time and
//! no job beside it; the newest round that was named is trained, and its result goes into the outbox.

use trainyard_shared::FailureKind;
use trainyard_shared::ids::{FederatedSessionId, WorkerId};
use trainyard_shared::message::{
    FederatedFailed, FederatedFailedData, FederatedUpdate, FederatedUpdateData, FromWorker,
    StopFederatedTraining, ToWorker,
};

use crate::network::Frame;
use crate::worker::MachineEvent;
use crate::world::World;

/// The session that a worker takes part in.
pub struct TakingPart {
    pub id: FederatedSessionId,
    /// The newest round that was named, from 0.
    round: u64,
    /// The round that trains.
    trains: Option<u64>,
    /// The last round whose result is on its way or delivered.
    settled: Option<u64>,
    stops: bool,
    token: u64,
}

impl World {
    /// The platform asks for a round's result: with all that there is to know, or as the next one.
    pub fn order_round(
        &mut self,
        worker: WorkerId,
        session: FederatedSessionId,
        round: u64,
        begins: bool,
    ) {
        let frame = Frame::RoundAsked {
            session,
            round,
            begins,
        };
        self.deliver_frame_to(worker, frame);
    }

    /// The platform says that the session is over for a worker.
    pub fn stop_round(&mut self, worker: WorkerId, session_id: FederatedSessionId) {
        let stop = ToWorker::StopFederatedTraining(StopFederatedTraining { session_id });
        self.deliver_frame_to(worker, Frame::ToWorker(Box::new(stop)));
    }

    pub fn told_round(
        &mut self,
        machine: usize,
        session: FederatedSessionId,
        round: u64,
        begins: bool,
    ) {
        let outbox = &self.machines[machine].disk.outbox;
        let undelivered = outbox.undelivered_rounds(session);
        let process = self.worker(machine);
        let is_busy = process.running.is_some() || process.next.is_some();
        match &mut process.session {
            // It has just ended: nobody takes the order.
            Some(part) if part.id == session && part.stops => {}
            Some(part) if part.id == session => {
                if begins && part.settled == Some(round) && !undelivered.contains(&(round + 1)) {
                    part.settled = None;
                }
                part.round = part.round.max(round);
                self.go_on_with_round(machine);
            }
            None if begins && !is_busy => {
                process.session = Some(TakingPart {
                    id: session,
                    round,
                    trains: None,
                    settled: undelivered.into_iter().max().map(|round| round - 1),
                    stops: false,
                    token: 0,
                });
                self.note(|| format!("machine {machine} takes part in session {session}"));
                self.go_on_with_round(machine);
                self.beat(machine);
            }
            _ => self.round_failed(machine, session, round, "this worker does something else"),
        }
    }

    fn go_on_with_round(&mut self, machine: usize) {
        let token = self.random.next();
        let part = self.worker(machine).session.as_mut().expect("it is there");
        let is_settled = part.settled.is_some_and(|settled| settled >= part.round);
        if is_settled || part.trains == Some(part.round) {
            return;
        }
        part.trains = Some(part.round);
        part.token = token;
        let wait = self.random.between(1_000, 60_000);
        self.machine_later(machine, wait, MachineEvent::Round(token));
    }

    pub fn told_to_leave(&mut self, machine: usize, session: FederatedSessionId) {
        let token = self.random.next();
        let wait = self.random.between(10, 4_000);
        if let Some(part) = &mut self.worker(machine).session
            && part.id == session
            && !part.stops
        {
            part.stops = true;
            part.token = token;
            self.machine_later(machine, wait, MachineEvent::Round(token));
        }
    }

    /// A round has been trained, or the session has been left.
    pub fn round_ends(&mut self, machine: usize, token: u64) {
        let fails = self.random.chance(30);
        let process = self.worker(machine);
        let Some(part) = process.session.as_mut().filter(|part| part.token == token) else {
            return;
        };
        if part.stops {
            process.session = None;
            return self.beat(machine);
        }
        let (session, round) = (part.id, part.round);
        part.trains = None;
        if fails {
            return self.round_failed(machine, session, round, "the loss is not finite");
        }
        let update = FromWorker::FederatedUpdate(FederatedUpdate {
            worker_id: None,
            session_id: session,
            message_id: Some(self.message_id()),
            data: FederatedUpdateData {
                round: round + 1,
                num_examples: 1,
                steps: 1,
                loss: None,
                key: String::new(),
                sha256: String::new(),
                size_bytes: 1,
                attempt: None,
            },
        });
        if self.keep(machine, update, Vec::new()) {
            let part = self.worker(machine).session.as_mut();
            part.expect("it is there").settled = Some(round);
        } else {
            self.round_failed(machine, session, round, "the disk is full");
        }
    }

    fn round_failed(
        &mut self,
        machine: usize,
        session_id: FederatedSessionId,
        round: u64,
        error: &str,
    ) {
        self.note(|| format!("machine {machine}: session {session_id}, round {round}: {error}"));
        let failed = FromWorker::FederatedFailed(FederatedFailed {
            worker_id: None,
            session_id,
            message_id: Some(self.message_id()),
            data: FederatedFailedData {
                round: Some(round + 1),
                error: error.to_owned(),
                failure_kind: Some(FailureKind::NotStarted),
            },
        });
        self.keep_or_send(machine, failed);
    }
}
