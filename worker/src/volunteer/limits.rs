//! What the machine's owner allows: a switch, hours, a share of the processor, the machine only while nobody uses it, and
//! what may lie on the disk.

mod idle;
mod input;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{Local, NaiveTime, Timelike};

use super::event::WaitReason;
use super::state::FOLDER;
use idle::UseWatch;

/// What the machine's owner allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Only within these hours.
    pub hours: Option<Hours>,
    /// How much of the time it may compute.
    pub cpu_share: CpuShare,
    /// Only while nobody else uses the machine.
    pub only_when_idle: bool,
    /// The switch.
    pub pause: PauseSwitch,
    /// What may lie on the disk.
    pub disk: DiskLimits,
}

/// What a volunteer may put on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// Bytes that stay free, whatever is fetched or written.
    pub keep_free_bytes: u64,
    /// The longest file of weights that is fetched.
    pub max_weights_bytes: u64,
    /// The longest shard that is fetched.
    pub max_shard_bytes: u64,
}

impl Default for DiskLimits {
    fn default() -> Self {
        Self {
            keep_free_bytes: 1 << 30,
            max_weights_bytes: 4 << 30,
            max_shard_bytes: 16 << 30,
        }
    }
}

/// The longest name that is taken.
const MAX_NAME_CHARS: usize = 200;

/// Whether a text can be a volunteer's name; which of these a coordinator takes is its own matter.
pub fn is_name(text: &str) -> bool {
    let length = text.chars().count();
    (1..=MAX_NAME_CHARS).contains(&length) && !text.chars().any(char::is_control)
}

/// Parts of the day, in the machine's own time: `22-6` or `22:30-6:15,12-13`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hours(Vec<[u32; 2]>);

/// Minutes of a day.
const DAY: u32 = 24 * 60;

impl Hours {
    /// Whether a time lies within them.
    pub fn contain(&self, time: NaiveTime) -> bool {
        let minute = time.num_seconds_from_midnight() / 60;
        self.0.iter().any(|&[from, to]| match from < to {
            true => (from..to).contains(&minute),
            false => minute >= from || minute < to,
        })
    }

    /// When they next begin after that time.
    pub fn next_after(&self, time: NaiveTime) -> NaiveTime {
        let minute = time.num_seconds_from_midnight() / 60;
        let next = self.0.iter().map(|[from, _]| *from);
        // There is always a part.
        let next = next.min_by_key(|from| (from + DAY - minute - 1) % DAY);
        let seconds = next.unwrap_or(0) * 60;
        NaiveTime::from_num_seconds_from_midnight_opt(seconds, 0).unwrap_or(time)
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not like 22-6 or 22:30-6:15,12-13");
        let minute = |text: &str| {
            let (hour, minute) = text.trim().split_once(':').unwrap_or((text.trim(), "0"));
            let (hour, minute) = (hour.parse::<u32>().ok()?, minute.parse::<u32>().ok()?);
            let total = hour.checked_mul(60)?.checked_add(minute)?;
            (minute < 60 && total <= DAY).then_some(total % DAY)
        };
        let part = |text: &str| {
            let (from, to) = text.split_once('-')?;
            Some([minute(from)?, minute(to)?])
        };
        let parts: Option<Vec<_>> = text.split(',').map(part).collect();
        parts.map(Self).ok_or_else(wrong)
    }
}

/// How much of the time the engine may compute, above 0 up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuShare(f64);

impl CpuShare {
    /// All of it.
    pub const ALL: Self = Self(1.0);

    /// How long to rest after so long a time of work.
    pub fn rest_after(self, work: Duration) -> Duration {
        work.mul_f64(1.0 / self.0 - 1.0)
    }
}

impl FromStr for CpuShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Less than this would never come to an end.
        const LEAST: f64 = 0.01;
        match text.parse() {
            Ok(share) if (LEAST..=1.0).contains(&share) => Ok(Self(share)),
            _ => Err("a number from 0.01 to 1 is expected".to_owned()),
        }
    }
}

/// A file in the state folder that stops all volunteers of that folder while it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseSwitch(PathBuf);

