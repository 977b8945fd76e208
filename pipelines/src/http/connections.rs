//! Accepts a limited number of connections, and closes connections on which no request arrives.
//!
//! A client that opens connections and sends nothing must not use up the file descriptors that sinks need. At most
//! [`Limits::connections`] connections are open; if a client opens one more, the oldest connection is closed. A
//! connection is closed after [`Limits::idle`] if the client does not send a whole request or does not read the
//! response.

use axum::serve::Listener;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep};

/// Maximum number of connections, also if the process may open very many files.
const MAX_CONNECTIONS: usize = 64;
/// The server uses at most `1 / DESCRIPTOR_SHARE` of the file descriptors that the process may open.
const DESCRIPTOR_SHARE: u64 = 8;
/// Pause after a failed `accept`, which usually fails because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on the number and the idle time of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of open connections.
    pub(super) connections: usize,
    /// Maximum time from the end of a response, or from the start of the connection, to the end of the next request.
    /// Also the maximum time between two writes of a response.
    pub(super) idle: Duration,
}

impl Limits {
    /// Returns limits that depend on how many files this process may open.
    pub(super) fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(descriptors / DESCRIPTOR_SHARE).unwrap_or(usize::MAX);
        Self {
            connections: share.clamp(2, MAX_CONNECTIONS),
            idle: Duration::from_secs(10),
        }
    }
}

/// A listener that enforces its [`Limits`].
pub(super) struct Bounded {
    listener: TcpListener,
    limits: Limits,
    permits: Arc<Semaphore>,
    /// One sender per open connection, the oldest first. A message closes the connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener, limits: Limits) -> Self {
        Self {
            listener,
            limits,
            permits: Arc::new(Semaphore::new(limits.connections)),
            open: VecDeque::with_capacity(limits.connections),
        }
    }

    /// Closes the oldest connection.
    fn close_oldest(&mut self) {
        self.open.retain(|connection| !connection.is_closed());
        if let Some(oldest) = self.open.pop_front() {
            // The connection can have ended in the meantime.
            let _ = oldest.send(());
        }
    }

    /// Waits until one more connection is allowed. If necessary, closes the oldest connection.
    async fn permit(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return permit;
            }
            self.close_oldest();
            if let Ok(permit) = self.permits.clone().acquire_owned().await {
                return permit;
            }
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                self.close_oldest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let permit = self.permit().await;
            let (open, closed) = oneshot::channel();
            self.open.retain(|connection| !connection.is_closed());
            self.open.push_back(open);
            let connection = Connection {
                stream,
                idle: self.limits.idle,
                deadline: Box::pin(tokio::time::sleep(self.limits.idle)),
                closed: Some(closed),
                _permit: permit,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails with an error at its deadline, or when the listener closes the connection.
pub(super) struct Connection {
    stream: TcpStream,
    idle: Duration,
    /// Writing a response extends the deadline; reading does not. So a client that sends its request slowly gains no
    /// time.
    deadline: Pin<Box<Sleep>>,
    /// `None` after the listener has closed this connection, and after the end of the listener.
    closed: Option<oneshot::Receiver<()>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Returns the error that ends the connection, or `None` while it stays open.
    fn ended(&mut self, context: &mut Context<'_>) -> Option<io::Error> {
        let closed = self
            .closed
            .as_mut()
            .map(|closed| Pin::new(closed).poll(context));
        if let Some(Poll::Ready(message)) = closed {
            self.closed = None;
            // A server that stops drops its listener first. Responses in progress then end regularly.
            if message.is_ok() {
                self.deadline.as_mut().reset(Instant::now());
                return Some(io::ErrorKind::ConnectionAborted.into());
            }
        }
        let is_over = self.deadline.as_mut().poll(context).is_ready();
        is_over.then(|| io::ErrorKind::TimedOut.into())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.ended(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.ended(context) {
            return Poll::Ready(Err(error));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(_)) = written {
            let deadline = Instant::now() + self.idle;
            self.deadline.as_mut().reset(deadline);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
