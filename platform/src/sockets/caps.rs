//! How many WebSockets may be open: by address, for those that have not said yet who they are, and by user.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trainyard_shared::ids::UserId;

use crate::error::{ApiError, ErrorCode};

/// Workers' connections from one address; there may be a whole site behind it.
const MAX_PER_ADDRESS: usize = 8_192;
/// Of these such as have not authenticated. Each may take the memory of one largest frame.
const MAX_STRANGERS_PER_ADDRESS: usize = 1_024;
/// The same from all addresses together.
const MAX_STRANGERS: usize = 4_096;
/// Dashboards of one user.
const MAX_DASHBOARDS_PER_USER: usize = 64;
/// When one that is refused may try again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Counts open connections. Cheap to clone.
#[derive(Clone, Default)]
pub struct ConnectionCaps {
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    by_address: HashMap<IpAddr, usize>,
    strangers_by_address: HashMap<IpAddr, usize>,
    strangers: usize,
    by_user: HashMap<UserId, usize>,
}

/// The place of a worker's connection; it is free again when this is dropped.
pub struct WorkerPlace {
    caps: ConnectionCaps,
    address: IpAddr,
    is_stranger: bool,
}

/// The place of a dashboard's connection; it is free again when this is dropped.
pub struct DashboardPlace {
    caps: ConnectionCaps,
    user: UserId,
}

impl ConnectionCaps {
    /// A place for a worker's connection, of which nothing is known but its address.
    ///
    /// # Errors
    /// 429: too many are open.
    pub fn worker(&self, address: IpAddr) -> Result<WorkerPlace, ApiError> {
        let mut open = self.lock();
        let count = |counts: &HashMap<IpAddr, usize>| counts.get(&address).copied().unwrap_or(0);
        if open.strangers >= MAX_STRANGERS
            || count(&open.strangers_by_address) >= MAX_STRANGERS_PER_ADDRESS
            || count(&open.by_address) >= MAX_PER_ADDRESS
        {
            return Err(too_many("too many connections are open"));
        }
        open.strangers += 1;
        *open.strangers_by_address.entry(address).or_default() += 1;
        *open.by_address.entry(address).or_default() += 1;
        Ok(WorkerPlace {
            caps: self.clone(),
            address,
            is_stranger: true,
        })
    }

    /// A place for a dashboard of that user.
    ///
    /// # Errors
    /// 429: too many are open.
    pub fn dashboard(&self, user: UserId) -> Result<DashboardPlace, ApiError> {
        let mut open = self.lock();
        let count = open.by_user.entry(user).or_default();
        if *count >= MAX_DASHBOARDS_PER_USER {
            return Err(too_many("too many dashboards of this user are open"));
        }
        *count += 1;
        Ok(DashboardPlace {
            caps: self.clone(),
            user,
        })
    }

    /// A panic while the lock was held leaves counts that are whole.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerPlace {
    /// The worker has authenticated.
    pub fn known(&mut self) {
        if std::mem::replace(&mut self.is_stranger, false) {
            let mut open = self.caps.lock();
            open.strangers -= 1;
            leave(&mut open.strangers_by_address, &self.address);
        }
    }
}

impl Drop for WorkerPlace {
    fn drop(&mut self) {
        self.known();
        leave(&mut self.caps.lock().by_address, &self.address);
    }
}

impl Drop for DashboardPlace {
    fn drop(&mut self) {
        leave(&mut self.caps.lock().by_user, &self.user);
    }
}

fn leave<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn too_many(message: &str) -> ApiError {
    ApiError::new(ErrorCode::RateLimited, message).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn strangers_are_capped_by_address_and_together_and_make_room_when_they_are_known() {
        let caps = ConnectionCaps::default();
        let mut places: Vec<_> = (0..MAX_STRANGERS_PER_ADDRESS)
            .map(|_| caps.worker(address(1)).unwrap())
            .collect();
        assert!(caps.worker(address(1)).is_err());
        assert!(caps.worker(address(2)).is_ok());
        places[0].known();
        places.push(caps.worker(address(1)).unwrap());
        assert!(caps.worker(address(1)).is_err());
        let others: Vec<_> = (2..=255)
            .flat_map(|last| std::iter::repeat_n(last, MAX_STRANGERS_PER_ADDRESS))
            .map_while(|last| caps.worker(address(last)).ok())
            .collect();
        assert_eq!(others.len() + MAX_STRANGERS_PER_ADDRESS, MAX_STRANGERS);
        drop((places, others));
        let open = caps.lock();
        assert_eq!(open.strangers, 0);
        assert!(open.by_address.is_empty() && open.strangers_by_address.is_empty());
    }

    #[test]
    fn known_workers_of_one_address_are_capped_too() {
        let caps = ConnectionCaps::default();
        let mut places = Vec::new();
        while let Ok(mut place) = caps.worker(address(1)) {
            place.known();
            places.push(place);
        }
        assert_eq!(places.len(), MAX_PER_ADDRESS);
    }

    #[test]
    fn dashboards_are_capped_by_user() {
        let caps = ConnectionCaps::default();
        let places: Vec<_> = (0..MAX_DASHBOARDS_PER_USER)
            .map(|_| caps.dashboard(UserId(1)).unwrap())
            .collect();
        assert!(caps.dashboard(UserId(1)).is_err());
        assert!(caps.dashboard(UserId(2)).is_ok());
        drop(places);
        assert!(caps.lock().by_user.is_empty());
    }
}
