//! What the supervisor does on each message.

use actix::prelude::*;
use trainyard_shared::frame::close;

use super::messages::{
    Claim, Connect, Disconnected, GetCandidates, GetFree, GetWorkers, KeyReplaced, Occupy,
    Register, Release, Removed, Renamed, Reported, Seen, SendCommand, SendOn, Sent, SetDraining,
    SetServing, Shutdown, TakeUp, Unclaim, Vacate,
};
use super::{Link, LinkNotice, Supervisor, utc_of};
use crate::inference::placement::Candidate;
use crate::workers::event::{Delivery, FleetEffect};
use crate::workers::lease::Lease;
use crate::workers::placement::Abilities;
use crate::workers::returning::turn_at_stop;
use crate::workers::session::End;

impl Handler<TakeUp> for Supervisor {
    type Result = ();

    fn handle(&mut self, known: TakeUp, _: &mut Context<Self>) {
        for worker in &known.workers {
            self.add(worker, known.held.get(&worker.id).copied());
        }
        for (worker, occupation) in known.occupied {
            self.fleet.is_occupied_since_before(worker, occupation);
        }
        self.poke();
    }
}

impl Handler<Connect> for Supervisor {
    type Result = MessageResult<Connect>;

    fn handle(&mut self, connect: Connect, context: &mut Context<Self>) -> Self::Result {
        let worker = connect.worker.id;
        self.add(&connect.worker, None);
        let (generation, effects) = self.fleet.authenticated(worker, self.now());
        self.carry_out(effects, context);
        let notice = self.links.clone().map(|links| LinkNotice {
            worker,
            generation,
            links,
        });
        let entry = self
            .workers
            .get_mut(&worker)
            .expect("it was added above and is in the fleet");
        entry.presence.set_current(Some(generation));
        entry.link = Some(Link {
            generation,
            session: connect.session,
            outgoing: connect.outgoing,
            _notice: notice,
        });
        entry.metrics = None;
        let lease = Lease::new(worker, generation, entry.presence.clone());
        lease.heard(self.now());
        MessageResult(lease)
    }
}

impl Handler<Register> for Supervisor {
    type Result = ();

    fn handle(&mut self, register: Register, context: &mut Context<Self>) {
        let worker = register.lease.worker();
        let data = register.data;
        if let Some(entry) = self.workers.get_mut(&worker)
            && register.lease.is_current()
        {
            let score = data
                .benchmark
                .as_ref()
                .and_then(|benchmark| benchmark.gpu_score);
            entry.abilities = Some(Abilities {
                worker_type: data.worker_type,
                gpu_memory_gb: data.gpu_memory_gb.filter(|_| data.gpu_available),
                score,
                exports: false,
            });
            entry.models = data.models;
        }
        let generation = register.lease.generation();
        let effects = self.fleet.registered(worker, generation, self.now());
        self.carry_out(effects, context);
        self.poke_router();
    }
}

impl Handler<Disconnected> for Supervisor {
    type Result = ();

