//! A worker's disk. What is written is there for the next process at once; what is not synced is lost with the
//! power. The outbox syncs what it keeps, and does not sync what it removes.

use trainyard_shared::ids::MessageId;
use trainyard_shared::message::FromWorker;
use trainyard_worker::connection::waiting::{Entry, Waiting, WaitingFile};

/// The system writes by itself what is older than this.
const WRITTEN_WITHIN_MS: u64 = 5_000;

pub struct Disk {
    /// The worker's own key; synced before the worker goes on.
    pub key: u32,
    pub outbox: Waiting,
    /// Nothing more can be written until then.
    pub full_until: u64,
    unsynced: Vec<(u64, Change)>,
}

enum Change {
    Added(MessageId),
    Removed(Box<Entry>),
}

impl Disk {
    pub fn new(key: u32) -> Self {
        Self {
            key,
            outbox: Waiting::default(),
            full_until: 0,
            unsynced: Vec::new(),
        }
    }

    /// Keeps a message; false on a full disk.
    pub fn keep(
        &mut self,
        message: FromWorker,
        files: Vec<WaitingFile>,
        now: u64,
        syncs: bool,
    ) -> bool {
        if now < self.full_until {
            return false;
        }
        let place = self.outbox.next_place();
        if let Some(id) = message.message_id().filter(|_| !syncs) {
            self.unsynced.push((now, Change::Added(id)));
        }
        self.outbox.put(Entry {
            place,
            message,
            files,
        });
        self.outbox.give_up_old_checkpoint(place);
        true
    }

    pub fn remove(&mut self, message: MessageId, now: u64) -> bool {
        let Some(entry) = self.outbox.find(message).cloned() else {
            return false;
        };
        self.unsynced.push((now, Change::Removed(Box::new(entry))));
        self.outbox.remove(message).is_some()
    }

    pub fn lose_power(&mut self, now: u64) {
        for (at, change) in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if now - at > WRITTEN_WITHIN_MS {
                continue;
            }
            match change {
                Change::Added(message) => {
                    self.outbox.remove(message);
                }
                Change::Removed(entry) => self.outbox.put(*entry),
            }
        }
    }
}
