//! The transport of a handshake over plain TCP. Endpoints and greetings use one stream. The stream stays open, so that
//! each side detects immediately when the other side ends.

use super::acceptor::{Acceptor, HandshakenPeer};
use super::access::Allows;
use super::exchange::{self, CLOSE_BYTES, Frame, HEADER_BYTES};
use super::handshake::{Arrival, Connector, Listener, Port, Transport};
use super::{AbortHandle, ConnectError, Disconnect, PeerMonitor};
use crate::tcp::join::{JoinKey, Joins};
use crate::tcp::{self, TcpQueuePair, socket};
use crate::verbs::{Endpoint, Nic, QueuePair, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::any::Any;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for each step of the handshake after the peer's first message.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to open the connection of a queue pair.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a connector to the listener at `address`.
pub fn connector(address: SocketAddr) -> Connector {
    Connector::new(move |_, end| open(address, end))
}

/// Connects to the listener at `address`.
pub(crate) fn open(address: SocketAddr, end: Instant) -> Result<Box<dyn Transport>, ConnectError> {
    let left = end.saturating_duration_since(Instant::now());
    // `TcpStream::connect_timeout` rejects a timeout of zero.
    let stream = TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1)))
        .map_err(|source| ConnectError::network("connecting", source))?;
    Ok(Box::new(FrameConnection::new(
        stream,
        address,
        Side::Connector(address),
    )?))
}

/// Opens a connection for the listener's queue pair with this key.
fn join(address: SocketAddr, key: JoinKey) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, JOIN_TIMEOUT)?;
    // The short message fits into the send buffer, so sending it does not block.
    stream.write_all(&Frame::Join(key).encode())?;
    Ok(stream)
}

/// Creates a listener at `address`; for port 0, [`Listener::address`] returns the chosen port.
///
/// # Errors
/// If the address cannot be bound.
pub fn listener(address: SocketAddr) -> Result<Listener, ConnectError> {
    let refused = |source| ConnectError::network("listening", source);
    let listener = TcpListener::bind(address).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let acceptor = Acceptor::new(listener, greeting_length).map_err(refused)?;
    let port = TcpPort {
        acceptor,
        joins: Arc::default(),
    };
    Ok(Listener::new(port, address, STEP_TIMEOUT))
}

/// Returns the length of the greeting that starts with `bytes`. Only the header of a greeting of another version is read.
fn greeting_length(bytes: &[u8]) -> Option<usize> {
    if exchange::has_other_version(bytes) {
        return Some(HEADER_BYTES);
    }
    exchange::frame_length(bytes).ok()
}

/// Rejects a peer whose greeting has another version. The rejection has this version, which the peer can report.
fn reject_version(stream: &TcpStream, peer: SocketAddr, why: String) -> Arrival {
    // If this fails, the peer detects the end of the connection instead. The short message fits into the send buffer.
    let _ = (&*stream).write_all(&Frame::Refusal(why.clone()).encode());
    let _ = socket::close(stream);
    Arrival::Failed(peer.to_string(), ConnectError::Mismatch { why })
}

/// Accepts connectors by TCP.
struct TcpPort {
    acceptor: Acceptor,
    /// The queue pairs over TCP that wait for their connections.
    joins: Arc<Joins>,
}

impl Port for TcpPort {
    fn restrict(&mut self, allows: Allows) {
        self.acceptor.restrict(allows);
    }

    fn next(&mut self, _: &[Arc<dyn Nic>], end: Instant) -> Result<Arrival, ConnectError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let handshaken = self.acceptor.next(Some(left));
            let handshaken =
                handshaken.map_err(|source| ConnectError::network("listening", source))?;
            let Some(HandshakenPeer {
                stream,
                peer,
                greeting,
            }) = handshaken
            else {
                return Ok(Arrival::None);
            };
            match Frame::decode(&greeting) {
                Ok(Frame::Hello(hello)) => {
                    let side = Side::Listener(self.joins.clone());
                    return Ok(match FrameConnection::new(stream, peer, side) {
                        Ok(connection) => Arrival::Connector(Box::new(connection), hello),
                        Err(error) => Arrival::Failed(peer.to_string(), error),
                    });
                }
                Ok(Frame::Join(key)) => self.joins.deliver(key, stream),
                Err(why) if exchange::has_other_version(&greeting) => {
                    return Ok(reject_version(&stream, peer, why));
                }
                // A peer that uses another protocol gets no answer.
                Ok(_) | Err(_) => {}
            }
            if left.is_zero() {
                return Ok(Arrival::None);
            }
        }
    }
}

/// A TCP stream that carries frames of the exchange.
struct FrameConnection {
    stream: TcpStream,
    peer: String,
    side: Side,
    /// The bytes of the next frame that have arrived.
    partial: Vec<u8>,
}

/// The side of a handshake.
enum Side {
    /// This side has connected to the listener at this address.
    Connector(SocketAddr),
    /// This side has accepted the connection.
    Listener(Arc<Joins>),
}

