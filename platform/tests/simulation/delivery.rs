//! How what a worker has to say gets onto its link: the outbox in order, files before the message that names them,
//! and reports behind the start that they belong to (as the worker's `connection::delivery` does).

use trainyard_shared::ids::MessageId;
use trainyard_shared::message::FromWorker;
use trainyard_worker::connection::waiting::Place;

use crate::worker::MachineEvent;
use crate::world::World;

const WAITING_REPORTS: usize = 1000;

impl World {
    /// The platform has acknowledged a message, or refused it for good.
    pub fn forget_message(&mut self, machine: usize, message: MessageId) {
        let before = self.machines[machine].current_job(self.now);
        if self.machines[machine].disk.remove(message, self.now) {
            if self.machines[machine].current_job(self.now) != before {
                self.beat(machine);
            }
            self.deliver_outbox(machine);
        }
    }

    /// Sends what can be sent: the outbox in order up to an entry whose files are not stored yet, and the reports.
    pub fn deliver_outbox(&mut self, machine: usize) {
        if !self.machines[machine].is_registered() {
            return;
        }
        loop {
            let host = &self.machines[machine];
            let process = host.process.as_ref().expect("the worker runs");
            let Some(entry) = host
                .disk
                .outbox
                .next_after(process.sent.map(|(place, _)| place))
            else {
                break;
            };
            let (place, message) = (entry.place, entry.message.clone());
            let needs_files = !entry.files.is_empty() && !process.stored.contains(&place);
            if !matches!(message, FromWorker::JobStarted(_)) {
                self.send_reports(machine);
            }
            if needs_files {
                self.store_files(machine, place);
                break;
            }
            self.push(machine, message);
            self.worker(machine).sent = Some((place, self.now));
        }
        self.send_reports(machine);
    }

    fn send_reports(&mut self, machine: usize) {
        while let Some(report) = self.worker(machine).reports.pop_front() {
            self.push(machine, report);
        }
    }

    /// A report that may be lost.
    pub fn send_report(&mut self, machine: usize, report: FromWorker) {
        let reports = &mut self.worker(machine).reports;
        if reports.len() == WAITING_REPORTS {
            reports.pop_front();
        }
        reports.push_back(report);
        self.deliver_outbox(machine);
    }

    /// Stores an entry's files over HTTP: what is stored stays so.
    fn store_files(&mut self, machine: usize, place: Place) {
        let process = self.worker(machine);
        if process.storing.is_some() {
            return;
        }
        process.storing = Some(place);
        let well =
            self.platform.process.is_some() && self.machines[machine].cut_off_until <= self.now;
        let wait = match well {
            true => self.random.between(50, 3_000),
            false => self.random.between(5_000, 20_000),
        };
        self.machine_later(machine, wait, MachineEvent::Stored(place, well));
    }
}
