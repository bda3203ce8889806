//! Who takes part in a session: which shard is whose, who was seen lately, and how they behave.
//!
//! Everything is in memory, so that ten thousand who ask cost no query. A newcomer is written down before it is
//! told its shard; those who come while a write is under way share the next one. Late results are counted in
//! memory and written with the next write or within seconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use trainyard_shared::ids::FederatedSessionId;

use super::store::{self, ParticipantRow, Tally, natural};
use crate::clock::{Clock, Moment};
use crate::database::{Database, DatabaseError, now};

/// Most participants of one session.
pub const MAX_PARTICIPANTS: usize = 100_000;
/// So many make room at once where there are too many.
const FORGOTTEN_AT_ONCE: usize = 1_000;
/// Who asked within this time is there.
const SEEN: Duration = Duration::from_secs(600);
/// How old what was counted over all of them may be.
const COUNT_AGE: Duration = Duration::from_secs(1);

/// The participants of one session.
pub struct Participants {
    session: FederatedSessionId,
    database: Database,
    clock: Clock,
    inner: Mutex<Inner>,
    writing: tokio::sync::Mutex<()>,
}

struct Inner {
    by_name: HashMap<String, Participant>,
    /// Those of each shard that are there or have brought something.
    load: Vec<u64>,
    /// When that was last counted over all; joined since are counted one by one.
    load_counted: Option<Moment>,
    joining: Vec<(String, u64)>,
    /// Those who were forgotten, to be removed from the database.
    leaving: Vec<String>,
    counted: HashMap<String, Tally>,
    seen: Option<(Moment, usize)>,
}

struct Participant {
    shard: u64,
    is_written: bool,
    refused: u64,
    /// Whether anything is known of it that must not be forgotten.
    has_sent: bool,
    /// Whether a result of it counts.
    has_result: bool,
    seen_at: Option<Moment>,
}

impl Participant {
    fn is_there(&self, now: Moment) -> bool {
        self.seen_at.is_some_and(|at| now.since(at) < SEEN)
    }
}

