//! A wire between a worker and the platform that a test can freeze (both ends think that they are connected) or
//! cut, and mend again.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    Frozen,
    Cut,
}

/// A TCP proxy on a port of its own. It ends when this value is dropped.
pub struct Wire {
    address: SocketAddr,
    state: watch::Sender<State>,
    target: watch::Sender<Option<String>>,
}

impl Wire {
    /// A wire that leads nowhere yet.
    pub async fn lay() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port can be bound");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let state = watch::Sender::new(State::Whole);
        let target = watch::Sender::new(None);
        tokio::spawn(accept(listener, state.subscribe(), target.subscribe()));
        Self {
            address,
            state,
            target,
        }
    }

    /// The base address of this end, `http://…`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads the wire to `host:port`.
    pub fn lead_to(&self, target: &str) {
        self.target.send_replace(Some(target.to_owned()));
    }

    /// Nothing gets through any more, and neither end is told.
    pub fn freeze(&self) {
        self.state.send_replace(State::Frozen);
    }

    /// Resets what is connected, and refuses what would connect.
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Everything gets through again: what was held up by a freeze, and new connections.
    pub fn mend(&self) {
        self.state.send_replace(State::Whole);
    }
}

async fn accept(
    listener: TcpListener,
    mut state: watch::Receiver<State>,
    target: watch::Receiver<Option<String>>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The wire itself is gone.
            ended = state.wait_for(|_| false) => return drop(ended),
        };
        let Ok((near, _)) = accepted else { return };
        let _ = near.set_zero_linger();
        let (mut state, target) = (state.clone(), target.borrow().clone());
        tokio::spawn(async move {
            let open = state.wait_for(|state| *state != State::Frozen).await;
            if !open.is_ok_and(|state| *state == State::Whole) {
                return;
            }
            let Ok(far) = TcpStream::connect(target.unwrap_or_default()).await else {
                return;
            };
            let _ = far.set_zero_linger();
            let (near_reader, near_writer) = near.into_split();
            let (far_reader, far_writer) = far.into_split();
            tokio::select! {
                () = carry(near_reader, far_writer, state.clone()) => {}
                () = carry(far_reader, near_writer, state.clone()) => {}
                _ = state.wait_for(|state| *state == State::Cut) => {}
            }
        });
    }
}

/// Carries bytes one way until the sender ends, or one end is gone.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count) = from.read(&mut bytes).await {
        let open = state
            .wait_for(|state| *state != State::Frozen)
            .await
            .is_ok();
        if count == 0 || !open || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
