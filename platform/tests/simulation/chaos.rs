//! What goes wrong, and what people do meanwhile: a number of mishaps at random times, and then everything is
//! repaired.

use trainyard_platform::jobs::event::Event as JobEvent;
use trainyard_platform::jobs::state::JobState;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, JobId, WorkerId};
use trainyard_shared::message::{EnrollmentComplete, EnrollmentCompleteData};

use crate::database::{JobRow, WorkerRow};
use crate::jobs::{Letter, ReplyTo};
use crate::network::LinkId;
use crate::supervisor::ToSupervisor;
use crate::worker::{Machine, MachineEvent};
use crate::world::{Event, World};

const WORKERS: u64 = 3;
const MOST_JOBS: usize = 8;
const MOST_SESSIONS: usize = 3;
/// So long after everything was repaired the sessions have to go on by themselves.
const SESSIONS_GO_ON_MS: u64 = 15 * 60_000;

/// Something that happens from outside.
#[derive(Debug, Clone, Copy)]
pub enum Mishap {
    /// The next one is chosen.
    Any,
    StartPlatform,
    /// An operator ends all sessions: some wait for workers that will not come.
    StopSessions,
}

impl World {
    /// A platform, its workers and their machines, and one machine more that is a copy of the first.
    pub fn begin(&mut self) {
        for number in 1..=WORKERS {
            let worker = WorkerId(number as i64);
            let key = 100 * number as u32;
            let draining = false;
            self.database
                .workers
                .insert(worker, WorkerRow { key, draining });
            self.machines.push(Machine::new(worker, key));
        }
        self.machines.push(Machine::new(WorkerId(1), 100));
        self.start_platform();
        for machine in 0..self.twin() {
            let wait = self.random.below(3_000);
            self.machine_later(machine, wait, MachineEvent::Start);
        }
        let minutes = self.random.between(2, 14);
        self.schedule_at(minutes * 60_000, Event::Heal);
        for _ in 0..3 {
            self.submit();
        }
        if self.random.chance(700) {
            self.make_session();
        }
        self.mishap_later();
    }

    fn mishap_later(&mut self) {
        let wait = self.random.between(200, 30_000);
        self.schedule_in(wait, Event::Mishap(Mishap::Any));
    }

    pub fn mishap(&mut self, mishap: Mishap) {
        match mishap {
            Mishap::Any if self.healed => {}
            Mishap::Any => {
                self.any_mishap();
                self.mishap_later();
            }
            Mishap::StartPlatform => self.start_platform(),
            Mishap::StopSessions => {
                for session in self.database.sessions.keys().copied().collect::<Vec<_>>() {
                    self.stop_session(session);
                }
            }
        }
    }

    fn any_mishap(&mut self) {
        let machine = self.random.below(self.machines.len() as u64) as usize;
        let link = self.link_of(machine);
        match (self.random.below(22), link) {
            (0 | 1, Some(link)) => self.cut(link),
            (2, Some(link)) => {
                self.note(|| format!("link {link} dies without a word"));
                self.links[link].dead = true;
            }
            (3, Some(link)) => {
                let until = self.now + self.random.between(1_000, 150_000);
                self.links[link].stalled_until = until;
            }
            (4, _) => {
                let until = self.now + self.random.between(5_000, 300_000);
                self.machines[machine].cut_off_until = until;
                if let Some(link) = link {
                    self.links[link].dead = true;
                }
            }
            (5 | 6, _) => self.crash_machine(machine),
            (7 | 8, _) => self.crash_platform(),
            (9, _) => {
                let until = self.now + self.random.between(500, 200_000);
                self.note(|| format!("platform is stopped until {until}"));
                self.platform.paused_until = until;
            }
            (10, _) => {
                let until = self.now + self.random.between(500, 200_000);
                self.machines[machine].paused_until = until;
            }
            (11, _) => {
                self.database.troubled_until = self.now + self.random.between(1_000, 40_000);
            }
            (12, _) => {
                let until = self.now + self.random.between(1_000, 120_000);
                self.machines[machine].disk.full_until = until;
            }
            (13, _) => self.drain(machine),
            (14, _) => self.rotate_key(machine),
            (15, _) => self.twin_comes_or_goes(),
            (16 | 17, _) => self.submit(),
            (18, _) => self.user_does(JobEvent::StopAsked),
            (19, _) if self.answers() && self.database.sessions.len() < MOST_SESSIONS => {
                self.make_session();
            }
            (20, _) if self.answers() && !self.database.sessions.is_empty() => {
                let most = self.database.sessions.len() as u64;
                let session = FederatedSessionId(self.random.between(1, most) as i64);
                self.stop_session(session);
            }
            _ => self.user_does(JobEvent::ResumeAsked),
        }
    }

    fn crash_machine(&mut self, machine: usize) {
        let power = self.random.chance(400);
        if self.machines[machine].process.is_none() {
            return;
        }
        self.kill_machine(machine, power);
        let wait = self.random.between(500, 250_000);
        self.machines[machine].run += 1;
        self.machine_later(machine, wait, MachineEvent::Start);
    }

