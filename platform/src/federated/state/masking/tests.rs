//! Attempts at a round's sum, with workers that follow the protocol or drop out.

mod blame;
mod one_sum;

use trainyard_privacy::secure::{
    Announcing, Context, Masking as Masker, SealedShares, Sharing, Unmasking,
};
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::ShareFrom;

use super::super::{Event, Failures, Known, Order, Session, Settings, Stage as Rounds, Times};
use super::*;

const SECOND: u64 = 1_000;

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * SECOND)
}

fn id(number: u8) -> WorkerId {
    WorkerId(i64::from(number))
}

/// A worker that is played.
enum Played {
    Idle,
    Announcing(Announcing),
    Sharing(Sharing),
    Masking(Masker),
}

/// A session of workers 1, 2, …, which are asked by its effects.
struct Round {
    session: Session,
    workers: BTreeMap<WorkerId, Played>,
    /// Those that answer nothing.
    dead: BTreeSet<WorkerId>,
    asked: Vec<(WorkerId, Ask)>,
    sums: usize,
    now: Moment,
}

impl Round {
    /// A round that needs `at_least` of `count` results, all of which are trained.
    fn trained(count: u8, at_least: usize, threshold: usize, dead: &[u8]) -> Self {
        let settings = Settings {
            shards: u64::from(count),
            min_workers: at_least,
            max_workers: usize::from(count),
            round_timeout: Duration::from_secs(600),
            deadline_deviations: 0.0,
            allowed: None,
        };
        let rules = Rules {
            threshold,
            at_least,
            stage_timeout: Duration::from_secs(30),
            longest_stage: Duration::from_secs(100),
        };
        let known = Known {
            stage: Rounds::Open,
            round: 0,
            results: BTreeSet::new(),
            members: BTreeSet::new(),
            shards: BTreeMap::new(),
            failures: Failures::default(),
            times: Times::default(),
        };
        let masking = Masking::new(rules, 100, false);
        let mut round = Self {
            session: Session::new(settings, Some(masking), known, at(0)),
            workers: (1..=count)
                .map(|number| (id(number), Played::Idle))
                .collect(),
            dead: dead.iter().copied().map(id).collect(),
            asked: Vec::new(),
            sums: 0,
            now: at(1),
        };
        let workers: Vec<_> = round.workers.keys().copied().collect();
        round.happen(Event::WorkersGiven(workers.clone()));
        for worker in workers {
            round.say_trained(worker);
        }
        round
    }

    fn say_trained(&mut self, worker: WorkerId) {
        self.happen(Event::Trained {
            worker,
            round: 0,
            examples: 4,
        });
    }

    fn happen(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.session.apply(event, self.now);
        for effect in &effects {
            match effect {
                Effect::Ask(worker, ask) => self.asked.push((*worker, *ask)),
                Effect::Sum => self.sums += 1,
                _ => {}
            }
        }
        effects
    }

    fn attempt(&self) -> &Attempt {
        self.session.masking().unwrap().attempt().unwrap()
    }

    fn stage(&self) -> Stage {
        self.attempt().stage()
    }

    fn say(&mut self, worker: WorkerId, said: Said) {
        let attempt = self.attempt().id();
        let judged = self
            .session
            .masking()
            .unwrap()
            .judge(worker, attempt, &said);
        assert_eq!(judged, Judgement::Counts, "{said:?}");
        self.happen(Event::Said {
            worker,
            attempt,
            said,
        });
    }

    /// What a worker that follows the protocol answers.
    fn answer(&mut self, worker: WorkerId, ask: Ask) -> Said {
        let attempt = self.session.masking().unwrap().attempt().unwrap();
        let played = self.workers.insert(worker, Played::Idle).unwrap();
        let (played, said) = match (ask, played) {
            (Ask::AnnounceKeys, _) => {
                let context = Context::of(FederatedSessionId(9), 1, attempt.id());
                let announcing = Announcing::new(context).unwrap();
                let keys = announcing.public_keys();
                (Played::Announcing(announcing), Said::Keys(keys))
            }
            (Ask::ShareSecrets, Played::Announcing(announcing)) => {
                let (sharing, sealed) = announcing.share(roster(attempt)).unwrap();
                let shares = sealed.iter().map(SealedShares::to_wire).collect();
                (Played::Sharing(sharing), Said::Shares(Arc::new(shares)))
            }
            (Ask::MaskResult, Played::Sharing(sharing)) => {
                let own = sharing.number();
                let open = |share: ShareFrom| SealedShares::from_wire(&share, own);
                let shares: Vec<_> = attempt.shares_for(worker).into_iter().map(open).collect();
                let masking = sharing.receive(&shares).unwrap();
                (Played::Masking(masking), Said::Uploaded(upload(worker)))
            }
            (Ask::RevealShares, Played::Masking(mut masking)) => {
                let arrived: Vec<_> = attempt.arrived().into_iter().collect();
                let revealed = masking.reveal(&arrived).unwrap();
                let said = Said::Revealed(Arc::new(revealed));
                (Played::Masking(masking), said)
            }
            (ask, _) => panic!("worker {worker} is asked to {ask:?} out of turn"),
        };
        self.workers.insert(worker, played);
        said
    }