impl FrameConnection {
    fn new(stream: TcpStream, peer: SocketAddr, side: Side) -> Result<Self, ConnectError> {
        let connection = Self {
            stream,
            peer: peer.to_string(),
            side,
            partial: Vec::with_capacity(HEADER_BYTES),
        };
        socket::prepare(&connection.stream)
            .map_err(|source| ConnectError::network("setting up the TCP connection", source))?;
        Ok(connection)
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

    fn write(&mut self, bytes: &[u8], end: Instant) -> Result<(), ConnectError> {
        let mut done = 0;
        while done < bytes.len() {
            let result = match self.stream.write(&bytes[done..]) {
                Ok(more) => {
                    done += more;
                    Ok(())
                }
                Err(error) => self.wait_or_fail(error, PollFlags::OUT, end),
            };
            result.map_err(|source| ConnectError::network("sending a greeting", source))?;
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
}

impl Transport for FrameConnection {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn send(&mut self, message: &Frame, end: Instant) -> Result<(), ConnectError> {
        let sent = self.write(&message.encode(), end);
        if matches!(message, Frame::Refusal(_) | Frame::Close(_)) {
            // The short message fits into the send buffer, so sending it does not block.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        sent
    }

    /// Reads exactly one frame.
    fn receive(&mut self, end: Instant) -> Result<Frame, ConnectError> {
        loop {
            let wanted = exchange::frame_length(&self.partial)
                .map_err(|why| ConnectError::Foreign { why })?;
            let have = self.partial.len();
            if have >= wanted {
                let frame =
                    Frame::decode(&self.partial).map_err(|why| ConnectError::Foreign { why });
                self.partial.clear();
                return frame;
            }
            self.partial.resize(wanted, 0);
            let result = self.stream.read(&mut self.partial[have..]);
            self.partial.truncate(have + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => {
                    let error = ErrorKind::UnexpectedEof.into();
                    return Err(ConnectError::network("waiting for an answer", error));
                }
                Ok(_) => {}
                Err(error) => self
                    .wait_or_fail(error, PollFlags::IN, end)
                    .map_err(|source| ConnectError::network("waiting for an answer", source))?,
            }
        }
    }

    fn receive_until(
        &mut self,
        until: Instant,
        end: Instant,
    ) -> Result<Option<Frame>, ConnectError> {
        match self.receive(until) {
            Err(ConnectError::Network { source, .. })
                if source.kind() == ErrorKind::TimedOut && until < end =>
            {
                Ok(None)
            }
            received => received.map(Some),
        }
    }

    fn connect(
        &self,
        _: usize,
        queue_pair: &mut dyn QueuePair,
        peer: &Endpoint,
    ) -> Result<(), VerbsError> {
        let any: &mut dyn Any = queue_pair;
        let Some(over_tcp) = any.downcast_mut::<TcpQueuePair>() else {
            return queue_pair.connect(peer);
        };
        match &self.side {
            Side::Listener(joins) => {
                let (key, mailbox) = over_tcp.expect();
                joins.expect(key, mailbox);
                Ok(())
            }
            Side::Connector(address) => {
                let stream = join(*address, JoinKey::of(peer)).map_err(|error| VerbsError {
                    nic: tcp::NAME.to_owned(),
                    call: "opening a connection for frames".to_owned(),
                    errno: error.raw_os_error().unwrap_or(libc::ETIMEDOUT),
                    why: "the port of `listen` must accept several connections".to_owned(),
                })?;
                over_tcp.join(stream)
            }
        }
    }

    fn abort_handle(&self) -> AbortHandle {
        let stream = self.stream.try_clone();
        Box::new(move || {
            if let Ok(stream) = &stream {
                // An error is expected if the stream was shut down before.
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
    }

    fn monitor(self: Box<Self>) -> Box<dyn PeerMonitor> {
        Box::new(TcpMonitor {
            connection: *self,
            received: Vec::new(),
            disconnect: None,
        })
    }
}

/// Detects from the TCP stream that the peer has disconnected, once the queue pairs are connected.
struct TcpMonitor {
    connection: FrameConnection,
    received: Vec<u8>,
    disconnect: Option<Disconnect>,
}

impl TcpMonitor {
    /// Reads the peer's close message or the end of the stream; `None` while the peer is connected.
    fn read_close(&mut self) -> Option<Disconnect> {
        let ended = |why: String| Disconnect {
            final_frames: None,
            why,
        };
        let mut bytes = [0; CLOSE_BYTES];
        let wanted = CLOSE_BYTES - self.received.len();
        let read = match self.connection.stream.read(&mut bytes[..wanted]) {
            Ok(0) => {
                return Some(ended(
                    "the connection ended without a close message: the peer crashed or was killed"
                        .to_owned(),
                ));
            }
            Ok(read) => read,
            Err(error) => {
                let is_quiet =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                return (!is_quiet).then(|| ended(format!("the connection failed: {error}")));
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
                why: "the peer has ended".to_owned(),
            },
            Ok(_) | Err(_) => ended("the peer does not use daq's protocol".to_owned()),
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
        let _ = self.connection.send(&Frame::Close(frames), Instant::now());
    }
}