    fn crash_platform(&mut self) {
        if self.platform.process.is_none() {
            return;
        }
        if self.platform.paused_until <= self.now && self.random.chance(300) {
            // An orderly stop: all sockets are closed first.
            let links: Vec<LinkId> = self.process().sessions.keys().copied().collect();
            for link in links {
                self.end_session(link, close::GOING_AWAY);
            }
        }
        self.kill_platform();
        let wait = self.random.between(300, 150_000);
        self.schedule_in(wait, Event::Mishap(Mishap::StartPlatform));
    }

    /// Whether the platform answers people.
    fn answers(&self) -> bool {
        self.platform.process.is_some() && self.platform.paused_until <= self.now
    }

    fn submit(&mut self) {
        if !self.answers() || self.database.jobs.len() >= MOST_JOBS {
            return;
        }
        let job = JobId(self.database.jobs.len() as i64 + 1);
        let retries = self.random.below(3) as u32;
        let asked = WorkerId(self.random.between(1, WORKERS) as i64);
        let row = JobRow {
            state: JobState::new(job, retries),
            revision: 0,
            requested: self.random.chance(150).then_some(asked),
            priority: self.random.below(3) as i32,
        };
        self.note(|| format!("job {job} is submitted, with {retries} retries"));
        self.database.jobs.insert(job, row);
        let total = self.random.between(1, 20);
        self.record.totals.insert(job, total);
        self.poke();
    }

    fn user_does(&mut self, event: JobEvent) {
        if !self.answers() || self.database.jobs.is_empty() {
            return;
        }
        let job = JobId(self.random.between(1, self.database.jobs.len() as u64) as i64);
        self.note(|| format!("job {job}: {event:?}"));
        let letter = Letter {
            event,
            lease: None,
            reply_to: ReplyTo::User,
        };
        self.post(job, letter);
    }

    fn drain(&mut self, machine: usize) {
        let worker = self.machines[machine].worker;
        if !self.answers() {
            return;
        }
        let row = self
            .database
            .workers
            .get_mut(&worker)
            .expect("it is enrolled");
        row.draining = !row.draining;
        let draining = row.draining;
        self.note(|| format!("worker {worker} drains: {draining}"));
        self.tell_supervisor(ToSupervisor::SetDraining { worker, draining });
    }

    /// The key is replaced, and half of the time the worker is sent the new one; else an operator takes it there.
    fn rotate_key(&mut self, machine: usize) {
        let worker = self.machines[machine].worker;
        if !self.answers() {
            return;
        }
        let row = self
            .database
            .workers
            .get_mut(&worker)
            .expect("it is enrolled");
        row.key += 1;
        let key = row.key;
        self.note(|| format!("worker {worker} has a new key, {key}"));
        let complete = self.random.chance(500).then(|| {
            Box::new(EnrollmentComplete {
                data: EnrollmentCompleteData {
                    worker_id: worker,
                    worker_name: String::new(),
                    api_key: key.to_string().into(),
                },
            })
        });
        self.tell_supervisor(ToSupervisor::KeyReplaced { worker, complete });
        for machine in self
            .machines
            .iter_mut()
            .filter(|machine| machine.worker == worker)
        {
            machine.given_key = Some(key);
        }
    }

    /// The machine that is a copy of the first.
    pub fn twin(&self) -> usize {
        self.machines.len() - 1
    }

    /// A second process with the identity of the first worker comes or goes.
    fn twin_comes_or_goes(&mut self) {
        let twin = self.twin();
        if self.machines[twin].process.is_some() {
            self.kill_machine(twin, false);
        } else {
            self.machines[twin].disk.key = self.machines[0].disk.key;
            self.start_machine(twin);
        }
    }

    /// Everything is repaired, and nothing more goes wrong.
    pub fn heal(&mut self) {
        self.note(|| "everything is repaired".to_owned());
        self.healed = true;
        self.record.healed_at = self.now;
        self.schedule_in(SESSIONS_GO_ON_MS, Event::Mishap(Mishap::StopSessions));
        self.database.troubled_until = 0;
        self.platform.paused_until = self.platform.paused_until.min(self.now);
        self.start_platform();
        let twin = self.twin();
        self.kill_machine(twin, false);
        while let Some(entry) = self.machines[twin].disk.outbox.next_after(None).cloned() {
            let Some(id) = entry.message.message_id() else {
                break;
            };
            self.machines[twin].disk.remove(id, self.now);
            self.record.forget(id);
        }
        for machine in 0..twin {
            let key = self.database.workers[&self.machines[machine].worker].key;
            let host = &mut self.machines[machine];
            host.paused_until = 0;
            host.cut_off_until = 0;
            host.disk.full_until = 0;
            if host.disk.key != key {
                host.given_key = Some(key);
            }
            if self.machines[machine].process.is_none() {
                self.machines[machine].run += 1;
                self.machine_later(machine, 0, MachineEvent::Start);
            }
            if let Some(link) = self.link_of(machine) {
                self.links[link].stalled_until = 0;
            }
        }
    }
}
