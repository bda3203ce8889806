//! A thousand rounds in virtual time: twenty workers, a fifth of their uploads bad, a tenth of them silent in a
//! round, and fifty kills at points in between. The state machine, the SQL, the checks and the merges are the
//! real ones; carried out here is what the actor carries out, in its order. What comes of it must have the same
//! SHA-256 as a clean replay of the results that were accepted.

mod parts;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diesel::prelude::*;
use tempfile::TempDir;
use trainyard_aggregation::{CheckError, GlobalAdapter, Merge, Rule, Update, check, merge};
use trainyard_shared::ids::{FederatedSessionId, UserId};

use self::parts::{Dice, adapter, digest, good_result, spoilt};
use super::Kind;
use super::state::{Answer, Change, Event, Phase, Rounds, Rules, Standing};
use super::store::{self, NewSession, Outcome, ResultRow, SessionRow, integer};
use crate::clock::Moment;
use crate::database::schema::users;
use crate::database::{DatabaseError, DbConnection, in_memory, now};
use crate::storage::StoredObject;

const WORKERS: u64 = 20;
const ENOUGH: usize = 12;
const TIMEOUT: Duration = Duration::from_secs(60);
const OUTER_LR: f64 = 1.0;
const OUTER_MOMENTUM: f64 = 0.5;

/// The process was killed.
#[derive(Debug)]
struct Killed;

/// What the platform has, on its disk and in its memory.
struct Yard {
    folder: TempDir,
    connection: DbConnection,
    session: SessionRow,
    /// Memory: gone with a kill.
    rounds: Rounds,
    now: Moment,
    dice: Dice,
    next_number: i64,
    kills_left: u32,
    /// One of so many points at which the process may be killed is one at which it is.
    kill_one_in: u64,
    kills: u32,
    refused: u64,
    counted_twice: u64,
}

impl Yard {
    fn new(total_rounds: u64, seed: u64, kills: u32, kill_one_in: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = in_memory();
        diesel::insert_into(users::table)
            .values((
                users::email.eq("a@example.org"),
                users::password_hash.eq(""),
                users::role.eq("admin"),
                users::created_at.eq(now()),
            ))
            .execute(&mut connection)
            .unwrap();
        let rules = Rules {
            total_rounds,
            enough: ENOUGH,
            at_least: 1,
            timeout: Some(TIMEOUT),
        };
        let new = NewSession {
            owner: UserId(1),
            kind: Kind::Volunteers,
            name: "simulated".to_owned(),
            is_default: false,
            base_model: "yard/tiny".to_owned(),
            job: None,
            dataset: None,
            settings: "{}".to_owned(),
            shards: 4,
            rules,
            rule: Rule::Nesterov,
            outer_lr: OUTER_LR,
            outer_momentum: OUTER_MOMENTUM,
            max_delta_norm: None,
            max_refused: None,
            key_hash: None,
        };
        let first = adapter(&[0.5; 64]);
        fs::write(folder.path().join("global-0"), &first).unwrap();
        let weights = StoredObject {
            size_bytes: first.len() as u64,
            sha256: digest(&first),
        };
        let session = store::insert(&mut connection, &new, now()).unwrap();
        let id = session.id();
        store::open(&mut connection, id, "{}", &weights, &[], now()).unwrap();
        let names: Vec<_> = (0..WORKERS).map(|n| (worker(n), n % 4)).collect();
        store::join(&mut connection, id, &names, now()).unwrap();
        let now = Moment::START;
        let session = store::row(&mut connection, id).unwrap();
        Self {
            rounds: store::load(&mut connection, &session, now).unwrap(),
            folder,
            connection,
            session,
            now,
            dice: Dice(seed),
            next_number: 0,
            kills_left: kills,
            kill_one_in,
            kills: 0,
            refused: 0,
            counted_twice: 0,
        }
    }

    fn id(&self) -> FederatedSessionId {
        self.session.id()
    }

