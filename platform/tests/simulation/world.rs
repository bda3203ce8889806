//! The simulated world: its clock, its agenda, and everything in it. One event happens at a time; after each, all
//! invariants are looked at.

use std::collections::BTreeMap;

use crate::chaos::Mishap;
use crate::database::Database;
use crate::invariants::Record;
use crate::network::{Frame, Link, LinkId, Side};
use crate::platform::{Platform, PlatformEvent};
use crate::random::Random;
use crate::worker::{Machine, MachineEvent};

/// Something that is going to happen.
pub enum Event {
    Frame {
        link: LinkId,
        to: Side,
        frame: Frame,
    },
    /// One end of a link learns that it is no more.
    End {
        link: LinkId,
        to: Side,
    },
    Platform {
        run: u32,
        event: PlatformEvent,
    },
    Machine {
        machine: usize,
        run: u32,
        event: MachineEvent,
    },
    Mishap(Mishap),
    /// Everything is repaired from here on.
    Heal,
}

/// A fault built in on purpose, to show that the invariants find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// What a replaced connection says still counts.
    StaleGenerationAccepted,
    /// A message is acknowledged before what it changes is written.
    AckBeforeCommit,
    /// The worker does not sync its outbox.
    OutboxNotSynced,
    /// A write whose outcome is not known is taken for one that did not happen, and the next overwrites it.
    CommitWithoutComparing,
    /// After a restart the platform does not take up the jobs that were with workers.
    RestartForgetsJobs,
    /// The worker starts what it is told to, whether it has it already or not.
    StartsTwice,
    /// The supervisor is not told that a worker is free again.
    ReleaseLost,
    /// After a restart the supervisor does not know who takes part in sessions.
    RestartForgetsSessions,
    /// A session is not told that a worker is given up.
    SessionNewsLost,
}

/// What came of one seed.
pub struct Finding {
    pub seed: u64,
    pub at_ms: u64,
    pub what: String,
    pub trace: Vec<String>,
}

pub struct World {
    pub now: u64,
    pub random: Random,
    pub broken: Option<Broken>,
    agenda: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub links: Vec<Link>,
    pub platform: Platform,
    pub database: Database,
    pub machines: Vec<Machine>,
    pub healed: bool,
    pub record: Record,
    trace: Option<Vec<String>>,
}

/// Nothing takes longer than this after everything has been repaired.
const SETTLED_WITHIN_MS: u64 = 45 * 60_000;

impl World {
    fn new(seed: u64, broken: Option<Broken>, traced: bool) -> Self {
        Self {
            now: 0,
            random: Random::new(seed),
            broken,
            agenda: BTreeMap::new(),
            scheduled: 0,
            links: Vec::new(),
            platform: Platform::default(),
            database: Database::default(),
            machines: Vec::new(),
            healed: false,
            record: Record::default(),
            trace: traced.then(Vec::new),
        }
    }

    pub fn schedule_at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.agenda
            .insert((at.max(self.now), self.scheduled), event);
    }

    pub fn schedule_in(&mut self, wait: u64, event: Event) {
        self.schedule_at(self.now + wait, event);
    }

    /// Writes a line into the trace, which is only kept for a seed that is replayed.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3} s  {}", self.now as f64 / 1e3, line()));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Frame { link, to, frame } => self.deliver_frame(link, to, frame),
            Event::End { link, to } => self.deliver_end(link, to),
            Event::Platform { run, event } => {
                if self.platform.run == run && self.platform.process.is_some() {
                    self.platform_event(event);
                }
            }
            Event::Machine {
                machine,
                run,
                event,
            } => {
                if self.machines[machine].run == run {
                    self.machine_event(machine, event);
                }
            }
            Event::Mishap(mishap) => self.mishap(mishap),
            Event::Heal => self.heal(),
        }
    }

    /// Until when the process that an event is for is stopped (SIGSTOP); what comes for it waits so long.
    fn paused_until(&self, event: &Event) -> u64 {
        match event {
            Event::Platform { .. } => self.platform.paused_until,
            Event::Machine { machine, .. } => self.machines[*machine].paused_until,
            Event::Frame { link, to, .. } | Event::End { link, to } => match to {
                Side::Platform => self.platform.paused_until,
                Side::Machine => self.machines[self.links[*link].machine].paused_until,
            },
            Event::Mishap(_) | Event::Heal => 0,
        }
    }

    fn deliver_frame(&mut self, link: LinkId, to: Side, frame: Frame) {
        if self.links[link].dead {
            return;
        }
        match to {
            Side::Platform => self.platform_hears(link, frame),
            Side::Machine => self.machine_hears(link, frame),
        }
    }

    fn deliver_end(&mut self, link: LinkId, to: Side) {
        match to {
            Side::Platform => self.session_gone(link),
            Side::Machine => self.machine_loses(link),
        }
    }

    fn run(&mut self) {
        self.begin();
        while let Some(((at, order), event)) = self.agenda.pop_first() {
            self.now = at;
            let paused_until = self.paused_until(&event);
            if paused_until > self.now {
                self.agenda.insert((paused_until, order), event);
                continue;
            }
            self.happen(event);
            self.check_invariants();
            if self.record.violation.is_some() || (self.healed && self.has_settled()) {
                return;
            }
            if self.healed && self.now > self.record.healed_at + SETTLED_WITHIN_MS {
                return self.explain_unrest();
            }
        }
    }
}

/// Runs one seed: none if all invariants held and everything came to rest.
pub fn simulate(seed: u64, broken: Option<Broken>) -> Option<Finding> {
    let mut world = World::new(seed, broken, false);
    world.run();
    world.record.violation.as_ref()?;
    // The same once more, with a trace.
    let mut world = World::new(seed, broken, true);
    world.run();
    Some(Finding {
        seed,
        at_ms: world.now,
        what: world.record.violation.unwrap_or_else(|| {
            "the same seed gave another run: something is not deterministic".to_owned()
        }),
        trace: world.trace.unwrap_or_default(),
    })
}
