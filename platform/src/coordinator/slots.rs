//! Which uploads of volunteers are on their way: one of each worker, a share for each address, and together no more
//! than the disk has room for.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};

use actix_web::http::StatusCode;
use trainyard_shared::ids::FederatedSessionId;

use super::Refused;
use crate::rounds::scratch::RESERVED_BYTES;

/// Uploads that may be on their way at once, in all and from one address.
const MOST_UPLOADS: usize = 512;
const MOST_OF_ADDRESS: usize = 64;

/// The uploads of the platform, of all sessions.
#[derive(Default)]
pub struct UploadSlots {
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    workers: HashSet<(FederatedSessionId, String)>,
    by_address: HashMap<IpAddr, usize>,
    bytes: u64,
}

/// Who sends what.
#[derive(Debug, Clone)]
pub struct Sender {
    /// To which session.
    pub session: FederatedSessionId,
    /// Under which name.
    pub worker: String,
    /// From where.
    pub address: IpAddr,
    /// The length that the sender has announced.
    pub size_bytes: u64,
}

/// The right to send, given back when dropped.
pub struct Slot<'a> {
    slots: &'a UploadSlots,
    sender: Sender,
}

impl UploadSlots {
    /// A slot for an upload, while `free_bytes` are left on the disk.
    ///
    /// # Errors
    /// 503 where there are too many or one of this worker is under way, 507 where there is no room.
    pub fn take(&self, sender: Sender, free_bytes: u64) -> Result<Slot<'_>, Refused> {
        let mut taken = self.lock();
        let worker = (sender.session, sender.worker.clone());
        if taken.workers.contains(&worker) {
            return Err(Refused::later("an upload of this worker is under way"));
        }
        let of_address = taken.by_address.get(&sender.address).copied().unwrap_or(0);
        if taken.workers.len() >= MOST_UPLOADS || of_address >= MOST_OF_ADDRESS {
            return Err(Refused::later("too many uploads at once; try again"));
        }
        // What others have written already is counted twice, which errs on the safe side.
        let needed = taken.bytes.saturating_add(sender.size_bytes);
        if free_bytes < needed.saturating_add(RESERVED_BYTES) {
            return Err(Refused::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "the coordinator's disk is full; try again later",
            ));
        }
        taken.workers.insert(worker);
        *taken.by_address.entry(sender.address).or_default() += 1;
        taken.bytes = needed;
        Ok(Slot {
            slots: self,
            sender,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        let Sender {
            session,
            worker,
            address,
            size_bytes,
        } = &self.sender;
        taken.workers.remove(&(*session, worker.clone()));
        taken.bytes -= size_bytes;
        if let Some(count) = taken.by_address.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(worker: &str, address: u8) -> Sender {
        Sender {
            session: FederatedSessionId(1),
            worker: worker.to_owned(),
            address: IpAddr::from([10, 0, 0, address]),
            size_bytes: 1 << 20,
        }
    }

    #[test]
    fn g103_one_upload_a_worker_a_share_an_address_and_no_more_than_the_disk_holds() {
        let slots = UploadSlots::default();
        let first = slots.take(sender("ali", 1), u64::MAX).ok().unwrap();
        let status =
            |taken: Result<Slot<'_>, Refused>| taken.err().map(|refused| refused.status().as_u16());
        assert_eq!(status(slots.take(sender("ali", 2), u64::MAX)), Some(503));
        drop(first);
        let one: Vec<_> = (0..MOST_OF_ADDRESS)
            .map(|n| {
                slots
                    .take(sender(&format!("a{n}"), 1), u64::MAX)
                    .ok()
                    .unwrap()
            })
            .collect();
        assert_eq!(status(slots.take(sender("more", 1), u64::MAX)), Some(503));
        assert_eq!(status(slots.take(sender("more", 2), u64::MAX)), None);
        drop(one);
        let free = RESERVED_BYTES + (3 << 20) - 1;
        let _two =
            [sender("x", 1), sender("y", 1)].map(|sender| slots.take(sender, free).ok().unwrap());
        assert_eq!(status(slots.take(sender("z", 1), free)), Some(507));
    }
}