    fn path(&self, name: String) -> PathBuf {
        self.folder.path().join(name)
    }

    fn global(&self, round: u64) -> PathBuf {
        self.path(format!("global-{round}"))
    }

    fn update(&self, round: u64, number: i64) -> PathBuf {
        self.path(format!("update-{round}-{number}"))
    }

    /// A point at which the process may be killed.
    fn may_be_killed(&mut self) -> Result<(), Killed> {
        if self.kills_left > 0 && self.dice.below(self.kill_one_in) == 0 {
            self.kills_left -= 1;
            return Err(Killed);
        }
        Ok(())
    }

    /// The platform starts again: what was in memory is as the database has it.
    fn restart(&mut self) {
        self.kills += 1;
        let id = self.id();
        let session = store::row(&mut self.connection, id).unwrap();
        self.rounds = store::load(&mut self.connection, &session, self.now).unwrap();
        self.session = session;
    }

    fn write<T>(&mut self, query: impl FnOnce(&mut DbConnection) -> Result<T, DatabaseError>) -> T {
        let written = self.connection.immediate_transaction(|c| {
            query(c).map_err(|error| {
                panic!("a write fails: {error}");
            })
        });
        let written: Result<T, diesel::result::Error> = written;
        written.unwrap()
    }

    /// What the actor does with an event that has no result with it.
    fn happen(&mut self, event: Event) -> Result<(), Killed> {
        let id = self.id();
        let round = self.rounds.round();
        if let Some(change) = self.rounds.decide(event, self.now).change {
            match change.clone() {
                Change::Closed => self.write(|c| store::close(c, id)),
                Change::Overdue => {}
                other => panic!("{other:?} in round {round} comes with something"),
            }
            self.may_be_killed()?;
            self.rounds.make(change, self.now);
        }
        Ok(())
    }

    /// An upload, from its first byte to its answer.
    fn upload(&mut self, worker: &str, round: u64, body: &[u8]) -> Result<Answer, Killed> {
        let standing = self.rounds.standing(worker, round);
        let sha256 = digest(body);
        if standing != Standing::Welcome {
            return Ok(super::session::answer_to(standing, &sha256));
        }
        let number = self.next_number;
        self.next_number += 1;
        let path = self.update(round, number);
        fs::write(&path, body).unwrap();
        self.may_be_killed()?;
        let global = GlobalAdapter::open(&self.global(round)).unwrap();
        let delta_norm = match check(&path, &global, None) {
            Ok(checked) => checked.delta_norm,
            Err(CheckError::Refused(_)) => {
                self.refused += 1;
                fs::remove_file(&path).unwrap();
                return Ok(Answer::Refused(Standing::Welcome));
            }
            Err(CheckError::Failed(error)) => panic!("{error}"),
        };
        let event = Event::ResultStored {
            participant: worker.to_owned(),
            round,
            sha256: sha256.clone(),
        };
        let decision = self.rounds.decide(event, self.now);
        if let Some(change) = decision.change {
            let Change::Accepted { closes, .. } = change else {
                panic!("a result is accepted or refused")
            };
            let row = ResultRow {
                session_id: self.id().get(),
                round: integer(round),
                participant: worker.to_owned(),
                number,
                sha256,
                size_bytes: body.len() as i64,
                delta_norm,
                weight: 1,
                loss: None,
                eliminated_because: None,
                accepted_at: now(),
            };
            self.write(|c| store::accept(c, &row, closes));
            self.may_be_killed()?;
            self.rounds.make(change, self.now);
        }
        Ok(decision.answer)
    }

