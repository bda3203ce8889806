//! Whether somebody else uses the machine: programs that compute, or a person at a terminal, keyboard or mouse.

use std::time::{Duration, Instant, SystemTime};

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use super::input::InputWatch;

/// Others count as using the machine from this share of its processor on.
const BUSY_SHARE: f64 = 0.25;
/// The machine counts as free after so long without any use.
const FREE_AFTER: Duration = Duration::from_secs(60);
/// A person counts as present for so long after a key.
const PRESENT_FOR: Duration = Duration::from_secs(300);
/// Between two looks: a shorter time says nothing about the processor.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Looks now and then, and remembers.
#[derive(Debug, Default)]
pub(super) struct UseWatch {
    meter: Option<Meter>,
    input: InputWatch,
    looked_at: Option<Instant>,
    decision: Decision,
}

impl UseWatch {
    /// Whether somebody uses the machine. Before it is known that nobody does, somebody does.
    pub(super) fn is_in_use(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self
            .looked_at
            .is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
        if is_due {
            let meter = self.meter.get_or_insert_with(Meter::open);
            let others = meter.others_share(now);
            let at_the_desk = self.input.since_last(now);
            let person = since_last_key().into_iter().chain(at_the_desk).min();
            self.decision.look(now, others, person);
            self.looked_at = Some(now);
        }
        self.decision.in_use
    }
}

/// When the machine changes between used and free.
#[derive(Debug)]
struct Decision {
    in_use: bool,
    free_since: Option<Instant>,
}

impl Default for Decision {
    fn default() -> Self {
        Self {
            in_use: true,
            free_since: None,
        }
    }
}

impl Decision {
    /// Takes into account what part of the processor others use, and how long ago a person pressed a key, where known.
    fn look(&mut self, now: Instant, others: Option<f64>, last_key: Option<Duration>) {
        let is_used = others.is_some_and(|share| share >= BUSY_SHARE)
            || last_key.is_some_and(|ago| ago < PRESENT_FOR);
        if is_used {
            self.in_use = true;
            self.free_since = None;
            return;
        }
        let since = *self.free_since.get_or_insert(now);
        if now.duration_since(since) >= FREE_AFTER {
            self.in_use = false;
        }
    }
}

/// Measures how much of the processor others use.
#[derive(Debug)]
struct Meter {
    system: Option<System>,
    own: Pid,
    /// When it was last looked at, and the processor time of this process up to then, in ms.
    before: Option<(Instant, u64)>,
}

impl Meter {
    fn open() -> Self {
        Self {
            system: System::new().ok(),
            own: Pid::from_u32(std::process::id()),
            before: None,
        }
    }

    /// The part of the processor that others have used since the last look.
    fn others_share(&mut self, now: Instant) -> Option<f64> {
        let system = self.system.as_mut()?;
        system.refresh_cpu_usage();
        system.refresh_processes_specifics(
            ProcessesToUpdate::Some(&[self.own]),
            false,
            ProcessRefreshKind::nothing().with_cpu(),
        );
        let all = f64::from(system.global_cpu_usage()) / 100.0;
        let own_ms = system.process(self.own)?.accumulated_cpu_time();
        let (then, own_ms_then) = self.before.replace((now, own_ms))?;
        let passed_ms = now.duration_since(then).as_secs_f64() * 1000.0;
        let cores = system.cpus().len().max(1) as f64;
        let own = own_ms.saturating_sub(own_ms_then) as f64 / (passed_ms * cores);
        Some((all - own).max(0.0))
    }
}

/// How long ago somebody last pressed a key at a terminal of this machine: a terminal's device is read then.
#[cfg(target_os = "linux")]
fn since_last_key() -> Option<Duration> {
    let is_console = |name: &str| {
        let number = name.strip_prefix("tty").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_terminal = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let newest = |folder: &str, is_meant: &dyn Fn(&str) -> bool| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let read = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(is_meant))
            .filter_map(|entry| entry.metadata().ok()?.accessed().ok());
        read.max()
    };
    let last = newest("/dev/pts", &is_terminal).max(newest("/dev", &is_console))?;
    Some(SystemTime::now().duration_since(last).unwrap_or_default())
}

/// Not known on this system.
#[cfg(not(target_os = "linux"))]
fn since_last_key() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_free_after_a_minute_without_use_and_in_use_at_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut decision = Decision::default();
        let mut look = |seconds, others, key: Option<u64>| {
            decision.look(at(seconds), others, key.map(Duration::from_secs));
            decision.in_use
        };
        assert!(look(0, None, None), "nothing is known yet");
        assert!(look(30, Some(0.1), None));
        assert!(!look(60, Some(0.1), None));
        assert!(look(62, Some(0.5), None), "others compute");
        assert!(look(100, Some(0.0), None));
        assert!(!look(160, Some(0.0), Some(400)));
        assert!(look(162, Some(0.0), Some(3)), "somebody presses a key");
    }

    #[test]
    fn what_others_use_is_measured_between_two_looks() {
        let mut meter = Meter::open();
        let now = Instant::now();
        assert_eq!(meter.others_share(now), None);
        let share = meter.others_share(now + Duration::from_secs(1));
        assert!(
            share.is_some_and(|share| (0.0..=1.0).contains(&share)),
            "{share:?}"
        );
    }
}