impl PauseSwitch {
    /// The switch of a state folder.
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER).join("paused"))
    }

    /// Whether volunteers are to pause.
    pub fn is_on(&self) -> bool {
        self.0.exists()
    }

    /// Turns it on.
    ///
    /// # Errors
    /// The file system's.
    pub fn pause(&self) -> io::Result<()> {
        if let Some(folder) = self.0.parent() {
            crate::files::create_private_folder(folder)?;
        }
        fs::write(&self.0, "")
    }

    /// Turns it off.
    ///
    /// # Errors
    /// The file system's.
    pub fn resume(&self) -> io::Result<()> {
        crate::files::remove_if_there(&self.0)
    }

    /// Turns it on where it is off, and off where it is on.
    ///
    /// # Errors
    /// The file system's.
    pub fn toggle(&self) -> io::Result<()> {
        match self.is_on() {
            true => self.resume(),
            false => self.pause(),
        }
    }
}

impl fmt::Display for PauseSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Says whether work may go on now.
#[derive(Debug)]
pub(super) struct Gate {
    limits: Limits,
    watch: Mutex<UseWatch>,
}

impl Gate {
    /// By these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            limits: limits.clone(),
            watch: Mutex::new(UseWatch::default()),
        }
    }

    /// Why work may not go on; none where it may.
    pub(super) fn closed(&self) -> Option<WaitReason> {
        let Limits {
            hours,
            only_when_idle,
            pause,
            ..
        } = &self.limits;
        if pause.is_on() {
            return Some(WaitReason::Paused);
        }
        let now = Local::now().time();
        if let Some(hours) = hours.as_ref().filter(|hours| !hours.contain(now)) {
            let until = hours.next_after(now);
            return Some(WaitReason::OutsideHours { until });
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        (*only_when_idle && watch.is_in_use()).then_some(WaitReason::MachineInUse)
    }

    /// How much of the time may be spent computing.
    pub(super) fn cpu_share(&self) -> CpuShare {
        self.limits.cpu_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contain(hours: &str, time: &str) -> bool {
        let hours: Hours = hours.parse().unwrap();
        hours.contain(NaiveTime::parse_from_str(time, "%H:%M").unwrap())
    }

    #[test]
    fn hours_may_pass_midnight_and_end_before_their_end() {
        for (time, expected) in [
            ("21:59", false),
            ("22:00", true),
            ("23:59", true),
            ("0:00", true),
            ("5:59", true),
            ("6:00", false),
        ] {
            assert_eq!(contain("22-6", time), expected, "{time}");
        }
        assert!(contain("12:30-13,22-6", "12:45") && contain("12:30-13,22-6", "3:00"));
        assert!(!contain("12:30-13,22-6", "12:15"));
        assert!(contain("18-24", "23:59") && !contain("18-24", "0:00"));
        let next = |time: &str| {
            let hours: Hours = "12:30-13,22-6".parse().unwrap();
            let next = hours.next_after(NaiveTime::parse_from_str(time, "%H:%M").unwrap());
            next.format("%H:%M").to_string()
        };
        assert_eq!(next("12:15"), "12:30");
        assert_eq!(next("13:00"), "22:00");
        assert_eq!(next("6:00"), "12:30");
        for wrong in ["", "22", "22-", "25-6", "22:60-6", "a-b", "22-6,"] {
            assert!(wrong.parse::<Hours>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn half_of_the_processor_rests_as_long_as_it_works() {
        let rest = |share: &str| {
            let share: CpuShare = share.parse().unwrap();
            share.rest_after(Duration::from_secs(2)).as_secs_f64()
        };
        assert_eq!((rest("0.5"), rest("1")), (2.0, 0.0));
        assert!((rest("0.2") - 8.0).abs() < 1e-9);
        for wrong in ["0", "1.5", "-1", "NaN", "half"] {
            assert!(wrong.parse::<CpuShare>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_switch_pauses_until_it_is_turned_off() {
        let folder = tempfile::tempdir().unwrap();
        let switch = PauseSwitch::of(&folder.path().join("state"));
        assert!(!switch.is_on());
        switch.resume().unwrap();
        switch.pause().unwrap();
        switch.pause().unwrap();
        assert!(switch.is_on());
        let gate = Gate::new(&Limits {
            hours: None,
            cpu_share: CpuShare::ALL,
            only_when_idle: false,
            pause: switch.clone(),
            disk: DiskLimits::default(),
        });
        assert_eq!(gate.closed(), Some(WaitReason::Paused));
        switch.toggle().unwrap();
        assert_eq!(gate.closed(), None);
    }

    #[test]
    fn names_are_any_text_that_a_person_may_choose() {
        assert!(is_name("ali-veli") && is_name("çem 1/2"));
        assert!(!is_name("") && !is_name("a\nb") && !is_name(&"a".repeat(201)));
    }
}