/// Why somebody cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// There are too many already.
    #[error("{MAX_PARTICIPANTS} take part already")]
    TooMany,
    /// It could not be written down.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Participants {
    /// Those that the database knows, of a session with so many shards.
    pub fn new(
        session: FederatedSessionId,
        database: Database,
        clock: Clock,
        shards: u64,
        known: Vec<ParticipantRow>,
    ) -> Self {
        let load = vec![0; usize::try_from(shards.max(1)).unwrap_or(1)];
        let mut by_name = HashMap::with_capacity(known.len());
        for row in known {
            let participant = Participant {
                shard: natural(row.shard),
                is_written: true,
                refused: natural(row.refused),
                has_sent: row.accepted > 0 || row.refused > 0,
                has_result: row.accepted > 0,
                seen_at: None,
            };
            by_name.insert(row.name, participant);
        }
        Self {
            session,
            database,
            clock,
            inner: Mutex::new(Inner {
                by_name,
                load,
                load_counted: None,
                joining: Vec::new(),
                leaving: Vec::new(),
                counted: HashMap::new(),
                seen: None,
            }),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// The participant's shard: the one that it has, or for a newcomer the least used one, once that is written
    /// down.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed.
    pub async fn shard_of(&self, name: &str) -> Result<u64, JoinError> {
        if let Some(shard) = self.known(name)? {
            return Ok(shard);
        }
        let _turn = self.writing.lock().await;
        // Whoever had the turn before may have written this one too.
        if let Some(shard) = self.known(name)? {
            return Ok(shard);
        }
        self.write().await?;
        self.known(name)?
            .ok_or(JoinError::Database(DatabaseError::Busy))
    }

    /// The participant was written down with that shard, by whoever chose it.
    pub fn has_joined(&self, name: &str, shard: u64) {
        let mut inner = self.lock();
        if inner.by_name.contains_key(name) {
            return;
        }
        if let Some(load) = inner.load.get_mut(shard as usize) {
            *load += 1;
        }
        let participant = Participant {
            shard,
            is_written: true,
            refused: 0,
            has_sent: true,
            has_result: false,
            seen_at: None,
        };
        inner.by_name.insert(name.to_owned(), participant);
    }

    /// Notes that the participant is there. None for one that is not written down yet; it is put among those who
    /// join.
    fn known(&self, name: &str) -> Result<Option<u64>, JoinError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        if let Some(known) = inner.by_name.get_mut(name) {
            known.seen_at = Some(now);
            return Ok(known.is_written.then_some(known.shard));
        }
        if inner.by_name.len() >= MAX_PARTICIPANTS && !inner.make_room(now) {
            return Err(JoinError::TooMany);
        }
        let shard = inner.least_used(now);
        inner.load[shard] += 1;
        let shard = shard as u64;
        inner.joining.push((name.to_owned(), shard));
        let participant = Participant {
            shard,
            is_written: false,
            refused: 0,
            has_sent: false,
            has_result: false,
            seen_at: Some(now),
        };
        inner.by_name.insert(name.to_owned(), participant);
        Ok(None)
    }

    /// Writes down who has joined and what was counted. What fails, or is given up, is written the next time:
    /// joining twice changes nothing, and counts are taken out before and put back.
    async fn write(&self) -> Result<(), DatabaseError> {
        let (joining, leaving, counted) = {
            let mut inner = self.lock();
            let counted: Vec<_> = std::mem::take(&mut inner.counted).into_iter().collect();
            (inner.joining.clone(), inner.leaving.clone(), counted)
        };
        if joining.is_empty() && leaving.is_empty() && counted.is_empty() {
            return Ok(());
        }
        let session = self.session;
        let (names, gone, more) = (joining.clone(), leaving.clone(), counted.clone());
        let written = self
            .database
            .write::<_, DatabaseError, _>(move |c| {
                store::leave(c, session, &gone)?;
                store::join(c, session, &names, now())?;
                store::count(c, session, &more)
            })
            .await;
        let mut inner = self.lock();
        match written {
            Ok(()) => {
                inner.joining.drain(..joining.len());
                inner.leaving.drain(..leaving.len());
                for (name, _) in &joining {
                    if let Some(known) = inner.by_name.get_mut(name) {
                        known.is_written = true;
                    }
                }
                Ok(())
            }
            Err(error) => {
                for (name, tally) in counted {
                    inner.counted.entry(name).or_default().add(tally);
                }
                Err(error)
            }
        }
    }

    /// Counts an upload that was not valid; written down when this returns.
    ///
    /// # Errors
    /// Those of the database; it is counted nevertheless.
    pub async fn count_refused(&self, name: &str) -> Result<(), DatabaseError> {
        {
            let mut inner = self.lock();
            let Some(known) = inner.by_name.get_mut(name) else {
                return Ok(());
            };
            known.refused += 1;
            known.has_sent = true;
            inner.counted.entry(name.to_owned()).or_default().refused += 1;
        }
        let _turn = self.writing.lock().await;
        self.write().await
    }

    /// Somebody sends a result: from now on it is not forgotten.
    pub fn keep(&self, name: &str) {
        if let Some(known) = self.lock().by_name.get_mut(name) {
            known.has_sent = true;
        }
    }

    /// A result of it counts.
    pub fn has_result(&self, name: &str) {
        if let Some(known) = self.lock().by_name.get_mut(name) {
            (known.has_sent, known.has_result) = (true, true);
        }
    }

    /// Counts a result that came too late.
    pub fn count_late(&self, name: &str) {
        let mut inner = self.lock();
        if inner.by_name.contains_key(name) {
            inner.counted.entry(name.to_owned()).or_default().late += 1;
        }
    }

    /// Writes down what was counted in memory.
    ///
    /// # Errors
    /// Those of the database; it is written the next time.
    pub async fn flush(&self) -> Result<(), DatabaseError> {
        let _turn = self.writing.lock().await;
        self.write().await
    }

    /// Uploads of this participant that were not valid.
    pub fn refused(&self, name: &str) -> u64 {
        self.lock()
            .by_name
            .get(name)
            .map_or(0, |known| known.refused)
    }

    /// How many were seen within ten minutes; the number may be a second old.
    pub fn seen_lately(&self) -> usize {
        let now = self.clock.now();
        let mut inner = self.lock();
        if let Some((at, count)) = inner.seen
            && now.since(at) < COUNT_AGE
        {
            return count;
        }
        let all = inner.by_name.values();
        let count = all.filter(|one| one.is_there(now)).count();
        inner.seen = Some((now, count));
        count
    }

    /// How long ago this participant was seen; none for one that was not since the platform's start.
    pub fn seen_ago(&self, name: &str) -> Option<Duration> {
        let now = self.clock.now();
        let seen_at = self.lock().by_name.get(name)?.seen_at?;
        Some(now.since(seen_at))
    }

    /// A panic while the lock was held leaves what it guards whole.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    /// Forgets a part of those who have only ever asked, the longest unseen first, and were not seen lately.
    fn make_room(&mut self, now: Moment) -> bool {
        let mut idle: Vec<(Option<Moment>, String)> = self
            .by_name
            .iter()
            .filter(|(_, one)| one.is_written && !one.has_sent && !one.is_there(now))
            .map(|(name, one)| (one.seen_at, name.clone()))
            .collect();
        idle.sort_unstable();
        idle.truncate(FORGOTTEN_AT_ONCE);
        for (_, name) in &idle {
            self.by_name.remove(name);
        }
        let has_room = !idle.is_empty();
        self.leaving.extend(idle.into_iter().map(|(_, name)| name));
        has_room
    }

    /// The shard that the fewest have of those who are there or have brought something; of several the first.
    fn least_used(&mut self, now: Moment) -> usize {
        if self
            .load_counted
            .is_none_or(|at| now.since(at) >= COUNT_AGE)
        {
            self.load.fill(0);
            // After a start all have that time to come back.
            let may_come_back = now.since(Moment::START) < SEEN;
            let counts = |one: &Participant| {
                one.has_result || one.is_there(now) || (one.seen_at.is_none() && may_come_back)
            };
            for one in self.by_name.values().filter(|one| counts(one)) {
                if let Some(load) = self.load.get_mut(one.shard as usize) {
                    *load += 1;
                }
            }
            self.load_counted = Some(now);
        }
        let by_load = self
            .load
            .iter()
            .enumerate()
            .min_by_key(|(index, load)| (**load, *index));
        by_load.map_or(0, |(index, _)| index)
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.late += other.late;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(shards: usize) -> Inner {
        Inner {
            by_name: HashMap::new(),
            load: vec![0; shards],
            load_counted: None,
            joining: Vec::new(),
            leaving: Vec::new(),
            counted: HashMap::new(),
            seen: None,
        }
    }

    fn one(shard: u64, has_result: bool, seen_at: Option<Moment>) -> Participant {
        Participant {
            shard,
            is_written: true,
            refused: 0,
            has_sent: has_result,
            has_result,
            seen_at,
        }
    }

    #[test]
    fn names_that_only_asked_once_long_ago_take_no_place_in_a_shard() {
        let mut inner = inner(3);
        let now = Moment::START + 2 * SEEN;
        // A hundred that have left fill two shards; two who train are in the third, one of them away for a while.
        for number in 0..100 {
            let left = one(number % 2, false, Some(Moment::START));
            inner.by_name.insert(format!("left-{number}"), left);
        }
        let trains = [one(2, false, Some(now)), one(2, true, None)];
        for (number, one) in trains.into_iter().enumerate() {
            inner.by_name.insert(format!("trains-{number}"), one);
        }
        assert_eq!(inner.least_used(now), 0);
        assert_eq!(inner.load, [0, 0, 2]);
        // Counted anew only after a while; newcomers are counted as they come.
        inner.load[0] += 1;
        assert_eq!(inner.least_used(now), 1);
    }
}
