//! Closes the connection of a request in chunks that is answered before its body has ended.
//!
//! The HTTP library reads such a body on for as long as it comes, once nobody holds it any more, so that the next
//! request on the connection can be read: one that never ends would be read for ever. It closes the connection (after
//! a second in which it still reads, so that the client sees the answer) where the body is still held when the answer
//! has been sent. So the answer holds it.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, EitherBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage};
use bytes::Bytes;
use futures_util::Stream;

/// A body that the handler reads and the answer holds.
#[derive(Clone)]
struct Shared(Rc<RefCell<Payload>>);

impl Stream for Shared {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_next(context)
    }
}

/// An answer that holds the body of its request until it has been sent.
pub struct Holding<B> {
    answer: Pin<Box<B>>,
    _body: Shared,
}

impl<B: MessageBody> MessageBody for Holding<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.answer.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.answer.as_mut().poll_next(context)
    }
}

/// Middleware that lets the answer to a request in chunks hold the request's body.
///
/// # Errors
/// Those of the wrapped service.
pub async fn close_where_unread<B: MessageBody + 'static>(
    mut request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<Holding<B>, B>>, Error> {
    let is_chunked = request.chunked().unwrap_or(false);
    if !is_chunked {
        return Ok(next.call(request).await?.map_into_right_body());
    }
    let body = Shared(Rc::new(RefCell::new(request.take_payload())));
    request.set_payload(Payload::Stream {
        payload: Box::pin(body.clone()),
    });
    let response = next.call(request).await?;
    Ok(response.map_body(|_, answer| {
        EitherBody::left(Holding {
            answer: Box::pin(answer),
            _body: body,
        })
    }))
}
