//! Notices that a client has gone while its answer is still being made.
//!
//! The HTTP library finishes a request whose client has closed its side, since some clients close theirs once all is
//! sent and still read the answer. Where an answer costs a worker minutes, and no such client is known, that is too
//! generous: there a second handle of the connection is looked at, without taking anything from it.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::body::MessageBody;
use actix_web::dev::{Extensions, ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::rt::net::TcpStream;
use actix_web::{Error, HttpRequest};
use socket2::SockRef;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
/// Where answers are waited for that a client may not live to see.
const WATCHED: &str = "/v1/";

/// The second handle of a connection.
struct Watched(RefCell<Option<OwnedFd>>);

/// Keeps a second handle of a new connection.
pub fn watch(connection: &dyn Any, data: &mut Extensions) {
    let stream = connection.downcast_ref::<TcpStream>().or_else(|| {
        let encrypted = connection.downcast_ref::<TlsStream<TcpStream>>()?;
        Some(encrypted.get_ref().0)
    });
    // Without it the answer is made to its end, as for everybody else.
    if let Some(handle) = stream.and_then(|stream| stream.as_fd().try_clone_to_owned().ok()) {
        data.insert(Watched(RefCell::new(Some(handle))));
    }
}

/// Middleware that gives the second handle back as soon as a connection is used for something else: workers,
/// dashboards and volunteers come by the thousand.
///
/// # Errors
/// Those of the wrapped service.
pub async fn watch_only_chats<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    if !request.path().starts_with(WATCHED)
        && let Some(watched) = request.conn_data::<Watched>()
    {
        watched.0.take();
    }
    next.call(request).await
}

/// Returns once the client of the request has closed its side of the connection; never where that cannot be seen.
pub async fn departed(request: &HttpRequest) {
    let Some(watched) = request.conn_data::<Watched>() else {
        return std::future::pending().await;
    };
    let mut pace = tokio::time::interval(LOOK);
    loop {
        pace.tick().await;
        if watched.0.borrow().as_ref().is_some_and(is_closed) {
            return;
        }
    }
}

/// Whether the other side has closed; bytes that have come and not been read hide it.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    match SockRef::from(connection).peek(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}
