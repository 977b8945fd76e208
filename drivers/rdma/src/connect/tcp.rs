//! Connects hosts by plain TCP. Endpoints and greetings use one stream. The stream stays open, so that each side
//! detects immediately when the other side ends.
//!
//! ```text
//!   connector ── Hello ──▶ listener   the connector has created its queue pairs and posted receives
//!           ◀── Answer ──             the listener has done the same, and its queue pairs are connected
//!           ── Ready ──▶              all queue pairs are connected: the listener may send
//! ```

use super::acceptor::{Acceptor, HandshakenPeer};
use super::access::Allows;
use super::exchange::{self, CLOSE_BYTES, Frame, HEADER_BYTES, Rails};
use super::{
    AbortHandle, ConnectError, Connector, Disconnect, Incoming, Link, Listener, PeerMonitor,
    Prepare,
};
use crate::verbs::{Nic, QueuePair, QueuePairOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for each step of the handshake after the peer's first message.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest supported timeout. The limit prevents an overflow of the clock.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);
/// Idle time after which Linux starts to send TCP keepalive probes: one per second, at most three.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);

/// Connects to the listener at an address by TCP.
#[derive(Clone, Debug)]
pub struct TcpConnector {
    address: SocketAddr,
    is_cancelled: Option<Arc<AtomicBool>>,
}

/// Accepts connectors at an address by TCP.
pub struct ExchangeListener {
    acceptor: Acceptor,
    address: SocketAddr,
}

/// Returns a connector to the listener at `address`.
pub const fn connector(address: SocketAddr) -> TcpConnector {
    TcpConnector {
        address,
        is_cancelled: None,
    }
}

/// Creates a listener at `address`; for port 0, [`ExchangeListener::address`] returns the chosen port.
pub fn listener(address: SocketAddr) -> Result<ExchangeListener, ConnectError> {
    let refused = |source| ConnectError::Network {
        peer: address.to_string(),
        action: "listening",
        source,
    };
    let listener = TcpListener::bind(address).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let acceptor =
        Acceptor::new(listener, |bytes| exchange::frame_length(bytes).ok()).map_err(refused)?;
    Ok(ExchangeListener { acceptor, address })
}

impl ExchangeListener {
    /// Returns the local address of the listener.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A TCP stream that carries frames of the exchange.
struct FrameConnection {
    stream: TcpStream,
    peer: String,
}

impl FrameConnection {
    fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, ConnectError> {
        let connection = Self {
            stream,
            peer: peer.to_string(),
        };
        connection
            .prepare()
            .map_err(|source| connection.network_error("setting up the TCP connection", source))?;
        Ok(connection)
    }

    fn prepare(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        self.stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&self.stream, true)?;
        sockopt::set_tcp_keepidle(&self.stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&self.stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&self.stream, 3)?;
        Ok(())
    }

    fn network_error(&self, action: &'static str, source: io::Error) -> ConnectError {
        ConnectError::Network {
            peer: self.peer.clone(),
            action,
            source,
        }
    }

    fn protocol_error(&self, why: impl Into<String>) -> ConnectError {
        ConnectError::Foreign {
            peer: self.peer.clone(),
            why: why.into(),
        }
    }

    fn await_ready(&self, flags: PollFlags, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&left)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn send_frame(&mut self, frame: &Frame, end: Instant) -> Result<(), ConnectError> {
        let bytes = frame.encode();
        let mut done = 0;
        while done < bytes.len() {
            let result = match self.stream.write(&bytes[done..]) {
                Ok(more) => {
                    done += more;
                    Ok(())
                }
                Err(error) => self.wait_or_fail(error, PollFlags::OUT, end),
            };
            result.map_err(|source| self.network_error("sending a greeting", source))?;
        }
        Ok(())
    }

    fn wait_or_fail(&self, error: io::Error, flags: PollFlags, end: Instant) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => self.await_ready(flags, end),
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    /// Reads exactly one frame.
    fn receive_frame(&mut self, end: Instant) -> Result<Frame, ConnectError> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        loop {
            let wanted = exchange::frame_length(&bytes).map_err(|why| self.protocol_error(why))?;
            let have = bytes.len();
            if have >= wanted {
                return Frame::decode(&bytes).map_err(|why| self.protocol_error(why));
            }
            bytes.resize(wanted, 0);
            let result = self.stream.read(&mut bytes[have..]);
            bytes.truncate(have + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => {
                    let error = ErrorKind::UnexpectedEof.into();
                    return Err(self.network_error("waiting for an answer", error));
                }
                Ok(_) => {}
                Err(error) => self
                    .wait_or_fail(error, PollFlags::IN, end)
                    .map_err(|source| self.network_error("waiting for an answer", source))?,
            }
        }
    }
}

