//! How a session's rounds go on, for dashboards.

use trainyard_shared::ids::UserId;
use trainyard_shared::message::{FederatedRound, FederatedRoundData, ToDashboard};

use super::session::{Live, Session};
use super::state::Phase;
use crate::actors::Actors;
use crate::dashboards::hub::{PublishOwned, Sight};
use crate::sockets::queue::Topic;

/// Tells the dashboards of those who may see it how the session stands; where a round has just closed, that first.
pub async fn publish(actors: &Actors, session: &Session, has_closed_one: bool) {
    let (stands, closed) = {
        let live = session.live();
        let closed = has_closed_one.then(|| closed(&live));
        (standing(&live), closed)
    };
    if let Some(closed) = closed {
        send(actors, session, closed, None).await;
    }
    let is_end = stands.status != "open";
    let topic = (!is_end).then_some(Topic::FederatedSession(session.id()));
    send(actors, session, stands, topic).await;
}

async fn send(actors: &Actors, session: &Session, data: FederatedRoundData, topic: Option<Topic>) {
    let message = ToDashboard::FederatedRound(FederatedRound {
        session_id: session.id(),
        data,
    });
    let publish = PublishOwned {
        owner: UserId(session.row.owner_id),
        sight: Sight::AsJobs,
        topic,
        text: message.encode().into(),
    };
    // Fails only when the platform stops.
    let _ = actors.dashboards.send(publish).await;
}

/// The round that was merged last.
fn closed(live: &Live) -> FederatedRoundData {
    FederatedRoundData {
        round: live.rounds.round(),
        total_rounds: live.rounds.rules().total_rounds,
        status: "closed".to_owned(),
        updates: live.rounds.merged_results() as u64,
        needed: None,
        waiting_because: None,
        loss: None,
    }
}

fn standing(live: &Live) -> FederatedRoundData {
    let rounds = &live.rounds;
    let total_rounds = rounds.rules().total_rounds;
    let status = match rounds.phase() {
        Phase::Open => "open",
        Phase::Merging => "merging",
        Phase::Finished => "finished",
        Phase::Stopped => "stopped",
    };
    FederatedRoundData {
        round: (rounds.round() + 1).min(total_rounds),
        total_rounds,
        status: status.to_owned(),
        updates: match rounds.phase() {
            Phase::Finished => rounds.merged_results() as u64,
            _ => rounds.results().len() as u64,
        },
        needed: Some(rounds.rules().enough as u64),
        waiting_because: live.waits_because(),
        loss: None,
    }
}