    fn handle(&mut self, Disconnected(lease): Disconnected, context: &mut Context<Self>) {
        self.listen();
        let (worker, generation) = (lease.worker(), lease.generation());
        if let Some(entry) = self.workers.get_mut(&worker)
            && entry
                .link
                .take_if(|link| link.generation == generation)
                .is_some()
        {
            entry.presence.set_current(None);
        }
        let effects = self.fleet.disconnected(worker, generation, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Reported> for Supervisor {
    type Result = ();

    fn handle(&mut self, reported: Reported, context: &mut Context<Self>) {
        let lease = reported.lease;
        if !lease.is_current() {
            return;
        }
        if let Some(metrics) = reported.metrics
            && let Some(entry) = self.workers.get_mut(&lease.worker())
        {
            entry.metrics = Some(*metrics);
        }
        let (worker, generation) = (lease.worker(), lease.generation());
        if reported.named.exports.is_some() {
            self.makes_exports(worker);
        }
        let effects = self
            .fleet
            .reported(worker, generation, reported.report, self.now());
        self.carry_out(effects, context);
        let now = self.now();
        let effects = self
            .fleet
            .work_named(worker, generation, &reported.named, now);
        self.carry_out(effects, context);
    }
}

impl Handler<Claim> for Supervisor {
    type Result = bool;

    fn handle(&mut self, claim: Claim, context: &mut Context<Self>) -> bool {
        let claimed = self.fleet.claim(claim.worker, claim.job);
        if claimed {
            self.carry_out(vec![FleetEffect::Show(claim.worker)], context);
        }
        claimed
    }
}

impl Handler<Occupy> for Supervisor {
    type Result = bool;

    fn handle(&mut self, Occupy { worker, with }: Occupy, context: &mut Context<Self>) -> bool {
        let claimed = self.fleet.occupy(worker, with);
        if claimed {
            self.carry_out(vec![FleetEffect::Show(worker)], context);
        }
        claimed
    }
}

impl Handler<Vacate> for Supervisor {
    type Result = ();

    fn handle(&mut self, vacate: Vacate, context: &mut Context<Self>) {
        let now = self.now();
        let effects = self
            .fleet
            .vacated(vacate.worker, vacate.of, vacate.said_by_worker, now);
        self.carry_out(effects, context);
    }
}

impl Handler<Unclaim> for Supervisor {
    type Result = ();

    fn handle(&mut self, claim: Unclaim, context: &mut Context<Self>) {
        let effects = self.fleet.unclaimed(claim.worker, claim.job, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Release> for Supervisor {
    type Result = ();

    fn handle(&mut self, release: Release, context: &mut Context<Self>) {
        let effects = self.fleet.released(
            release.worker,
            release.job,
            release.said_by_worker,
            self.now(),
        );
        self.carry_out(effects, context);
    }
}

impl Handler<SendCommand> for Supervisor {
    type Result = Sent;

    fn handle(&mut self, command: SendCommand, context: &mut Context<Self>) -> Sent {
        match self.fleet.delivery(command.worker, command.job) {
            Delivery::On(_) => {
                let effects = self.deliver(command.worker, command.text);
                self.carry_out(effects, context);
                Sent::OnItsWay
            }
            Delivery::Away => Sent::Away,
            Delivery::NotHolding => Sent::NotHolding,
        }
    }
}

impl Handler<SendOn> for Supervisor {
    type Result = bool;

    fn handle(&mut self, send: SendOn, context: &mut Context<Self>) -> bool {
        let link = self.fleet.registered_link(send.worker);
        if link.is_none() || send.link.is_some_and(|wanted| link != Some(wanted)) {
            return false;
        }
        let effects = self.deliver(send.worker, send.text);
        let is_on_its_way = effects.is_empty();
        self.carry_out(effects, context);
        is_on_its_way
    }
}

impl Handler<SetServing> for Supervisor {
    type Result = ();

    fn handle(&mut self, serving: SetServing, context: &mut Context<Self>) {
        let effects = self
            .fleet
            .set_serving(serving.worker, serving.requests, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<GetCandidates> for Supervisor {
    type Result = MessageResult<GetCandidates>;

    fn handle(&mut self, _: GetCandidates, _: &mut Context<Self>) -> Self::Result {
        let known = self.workers.iter().filter_map(|(worker, entry)| {
            let view = self.fleet.view(*worker)?;
            let abilities = entry.abilities.as_ref();
            let candidate = Candidate {
                name: entry.name.clone(),
                link: self.fleet.registered_link(*worker),
                worker_type: abilities.map(|abilities| abilities.worker_type),
                status: view.status,
                draining: view.draining,
                score: abilities.and_then(|abilities| abilities.score),
                models: entry.models.clone(),
            };
            Some((*worker, candidate))
        });
        MessageResult(known.collect())
    }
}

impl Handler<GetFree> for Supervisor {
    type Result = MessageResult<GetFree>;

    fn handle(&mut self, _: GetFree, _: &mut Context<Self>) -> Self::Result {
        let free = self.workers.iter().filter_map(|(worker, entry)| {
            let available = self.fleet.view(*worker)?.available;
            entry
                .abilities
                .filter(|_| available)
                .map(|abilities| (*worker, abilities))
        });
        MessageResult(free.collect())
    }
}

impl Handler<GetWorkers> for Supervisor {
    type Result = MessageResult<GetWorkers>;

    fn handle(&mut self, _: GetWorkers, _: &mut Context<Self>) -> Self::Result {
        self.listen();
        let now = self.now();
        let seen = self.workers.iter().filter_map(|(worker, entry)| {
            let view = self.fleet.view(*worker)?;
            let seen = Seen {
                view,
                last_seen_at: view.last_heard.map(|heard| utc_of(heard, now)),
                metrics: entry.metrics.clone(),
            };
            Some((*worker, seen))
        });
        MessageResult(seen.collect())
    }
}

impl Handler<SetDraining> for Supervisor {
    type Result = ();

    fn handle(&mut self, set: SetDraining, context: &mut Context<Self>) {
        let effects = self
            .fleet
            .set_draining(set.worker, set.draining, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Renamed> for Supervisor {
    type Result = ();

    fn handle(&mut self, renamed: Renamed, context: &mut Context<Self>) {
        if let Some(entry) = self.workers.get_mut(&renamed.worker) {
            entry.name = renamed.name;
            self.carry_out(vec![FleetEffect::Show(renamed.worker)], context);
        }
    }
}

impl Handler<KeyReplaced> for Supervisor {
    type Result = bool;

    fn handle(&mut self, replaced: KeyReplaced, context: &mut Context<Self>) -> bool {
        let worker = replaced.worker;
        let entry = self.workers.get(&worker);
        let connected = entry.is_some_and(|entry| entry.link.is_some());
        let mut effects = Vec::new();
        if let Some(text) = replaced.deliver {
            effects.extend(self.deliver(worker, text));
        }
        effects.extend(self.fleet.key_replaced(worker, self.now()));
        self.carry_out(effects, context);
        connected
    }
}

impl Handler<Removed> for Supervisor {
    type Result = ();

    fn handle(&mut self, Removed(worker): Removed, context: &mut Context<Self>) {
        let effects = self.fleet.removed(worker);
        self.carry_out(effects, context);
        // Nothing of it may wait: after this there is nobody to tell of.
        self.updates.forget(worker);
        if let Some(update) = self.update(worker) {
            self.publish(worker, update);
        }
        self.workers.remove(&worker);
        self.seen.remove(&worker);
        self.poke_router();
    }
}

impl Handler<Shutdown> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, _: &mut Context<Self>) {
        let connected = self
            .workers
            .values()
            .filter_map(|entry| entry.link.as_ref());
        let count = connected.clone().count();
        let timeout = self.actors.config.worker_heartbeat_timeout;
        for (index, link) in connected.enumerate() {
            let (code, reason) = (close::GOING_AWAY, "the platform stops");
            let reason = match turn_at_stop(index, count, timeout) {
                Some(turn) => close::with_turn(reason, turn),
                None => reason.to_owned(),
            };
            let end = End {
                code,
                reason: reason.clone().into(),
            };
            if link.session.try_send(end).is_err() {
                link.outgoing.close_now(code, &reason);
            }
        }
        self.save_last_seen();
    }
}