    /// Merges the round, as long as it takes.
    fn merge(&mut self) -> Result<(), Killed> {
        let (id, round) = (self.id(), self.rounds.round());
        let results = store::results(&mut self.connection, id, round).unwrap();
        let row = store::round(&mut self.connection, id, round).unwrap();
        let updates: Vec<_> = results
            .iter()
            .map(|row| update_of(row, self.update(round, row.number)))
            .collect();
        let velocity = row
            .has_velocity
            .then(|| self.path(format!("velocity-{round}")));
        let (out, velocity_out) = (
            self.global(round + 1),
            self.path(format!("velocity-{}", round + 1)),
        );
        self.may_be_killed()?;
        let outcome = merged(
            &self.global(round),
            velocity.as_deref(),
            &updates,
            &out,
            &velocity_out,
        );
        self.may_be_killed()?;
        let now_stored = now();
        let is_last = round + 1 == self.rounds.rules().total_rounds;
        self.write(|c| {
            let files = is_last.then_some(&[][..]);
            store::advance(c, id, round, &outcome, files, now_stored)
        });
        self.may_be_killed()?;
        let decision = self.rounds.decide(Event::Merged { round }, self.now);
        self.rounds.make(decision.change.unwrap(), self.now);
        Ok(())
    }

    /// A round in which everybody does what the dice say.
    fn play_round(&mut self) {
        let round = self.rounds.round();
        let mut workers: Vec<u64> = (0..WORKERS).collect();
        self.dice.shuffle(&mut workers);
        for number in workers {
            if self.rounds.round() != round || self.rounds.phase() != Phase::Open {
                break;
            }
            if self.dice.percent(10) {
                continue;
            }
            self.now = self.now + Duration::from_millis(500 + self.dice.below(3_000));
            let good = good_result(&fs::read(self.global(round)).unwrap(), round, number);
            let body = match self.dice.percent(20) {
                true => spoilt(good, &mut self.dice),
                false => good,
            };
            self.send_until_answered(&worker(number), round, &body);
        }
        self.run_to_the_next_round(round);
    }

    /// A worker sends again when its connection broke.
    fn send_until_answered(&mut self, worker: &str, round: u64, body: &[u8]) {
        let mut was_killed = false;
        loop {
            match self.upload(worker, round, body) {
                Ok(Answer::Taken) if was_killed => return,
                Ok(Answer::Taken) => {
                    // Now and then the answer is lost, and the same comes once more.
                    if self.dice.percent(5) {
                        let before = self.rounds.results().len();
                        let again = self.upload(worker, round, body);
                        if again.is_ok() && self.rounds.results().len() > before {
                            self.counted_twice += 1;
                        }
                        if again.is_err() {
                            self.restart();
                        }
                    }
                    return;
                }
                Ok(_) => return,
                Err(Killed) => {
                    was_killed = true;
                    self.restart();
                }
            }
        }
    }

    fn run_to_the_next_round(&mut self, round: u64) {
        while self.rounds.round() == round && !self.rounds.phase().is_ended() {
            let done = match self.rounds.phase() {
                Phase::Merging => self.merge(),
                _ => {
                    match self.rounds.deadline() {
                        Some(deadline) => self.now = self.now.max(deadline),
                        None => return,
                    }
                    self.happen(Event::DeadlinePassed)
                }
            };
            if done.is_err() {
                self.restart();
            }
        }
    }

    /// The SHA-256 that the results in the database give when they are merged anew, one round after the other and
    /// in another order.
    fn replayed(&mut self) -> String {
        let id = self.id();
        let clean = tempfile::tempdir().unwrap();
        let at = |name: String| clean.path().join(name);
        fs::copy(self.global(0), at("global-0".to_owned())).unwrap();
        let mut sha256 = String::new();
        for round in 0..self.rounds.round() {
            let results = store::results(&mut self.connection, id, round).unwrap();
            let mut updates: Vec<_> = results
                .iter()
                .map(|row| update_of(row, self.update(round, row.number)))
                .collect();
            self.dice.shuffle(&mut updates);
            let velocity = at(format!("velocity-{round}"));
            let outcome = merged(
                &at(format!("global-{round}")),
                velocity.exists().then_some(velocity.as_path()),
                &updates,
                &at(format!("global-{}", round + 1)),
                &at(format!("velocity-{}", round + 1)),
            );
            sha256 = outcome.weights.sha256;
        }
        sha256
    }
}