    /// Lets the workers answer all that they are asked in this stage.
    fn answer_all(&mut self) {
        for (worker, ask) in std::mem::take(&mut self.asked) {
            if !self.dead.contains(&worker) {
                let said = self.answer(worker, ask);
                self.say(worker, said);
            }
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.happen(Event::TimePassed);
    }

    /// Lets the attempt go on until its sum is read; stages with dead workers end at their deadline.
    fn go_on_to_the_sum(&mut self) {
        while self.sums == 0 {
            let before = self.stage();
            self.answer_all();
            if self.sums == 0 && self.stage() == before {
                self.wait(100);
            }
        }
    }

    fn reason(&self) -> String {
        self.session.waiting_because().unwrap()
    }
}

fn roster(attempt: &Attempt) -> trainyard_privacy::secure::Roster {
    let members = attempt.member_keys();
    let keys = members.iter().map(PublicKeys::from).collect();
    trainyard_privacy::secure::Roster::new(usize::from(attempt.threshold()), keys).unwrap()
}

fn upload(worker: WorkerId) -> Upload {
    Upload {
        sha256: format!("masked by {worker}"),
        size_bytes: 8,
        file: Arc::new(tempfile::NamedTempFile::new().unwrap().into_temp_path()),
    }
}

fn numbers(summed: &ToSum) -> Vec<u8> {
    summed.uploads.keys().copied().collect()
}

/// Whether the masks of a sum can be found from what was revealed.
fn is_readable(to_sum: &ToSum) -> bool {
    let uploaded = to_sum.uploads.keys().copied().collect();
    let context = Context::of(FederatedSessionId(9), 1, to_sum.attempt);
    let (roster, participants) = (to_sum.roster.clone(), &to_sum.participants);
    let mut unmasking = Unmasking::new(context, roster, participants, uploaded).unwrap();
    for (number, (_, revealed)) in &to_sum.revealed {
        unmasking.add(*number, (**revealed).clone()).unwrap();
    }
    unmasking.masks().is_ok()
}

#[test]
fn once_all_have_trained_the_sum_is_brought_about_stage_by_stage() {
    let mut round = Round::trained(3, 2, 2, &[]);
    for stage in [Stage::Keys, Stage::Shares, Stage::Uploads, Stage::Reveals] {
        assert_eq!(round.stage(), stage);
        assert_eq!(round.asked.len(), 3);
        round.answer_all();
    }
    assert_eq!((round.stage(), round.sums), (Stage::Summing, 1));
    let summed = round.attempt().to_sum().unwrap();
    assert_eq!(numbers(&summed), [1, 2, 3]);
    assert!(is_readable(&summed));
    assert_eq!(round.reason(), "the sum of the results is read");
    round.happen(Event::RoundClosing);
    assert!(round.session.masking().unwrap().attempt().is_none());
}

#[test]
fn nothing_begins_before_all_that_are_awaited_have_trained_or_the_time_is_over() {
    let mut round = Round::trained(2, 2, 2, &[]);
    // The second round.
    round.happen(Event::RoundClosing);
    let draining = BTreeSet::new();
    round.happen(Event::RoundOpened { round: 1, draining });
    let trained = |worker| Event::Trained {
        worker,
        round: 1,
        examples: 4,
    };
    round.asked.clear();
    round.happen(trained(id(1)));
    assert_eq!(
        (round.asked.len(), round.reason().as_str()),
        (0, "1 of 2 results are there")
    );
    round.happen(trained(id(2)));
    assert_eq!(round.asked.len(), 2);
    assert_eq!(
        round.reason(),
        "the workers make keys for the sum; 0 of 2 are there"
    );

    let mut late = Round::trained(3, 2, 2, &[]);
    late.happen(Event::RoundClosing);
    let draining = BTreeSet::new();
    late.happen(Event::RoundOpened { round: 1, draining });
    late.asked.clear();
    late.happen(trained(id(1)));
    late.happen(trained(id(2)));
    assert_eq!(late.asked.len(), 0, "the third one has its time");
    late.wait(600);
    let asked: Vec<_> = late.asked.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(asked, [id(1), id(2)]);
}

#[test]
fn whoever_drops_out_at_any_stage_costs_only_its_own_result() {
    // Of six: 6 has no keys, 5 shares nothing, 4 sends nothing, 3 reveals nothing.
    for dropped in [Stage::Keys, Stage::Shares, Stage::Uploads, Stage::Reveals] {
        let mut round = Round::trained(4, 3, 3, &[]);
        while round.stage() != dropped {
            round.answer_all();
        }
        round.dead.insert(id(4));
        round.go_on_to_the_sum();
        let summed = round.attempt().to_sum().unwrap();
        let expected: &[u8] = match dropped {
            Stage::Reveals => &[1, 2, 3, 4],
            _ => &[1, 2, 3],
        };
        assert_eq!(numbers(&summed), expected, "{dropped:?}");
        assert!(is_readable(&summed), "{dropped:?}");
    }
}

#[test]
fn a_worker_that_is_known_to_be_lost_is_not_waited_for() {
    let mut round = Round::trained(3, 2, 2, &[3]);
    round.answer_all();
    assert_eq!(round.stage(), Stage::Keys, "it has its time");
    round.happen(Event::WorkerLost(id(3)));
    assert_eq!(round.stage(), Stage::Shares);
}

#[test]
fn with_too_few_left_another_attempt_begins_with_other_keys_and_says_why() {
    let mut round = Round::trained(3, 3, 2, &[]);
    let first = round.attempt().id();
    round.answer_all();
    let keys = round.attempt().member_keys();
    round.dead.insert(id(3));
    round.answer_all();
    round.wait(30);
    assert!(round.session.masking().unwrap().attempt().is_none());
    let reason = round.reason();
    assert!(
        reason.contains("the shares of 2 workers are there, and 3 are needed"),
        "{reason}"
    );
    assert!(
        reason.contains("worker 3 failed: shares for the others did not come in time"),
        "{reason}"
    );
    round.dead.clear();
    round.asked.clear();
    round.wait(10);
    assert!(round.session.masking().unwrap().attempt().is_none());
    round.say_trained(id(3));
    assert_eq!(round.attempt().id(), first + 1);
    round.answer_all();
    assert_ne!(round.attempt().member_keys(), keys);
    round.go_on_to_the_sum();
    // What was said of the first one has no effect any more.
    let said = Said::Uploaded(upload(id(1)));
    let masking = round.session.masking().unwrap();
    assert_eq!(masking.judge(id(1), first, &said), Judgement::Ignored);
    // Numbers are drawn afresh at a restart: one of before may be higher than any that is known.
    assert_eq!(masking.judge(id(1), first + 2, &said), Judgement::Ignored);
}

/// Lets those that have failed say again that they hold a result, once they are asked.
fn come_back(round: &mut Round) {
    while round.session.masking().unwrap().attempt().is_none() {
        let due = round.session.next_due().unwrap();
        assert!(due > round.now, "nothing is due twice");
        round.now = due;
        for effect in round.happen(Event::TimePassed) {
            if let Effect::Order(worker, Order::Start) = effect {
                round.say_trained(worker);
            }
        }
    }
}

#[test]
fn stages_last_longer_with_each_attempt_that_fails_and_masked_changes_have_longest() {
    let mut round = Round::trained(2, 2, 2, &[]);
    for seconds in [30, 60, 100, 100] {
        let until = round.attempt().deadline().unwrap();
        assert_eq!(until.since(round.now), Duration::from_secs(seconds));
        // Both are lost for a moment, which is nobody's fault.
        round.happen(Event::WorkerHolds {
            worker: id(1),
            holds: false,
        });
        round.say_trained(id(1));
        round.asked.clear();
        come_back(&mut round);
    }
    round.answer_all();
    round.answer_all();
    assert_eq!(round.stage(), Stage::Uploads);
    let until = round.attempt().deadline().unwrap();
    assert_eq!(until.since(round.now), Duration::from_secs(100));
}

/// The platform is started anew.
fn restart(round: &mut Round, is_spent: bool) {
    let known = Known {
        stage: Rounds::Open,
        round: 0,
        results: BTreeSet::new(),
        members: BTreeSet::from([id(1), id(2)]),
        shards: BTreeMap::from([(id(1), 0), (id(2), 1)]),
        failures: Failures::default(),
        times: Times::default(),
    };
    let rules = round.session.masking().unwrap().rules().clone();
    let settings = round.session.settings.clone();
    let masking = Masking::new(rules, 500, is_spent);
    round.session = Session::new(settings, Some(masking), known, round.now);
    round.asked.clear();
}

#[test]
fn more_than_half_are_needed_however_low_the_threshold_is() {
    let mut round = Round::trained(7, 2, 2, &[]);
    round.answer_all();
    assert_eq!(round.attempt().threshold(), 4);
}

#[test]
fn after_a_restart_of_the_platform_the_sum_begins_anew() {
    let mut round = Round::trained(2, 2, 2, &[]);
    round.answer_all();
    round.answer_all();
    assert_eq!(round.stage(), Stage::Uploads);
    restart(&mut round, false);
    // They say again that they have trained when they are asked again.
    for number in [1, 2] {
        let effects = round.happen(Event::WorkerRegistered(id(number)));
        assert!(effects.contains(&Effect::Order(id(number), Order::Start)));
        round.say_trained(id(number));
    }
    assert_eq!((round.attempt().id(), round.stage()), (500, Stage::Keys));
    round.go_on_to_the_sum();
}

#[test]
fn a_worker_that_comes_back_is_asked_again_what_it_has_not_answered() {
    let mut round = Round::trained(3, 2, 2, &[3]);
    round.answer_all();
    for (number, asked) in [(1, false), (3, true)] {
        let effects = round.happen(Event::WorkerRegistered(id(number)));
        let ask = Effect::Ask(id(number), Ask::AnnounceKeys);
        assert_eq!(effects.contains(&ask), asked, "{effects:?}");
    }
    // One that was started anew has neither result nor secrets.
    let worker = id(3);
    let effects = round.happen(Event::WorkerHolds {
        worker,
        holds: false,
    });
    assert!(effects.contains(&Effect::Order(worker, Order::Start)));
    assert_eq!(round.stage(), Stage::Shares, "the others go on");
}

#[test]
fn what_cannot_be_is_refused_and_a_repeat_is_harmless() {
    let mut round = Round::trained(3, 2, 2, &[]);
    let attempt = round.attempt().id();
    let judge = |round: &Round, number, said: &Said| {
        round
            .session
            .masking()
            .unwrap()
            .judge(id(number), attempt, said)
    };
    let wrong = |round: &Round, number, said: Said| {
        let judged = judge(round, number, &said);
        assert!(
            matches!(judged, Judgement::Wrong(_)),
            "{said:?}: {judged:?}"
        );
    };
    // Not asked, too early, keys that are weak, or another's.
    let Said::Keys(keys) = round.answer(id(1), Ask::AnnounceKeys) else {
        panic!("no keys");
    };
    wrong(&round, 9, Said::Keys(keys.clone()));
    wrong(&round, 1, Said::Uploaded(upload(id(1))));
    wrong(&round, 1, Said::Shares(Arc::new(Vec::new())));
    let weak = PublicKeys {
        masking: [0; 32],
        ..keys.clone()
    };
    wrong(&round, 1, Said::Keys(weak));
    round.say(id(1), Said::Keys(keys.clone()));
    assert_eq!(
        judge(&round, 1, &Said::Keys(keys.clone())),
        Judgement::Ignored
    );
    wrong(&round, 2, Said::Keys(keys));
    round.asked.retain(|(worker, _)| *worker != id(1));
    round.answer_all();
    // Shares for itself, for nobody, one twice, one too few.
    let Said::Shares(shares) = round.answer(id(1), Ask::ShareSecrets) else {
        panic!("no shares");
    };
    for to in [1, 9, 3] {
        let mut other = (*shares).clone();
        other[0].to = to;
        wrong(&round, 1, Said::Shares(Arc::new(other)));
    }
    wrong(&round, 1, Said::Shares(Arc::new(shares[1..].to_vec())));
    round.say(id(1), Said::Shares(shares));
    round.asked.retain(|(worker, _)| *worker != id(1));
    round.answer_all();
    round.answer_all();
    // Shares that were not asked for.
    assert_eq!(round.stage(), Stage::Reveals);
    let Said::Revealed(revealed) = round.answer(id(1), Ask::RevealShares) else {
        panic!("no shares");
    };
    let mut less = (*revealed).clone();
    less.seeds.pop();
    wrong(&round, 1, Said::Revealed(Arc::new(less)));
    let mut both = (*revealed).clone();
    both.keys.push(both.seeds[0].clone());
    wrong(&round, 1, Said::Revealed(Arc::new(both)));
}
