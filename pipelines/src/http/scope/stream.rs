//! The body of a response: messages for one browser.

use axum::body::{Bytes, HttpBody};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

/// Time without a new frame after which a browser receives the description of the ring again, so that the connection stays
/// open and a closed connection is detected.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);

/// A body whose data arrives through a queue.
pub(in super::super) struct Stream(pub(in super::super) mpsc::Receiver<Bytes>);

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|data| data.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The messages of a view.
#[derive(Debug)]
pub(in super::super) struct Messages {
    /// The newest message; empty before the first frame.
    pub(super) newest: watch::Receiver<Bytes>,
    /// The message that describes the ring.
    pub(super) description: Bytes,
    /// Limits the number of streams.
    pub(super) permit: OwnedSemaphorePermit,
}

/// Sends the newest message to `queue` whenever the browser has read the message before, until the browser disconnects or
/// the view is closed. A slow browser misses messages. Before the first frame, sends the description of the ring.
pub(in super::super) async fn forward(messages: Messages, queue: mpsc::Sender<Bytes>) {
    let Messages {
        newest: mut messages,
        description,
        permit: _permit,
    } = messages;
    if messages.borrow().is_empty() && queue.send(description.clone()).await.is_err() {
        return;
    }
    // Takes a message only when the queue has room for it, so that a stalled browser does not keep one more message.
    while let Ok(room) = queue.reserve().await {
        let message = tokio::select! {
            changed = tokio::time::timeout(HEARTBEAT_INTERVAL, messages.changed()) => match changed {
                Ok(Ok(())) => messages.borrow_and_update().clone(),
                Ok(Err(_)) => return,
                Err(_) => description.clone(),
            },
            () = queue.closed() => return,
        };
        room.send(message);
    }
}
