//! Whether somebody uses a keyboard, mouse or touchpad of this machine, also at a graphical desktop: by counts that the
//! Linux kernel keeps for everybody to read. They tell that something was pressed, never what.
//!
//! | counted | seen by it |
//! | --- | --- |
//! | interrupts of the keyboard controller (`i8042`) | built-in keyboards, PS/2 |
//! | interrupts of devices of the driver `i2c_hid` | built-in touchpads and touch screens |
//! | transfers (`urbnum`) of USB devices with a keyboard's or mouse's interface | USB keyboards and mice, wireless receivers |
//!
//! Bluetooth keyboards and remote desktops are in none of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The keyboard controller's name in the list of interrupts.
const KEYBOARD_CONTROLLER: &str = "i8042";
/// Where the devices of the driver for built-in touchpads are, in its forms.
const TOUCHPADS: [&str; 3] = ["i2c_hid", "i2c_hid_acpi", "i2c_hid_of"];
/// USB's class for keyboards, mice and the like, and its protocols for keyboards and mice.
const INPUT_CLASS: &str = "03";
const INPUT_PROTOCOLS: [&str; 2] = ["01", "02"];

/// Looks now and then, and remembers.
#[derive(Debug)]
pub(super) struct InputWatch {
    /// Where `proc` and `sys` are.
    root: PathBuf,
    count: Option<u64>,
    last: Option<Instant>,
}

impl Default for InputWatch {
    fn default() -> Self {
        Self::of(Path::new("/"))
    }
}

impl InputWatch {
    fn of(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            count: None,
            last: None,
        }
    }

    /// How long ago something was pressed or moved, to within the time between two looks; none where that is not known.
    pub(super) fn since_last(&mut self, now: Instant) -> Option<Duration> {
        let count = self.counted();
        if self.count.is_some() && count != self.count {
            self.last = Some(now);
        }
        self.count = count;
        Some(now.duration_since(self.last?))
    }

    /// None where there is nothing to count.
    fn counted(&self) -> Option<u64> {
        let counts = self.interrupts().into_iter().chain(self.usb_transfers());
        counts.reduce(u64::wrapping_add)
    }

    fn interrupts(&self) -> Vec<u64> {
        let list = fs::read_to_string(self.root.join("proc/interrupts")).unwrap_or_default();
        let drivers = self.root.join("sys/bus/i2c/drivers");
        let touchpads = TOUCHPADS
            .iter()
            .flat_map(|driver| names(&drivers.join(driver)));
        let devices: Vec<String> = touchpads
            .filter_map(|name| name.strip_prefix("i2c-").map(str::to_owned))
            .chain([KEYBOARD_CONTROLLER.to_owned()])
            .collect();
        let is_meant = |word: &str| {
            devices
                .iter()
                .any(|name| name == word.trim_end_matches(','))
        };
        let lines = list
            .lines()
            .filter(|line| line.split_whitespace().any(is_meant));
        lines.map(interrupts_of).collect()
    }

    fn usb_transfers(&self) -> Vec<u64> {
        let folder = self.root.join("sys/bus/usb/devices");
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let is_input = |interface: &String| {
            let says = |file: &str| read(folder.join(interface).join(file)).trim().to_owned();
            says("bInterfaceClass") == INPUT_CLASS
                && INPUT_PROTOCOLS.contains(&says("bInterfaceProtocol").as_str())
        };
        let interfaces = names(&folder).filter(is_input);
        let transfers = |interface: String| {
            let (device, _) = interface.split_once(':')?;
            read(folder.join(device).join("urbnum")).trim().parse().ok()
        };
        interfaces.filter_map(transfers).collect()
    }
}

/// A line's counts of all processors together.
fn interrupts_of(line: &str) -> u64 {
    let counts = line.split_whitespace().skip(1);
    counts.map_while(|count| count.parse::<u64>().ok()).sum()
}

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose counts a test sets.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn put(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn count(&self, keyboard: u64, touchpad: u64, disk: u64) {
            let list = format!(
                "           CPU0       CPU1\n  1:  {keyboard}  7  IR-IO-APIC  1-edge  i8042\n \
                 17:  {disk}  0  IR-IO-APIC  17-fasteoi  ehci_hcd:usb1, nvme\n \
                 51:  0  {touchpad}  intel-gpio  33  ELAN1200:00\nNMI:  {disk}  3  Non-maskable interrupts\n"
            );
            self.put("proc/interrupts", &list);
        }

        fn usb(&self, device: &str, class: &str, protocol: &str, transfers: u64) {
            let interface = format!("sys/bus/usb/devices/{device}:1.0");
            self.put(
                &format!("{interface}/bInterfaceClass"),
                &format!("{class}\n"),
            );
            self.put(
                &format!("{interface}/bInterfaceProtocol"),
                &format!("{protocol}\n"),
            );
            let count = format!("sys/bus/usb/devices/{device}/urbnum");
            self.put(&count, &format!("{transfers}\n"));
        }
    }

    #[test]
    fn a_key_a_touch_and_a_moved_mouse_are_seen_and_a_disk_or_network_is_not() {
        let machine = Machine(tempfile::tempdir().unwrap());
        machine.put("sys/bus/i2c/drivers/i2c_hid_acpi/i2c-ELAN1200:00/name", "");
        let start = Instant::now();
        let mut watch = InputWatch::of(machine.0.path());
        let mut look = |seconds| {
            let since = watch.since_last(start + Duration::from_secs(seconds));
            since.map(|since| since.as_secs())
        };
        machine.count(10, 20, 30);
        machine.usb("1-2", "03", "02", 100);
        machine.usb("1-3", "08", "50", 100);
        assert_eq!(look(0), None, "nothing is known yet");
        machine.count(10, 20, 31);
        machine.usb("1-3", "08", "50", 200);
        assert_eq!(look(10), None, "a disk");
        machine.count(11, 20, 31);
        assert_eq!((look(20), look(25)), (Some(0), Some(5)), "a key");
        machine.count(11, 21, 31);
        assert_eq!(look(30), Some(0), "a touch");
        machine.usb("1-2", "03", "02", 101);
        assert_eq!((look(40), look(400)), (Some(0), Some(360)), "a mouse");
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = InputWatch::of(folder.path());
        let now = Instant::now();
        assert_eq!((watch.since_last(now), watch.since_last(now)), (None, None));
    }
}