/// Creates and prepares one queue pair for each NIC.
fn create_queue_pairs(
    nics: &[Arc<dyn Nic>],
    options: &QueuePairOptions,
    prepare: Prepare<'_>,
) -> Result<Vec<Box<dyn QueuePair>>, ConnectError> {
    let mut queue_pairs = Vec::with_capacity(nics.len());
    for (rail, nic) in nics.iter().enumerate() {
        let mut queue_pair = nic.create_queue_pair(options)?;
        prepare(rail, &mut *queue_pair)?;
        queue_pairs.push(queue_pair);
    }
    Ok(queue_pairs)
}

fn rails(
    queue_pairs: &[Box<dyn QueuePair>],
    options: &QueuePairOptions,
    greetings: &[Vec<u8>],
) -> Rails {
    Rails {
        service: options.service,
        endpoints: queue_pairs
            .iter()
            .map(|queue_pair| queue_pair.endpoint())
            .collect(),
        greetings: greetings.to_vec(),
    }
}

fn connect_queue_pairs(
    queue_pairs: &mut [Box<dyn QueuePair>],
    peer: &Rails,
) -> Result<(), ConnectError> {
    for (queue_pair, endpoint) in queue_pairs.iter_mut().zip(&peer.endpoints) {
        queue_pair.connect(endpoint)?;
    }
    Ok(())
}

impl Connector for TcpConnector {
    fn cancel_with(&mut self, is_cancelled: Arc<AtomicBool>) {
        self.is_cancelled = Some(is_cancelled);
    }

    fn connect(
        &mut self,
        nics: &[Arc<dyn Nic>],
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
        limit: Duration,
    ) -> Result<Link, ConnectError> {
        // `TcpStream::connect_timeout` rejects a timeout of zero.
        let limit = limit.clamp(Duration::from_millis(1), MAX_TIMEOUT);
        let end = Instant::now() + limit;
        let stream = TcpStream::connect_timeout(&self.address, limit).map_err(|source| {
            ConnectError::Network {
                peer: self.address.to_string(),
                action: "connecting",
                source,
            }
        })?;
        let mut connection = FrameConnection::new(stream, self.address)?;
        let mut queue_pairs = create_queue_pairs(nics, options, prepare)?;
        connection.send_frame(&Frame::Hello(rails(&queue_pairs, options, greetings)), end)?;
        let answer = match connection.receive_frame(end)? {
            Frame::Answer(rails) => rails,
            Frame::Refusal(why) => {
                return Err(ConnectError::Refused {
                    peer: connection.peer,
                    why,
                });
            }
            other => {
                return Err(connection
                    .protocol_error(format!("received {} instead of an answer", other.kind())));
            }
        };
        if answer.endpoints.len() != queue_pairs.len() || answer.service != options.service {
            let why = format!(
                "the answer has {} rails and service {}, but this host has {} rails and service {}",
                answer.endpoints.len(),
                answer.service.name(),
                queue_pairs.len(),
                options.service.name()
            );
            return Err(connection.protocol_error(why));
        }
        connect_queue_pairs(&mut queue_pairs, &answer)?;
        let is_cancelled = self.is_cancelled.as_ref();
        if is_cancelled.is_some_and(|is_cancelled| is_cancelled.load(Ordering::Acquire)) {
            return Err(ConnectError::Cancelled {
                peer: connection.peer,
            });
        }
        connection.send_frame(&Frame::Ready, end)?;
        Ok(Link {
            rails: queue_pairs,
            greetings: answer.greetings,
            monitor: Box::new(TcpMonitor::new(connection)),
        })
    }
}

impl Listener for ExchangeListener {
    fn restrict(&mut self, allows: Allows) {
        self.acceptor.restrict(allows);
    }

