//! The network: links that carry frames in order, and how they break. What is on its way when a process dies
//! still arrives; what is on its way when a link is cut does not. A dead link can look alive to both ends.

use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::{FromWorker, ToWorker};

use crate::world::{Event, World};

pub type LinkId = usize;

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Platform,
    Machine,
}

/// What goes over a link.
#[derive(Debug, Clone)]
pub enum Frame {
    FromWorker(Box<FromWorker>),
    ToWorker(Box<ToWorker>),
    /// `start_federated_training`, or `load_aggregated_weights` and `continue_round`.
    RoundAsked {
        session: FederatedSessionId,
        round: u64,
        begins: bool,
    },
    Ping,
    Pong,
    Close(u16),
}

/// A connection between a worker's process and a platform's.
pub struct Link {
    pub machine: usize,
    pub machine_run: u32,
    /// Nothing arrives any more, and nobody is told.
    pub dead: bool,
    /// Nothing arrives before this time.
    pub stalled_until: u64,
    /// When the last frame arrives, by receiver: frames stay in order.
    last_arrival: [u64; 2],
}

impl Side {
    pub fn other(self) -> Self {
        match self {
            Self::Platform => Self::Machine,
            Self::Machine => Self::Platform,
        }
    }
}

impl World {
    pub fn open_link(&mut self, machine: usize) -> LinkId {
        self.links.push(Link {
            machine,
            machine_run: self.machines[machine].run,
            dead: false,
            stalled_until: 0,
            last_arrival: [0; 2],
        });
        self.links.len() - 1
    }

    /// Puts a frame on its way. Now and then one arrives twice, as from a peer that repeats itself.
    pub fn send(&mut self, link: LinkId, from: Side, frame: Frame) {
        let repeated = matches!(frame, Frame::FromWorker(_)) && self.random.chance(10);
        if repeated
            && !matches!(&frame, Frame::FromWorker(m) if matches!(**m, FromWorker::Authenticate(_)))
        {
            self.put_on_its_way(link, from, frame.clone());
        }
        self.put_on_its_way(link, from, frame);
    }

    fn put_on_its_way(&mut self, link: LinkId, from: Side, frame: Frame) {
        if self.links[link].dead {
            return;
        }
        let at = self.arrival(link, from.other());
        let to = from.other();
        self.schedule_at(at, Event::Frame { link, to, frame });
    }

    /// One end is gone in an orderly way, or its process was killed: the other end learns of it behind all
    /// that was sent before.
    pub fn hang_up(&mut self, link: LinkId, from: Side) {
        if self.links[link].dead {
            return;
        }
        let to = from.other();
        let at = self.arrival(link, to);
        self.schedule_at(at, Event::End { link, to });
    }

    fn arrival(&mut self, link: LinkId, to: Side) -> u64 {
        let delay = if self.random.chance(20) {
            self.random.between(200, 3_000)
        } else {
            self.random.between(1, 120)
        };
        let link = &mut self.links[link];
        let last = &mut link.last_arrival[to as usize];
        *last = (*last).max(self.now + delay).max(link.stalled_until);
        *last
    }

    /// The link breaks: each end learns of it at some time of its own.
    pub fn cut(&mut self, link: LinkId) {
        self.links[link].dead = true;
        for to in [Side::Platform, Side::Machine] {
            let wait = if self.random.chance(200) {
                self.random.between(1_000, 120_000)
            } else {
                self.random.between(0, 500)
            };
            self.schedule_at(self.now + wait, Event::End { link, to });
        }
    }

    /// The link of a machine's process, if it has one.
    pub fn link_of(&self, machine: usize) -> Option<LinkId> {
        let process = self.machines[machine].process.as_ref()?;
        process.link.as_ref().map(|link| link.id)
    }
}
