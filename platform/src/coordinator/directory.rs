//! Finds volunteer sessions by name and number, and which of them is at the root.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use chrono::{NaiveDateTime, TimeDelta};
use trainyard_shared::ids::FederatedSessionId;

use super::hosted::Hosted;

/// How long a session that has ended says so at the root, where it is not the default one and no other is there: its
/// volunteers may be in the midst of a round.
const ENDED_AT_ROOT: TimeDelta = TimeDelta::hours(24);

/// The volunteer sessions of the platform, those that have ended included.
#[derive(Default)]
pub struct Directory {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    by_id: BTreeMap<FederatedSessionId, Arc<Hosted>>,
    by_name: HashMap<String, Arc<Hosted>>,
    default: Option<Arc<Hosted>>,
}

impl Directory {
    /// A session that was made or loaded.
    pub fn add(&self, hosted: Arc<Hosted>) {
        let mut known = self
            .known
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        known
            .by_name
            .insert(hosted.row.name.clone(), hosted.clone());
        known.by_id.insert(hosted.id(), hosted);
    }

    /// A session is open now, or has ended; where it is the default one, it takes that place.
    pub fn ready(&self, hosted: &Arc<Hosted>) {
        if hosted.row.is_default {
            let mut known = self
                .known
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            known.default = Some(hosted.clone());
        }
    }

    /// The default session.
    pub fn default_session(&self) -> Option<Arc<Hosted>> {
        self.read(|known| known.default.clone())
    }

    /// The session of that number.
    pub fn get(&self, id: FederatedSessionId) -> Option<Arc<Hosted>> {
        self.read(|known| known.by_id.get(&id).cloned())
    }

    /// The session at `/c/{name}/`.
    pub fn named(&self, name: &str) -> Option<Arc<Hosted>> {
        self.read(|known| known.by_name.get(name).cloned())
    }

    /// A session is deleted.
    pub fn remove(&self, id: FederatedSessionId) {
        let mut known = self
            .known
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        known.by_id.remove(&id);
        known.by_name.retain(|_, one| one.id() != id);
        known.default.take_if(|one| one.id() == id);
    }

    /// The session at the root: the default one; else the only open one; else the only one that is being prepared;
    /// else, where there is none of these, the one that has ended last, within a day of its end: so its volunteers
    /// learn of it.
    pub fn at_the_root(&self, now: NaiveDateTime) -> Option<Arc<Hosted>> {
        self.read(|known| {
            if let Some(default) = &known.default {
                return Some(default.clone());
            }
            let all = || known.by_id.values();
            let (mut open, mut preparing) = (
                all().filter(|one| one.is_open()),
                all().filter(|one| one.is_preparing()),
            );
            match (open.next(), open.next(), preparing.next(), preparing.next()) {
                (Some(only), None, ..) | (None, None, Some(only), None) => Some(only.clone()),
                (Some(_), Some(_), ..) | (None, _, Some(_), _) => None,
                (None, _, None, _) => {
                    let ended = all().filter_map(|one| Some((one.ended_at()?, one)));
                    let (at, last) = ended.max_by_key(|(at, _)| *at)?;
                    (now - at < ENDED_AT_ROOT).then(|| last.clone())
                }
            }
        })
    }

    /// Whether that number is the default session's.
    pub fn is_default(&self, id: FederatedSessionId) -> bool {
        self.read(|known| known.default.as_ref().is_some_and(|one| one.id() == id))
    }

    fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(
            &self
                .known
                .read()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        )
    }
}