    fn accept(
        &mut self,
        nics: &[Arc<dyn Nic>],
        limit: Duration,
    ) -> Result<Option<Box<dyn Incoming>>, ConnectError> {
        let end = Instant::now() + limit.min(MAX_TIMEOUT);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let handshaken =
                self.acceptor
                    .next(Some(left))
                    .map_err(|source| ConnectError::Network {
                        peer: self.address.to_string(),
                        action: "listening",
                        source,
                    })?;
            let Some(HandshakenPeer {
                stream,
                peer,
                greeting,
            }) = handshaken
            else {
                return Ok(None);
            };
            let Ok(mut connection) = FrameConnection::new(stream, peer) else {
                continue;
            };
            match Frame::decode(&greeting) {
                Ok(Frame::Hello(hello)) if hello.endpoints.len() == nics.len() => {
                    return Ok(Some(Box::new(TcpIncoming {
                        connection,
                        hello,
                        nics: nics.to_vec(),
                    })));
                }
                Ok(Frame::Hello(hello)) => {
                    let (theirs, ours) = (hello.endpoints.len(), nics.len());
                    let why = format!(
                        "the receiver has {ours} rails, but this sink has {theirs}: set the same number of NICs in `nics` on both hosts"
                    );
                    refuse(&mut connection, &why);
                }
                // A peer that uses another protocol gets no answer.
                Ok(_) | Err(_) => {}
            }
            // Return even if peers keep being rejected, so that the caller can do its other work.
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

fn refuse(connection: &mut FrameConnection, why: &str) {
    // The short message fits into the send buffer of a new stream, so this does not block. A peer that closes early
    // does not get it.
    let _ = connection.send_frame(&Frame::Refusal(why.to_owned()), Instant::now());
    let _ = connection.stream.shutdown(Shutdown::Write);
}

struct TcpIncoming {
    connection: FrameConnection,
    hello: Rails,
    nics: Vec<Arc<dyn Nic>>,
}

impl Incoming for TcpIncoming {
    fn peer(&self) -> String {
        self.connection.peer.clone()
    }

    fn greetings(&self) -> &[Vec<u8>] {
        &self.hello.greetings
    }

    fn abort_handle(&self) -> AbortHandle {
        let stream = self.connection.stream.try_clone();
        Box::new(move || {
            if let Ok(stream) = &stream {
                // An error is expected if the stream was shut down before.
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
    }

    fn accept(
        self: Box<Self>,
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<Link, ConnectError> {
        let Self {
            mut connection,
            hello,
            nics,
        } = *self;
        let end = Instant::now() + STEP_TIMEOUT;
        if hello.service != options.service {
            let (theirs, ours) = (hello.service.name(), options.service.name());
            let why = format!(
                "the receiver has service = \"{ours}\", but this sink has \"{theirs}\": set the same service on both hosts"
            );
            refuse(&mut connection, &why);
            return Err(ConnectError::Mismatch {
                peer: connection.peer,
                why: format!(
                    "the sender's sink has service = \"{theirs}\", but this source has \"{ours}\": set the same service on both hosts"
                ),
            });
        }
        let made = create_queue_pairs(&nics, options, prepare).and_then(|mut queue_pairs| {
            connect_queue_pairs(&mut queue_pairs, &hello)?;
            Ok(queue_pairs)
        });
        let queue_pairs = match made {
            Ok(queue_pairs) => queue_pairs,
            Err(error) => {
                refuse(&mut connection, &error.to_string());
                return Err(error);
            }
        };
        connection.send_frame(&Frame::Answer(rails(&queue_pairs, options, greetings)), end)?;
        match connection.receive_frame(end)? {
            Frame::Ready => {}
            other => {
                return Err(connection.protocol_error(format!(
                    "received {} instead of the ready message",
                    other.kind()
                )));
            }
        }
        Ok(Link {
            rails: queue_pairs,
            greetings: hello.greetings,
            monitor: Box::new(TcpMonitor::new(connection)),
        })
    }

    fn refuse(mut self: Box<Self>, why: &str) {
        refuse(&mut self.connection, why);
    }
}

/// Detects from the TCP stream that the peer has disconnected, once the queue pairs are connected.
struct TcpMonitor {
    connection: FrameConnection,
    received: Vec<u8>,
    disconnect: Option<Disconnect>,
}

impl TcpMonitor {
    const fn new(connection: FrameConnection) -> Self {
        Self {
            connection,
            received: Vec::new(),
            disconnect: None,
        }
    }

    /// Reads the peer's close message or the end of the stream; `None` while the peer is connected.
    fn read_close(&mut self) -> Option<Disconnect> {
        let ended = |why: String| Disconnect {
            final_frames: None,
            why,
        };
        let peer = &self.connection.peer;
        let protocol_error = || ended(format!("{peer} does not use daq's protocol"));
        let mut bytes = [0; CLOSE_BYTES];
        let wanted = CLOSE_BYTES - self.received.len();
        let read = match self.connection.stream.read(&mut bytes[..wanted]) {
            Ok(0) => {
                return Some(ended(format!(
                    "{peer} closed the connection without a close message: it crashed or was killed"
                )));
            }
            Ok(read) => read,
            Err(error) => {
                let is_quiet =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                return (!is_quiet)
                    .then(|| ended(format!("the connection to {peer} failed: {error}")));
            }
        };
        self.received.extend(&bytes[..read]);
        let is_ours = self.received.len() < HEADER_BYTES
            || exchange::frame_length(&self.received) == Ok(CLOSE_BYTES);
        if is_ours && self.received.len() < CLOSE_BYTES {
            return None;
        }
        Some(match Frame::decode(&self.received) {
            Ok(Frame::Close(frames)) => Disconnect {
                final_frames: Some(frames),
                why: format!("{peer} has ended"),
            },
            Ok(_) | Err(_) => protocol_error(),
        })
    }
}

impl PeerMonitor for TcpMonitor {
    fn poll_disconnect(&mut self) -> Option<Disconnect> {
        if self.disconnect.is_none() {
            self.disconnect = self.read_close();
        }
        self.disconnect.clone()
    }

    fn close(&mut self, frames: u64) {
        // If the peer does not receive this message, it detects the end of the stream instead.
        let _ = self
            .connection
            .send_frame(&Frame::Close(frames), Instant::now());
        let _ = self.connection.stream.shutdown(Shutdown::Write);
    }
}