fn worker(number: u64) -> String {
    format!("worker-{number:02}")
}

fn update_of(row: &ResultRow, path: PathBuf) -> Update {
    Update {
        name: row.participant.clone(),
        path,
        weight: 1,
        delta_norm: row.delta_norm,
    }
}

fn merged(
    global: &Path,
    velocity: Option<&Path>,
    updates: &[Update],
    out: &Path,
    velocity_out: &Path,
) -> Outcome {
    let to_merge = Merge {
        global: &GlobalAdapter::open(global).unwrap(),
        velocity,
        updates,
        rule: Rule::Nesterov,
        outer_lr: OUTER_LR as f32,
        outer_momentum: OUTER_MOMENTUM as f32,
        threads: 1,
    };
    let merged = merge(&to_merge, out, velocity_out, &|| false).unwrap();
    Outcome {
        weights: StoredObject {
            size_bytes: merged.size_bytes,
            sha256: merged.sha256,
        },
        has_velocity: true,
        merged: merged.kept.len(),
        eliminated: merged
            .eliminated
            .into_iter()
            .map(|one| (one.name, one.why.to_string()))
            .collect(),
        update_norm: merged.update_norm,
    }
}

fn simulate(total_rounds: u64, seed: u64, kills: u32, kill_one_in: u64) -> (Yard, String) {
    let mut yard = Yard::new(total_rounds, seed, kills, kill_one_in);
    while !yard.rounds.phase().is_ended() {
        yard.play_round();
    }
    assert_eq!(yard.rounds.phase(), Phase::Finished);
    let sha256 = digest(&fs::read(yard.global(total_rounds)).unwrap());
    (yard, sha256)
}

/// Promise P13.
#[test]
fn a_thousand_rounds_with_bad_uploads_drop_outs_and_kills_equal_a_clean_replay() {
    // Some thirty points a round: fifty kills come within half of the rounds.
    let (mut yard, sha256) = simulate(1_000, 20_261_130, 50, 300);
    assert_eq!(yard.kills, 50);
    assert_eq!(yard.counted_twice, 0);
    assert!(yard.refused > 1_000, "{}", yard.refused);
    let id = yard.id();
    let known: BTreeMap<_, _> = store::rounds(&mut yard.connection, id, i64::MAX, 2_000)
        .unwrap()
        .into_iter()
        .map(|row| (row.round, row))
        .collect();
    assert_eq!(known.len(), 1_001);
    assert_eq!(known[&1_000].weights_sha256, sha256);
    assert!(known.values().all(|row| row.merged != Some(0)));
    assert_eq!(yard.replayed(), sha256);
}

#[test]
fn rounds_that_are_killed_at_every_other_point_end_as_a_clean_replay() {
    for seed in 0..20 {
        let (mut yard, sha256) = simulate(3, seed, 40, 3);
        assert_eq!(yard.replayed(), sha256, "seed {seed}");
    }
}

/// The results of rounds before the open one are needed only as far as they are remembered.
#[test]
fn what_is_remembered_is_loaded() {
    let (mut yard, _) = simulate(5, 3, 0, 1);
    let id = yard.id();
    let session = store::row(&mut yard.connection, id).unwrap();
    let loaded = store::load(&mut yard.connection, &session, yard.now).unwrap();
    assert_eq!(loaded.round(), 5);
    let of_round = |yard: &mut Yard, round| {
        let rows = store::results(&mut yard.connection, id, round).unwrap();
        rows.into_iter()
            .map(|row| (row.participant, row.sha256))
            .collect::<VecDeque<_>>()
    };
    for round in 0..5 {
        let (name, sha256) = of_round(&mut yard, round)[0].clone();
        let expected = match round {
            3 | 4 => Standing::Given(sha256),
            _ => Standing::Ended,
        };
        assert_eq!(loaded.standing(&name, round), expected, "round {round}");
    }
}
