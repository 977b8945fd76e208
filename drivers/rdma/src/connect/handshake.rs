//! The handshake of two hosts, the same for each [`Transport`]:
//!
//! ```text
//!   connector ── Hello ──▶ listener   the connector has created its queue pairs and posted receives
//!           ◀── Answer ──             the listener has done the same, and its queue pairs are connected
//!           ── Ready ──▶              all queue pairs are connected: the listener may send
//! ```
//! The listener can send a rejection instead of the answer.

use super::access::{Allows, Guard, Token};
use super::exchange::{Frame, Rails};
use super::{AbortHandle, ConnectError, Link, PeerMonitor, Prepare};
use crate::verbs::{self, Endpoint, Nic, QueuePair, QueuePairOptions, VerbsError};
use daq_core::log_limit::LogLimit;
use daq_core::units::counted;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest supported timeout. The limit prevents an overflow of the clock.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// Carries the messages of one handshake.
pub(crate) trait Transport: Send {
    /// Returns the peer's address for messages.
    fn peer(&self) -> String;

    /// Sends a message. A rejection never blocks, and its failure is ignored.
    fn send(&mut self, message: &Frame, end: Instant) -> Result<(), ConnectError>;

    /// Returns the next message; fails if it does not arrive before `end`.
    fn receive(&mut self, end: Instant) -> Result<Frame, ConnectError>;

    /// Returns the next message, or `None` if it has not arrived before `_until`; fails if it does not arrive before
    /// `end`. A transport that must not be interrupted waits until `end`.
    fn receive_until(
        &mut self,
        _until: Instant,
        end: Instant,
    ) -> Result<Option<Frame>, ConnectError> {
        self.receive(end).map(Some)
    }

    /// Checks whether this transport can connect a queue pair of `_nic` as rail `_rail`.
    fn check(
        &self,
        _rail: usize,
        _nic: &dyn Nic,
        _options: &QueuePairOptions,
    ) -> Result<(), VerbsError> {
        Ok(())
    }

    /// Connects the queue pair of rail `_rail` to the peer's endpoint.
    fn connect(
        &self,
        _rail: usize,
        queue_pair: &mut dyn QueuePair,
        peer: &Endpoint,
    ) -> Result<(), VerbsError> {
        queue_pair.connect(peer)
    }

    /// Returns a handle that makes a waiting [`receive`](Self::receive) fail.
    fn abort_handle(&self) -> AbortHandle;

    /// Returns the monitor of the peer after the handshake.
    fn monitor(self: Box<Self>) -> Box<dyn PeerMonitor>;
}

/// This host's part of a handshake.
pub struct Handshake<'a> {
    /// This host's NICs, one per rail.
    pub nics: &'a [Arc<dyn Nic>],
    /// Options of the queue pair of each rail.
    pub options: &'a QueuePairOptions,
    /// This host's greetings, one per rail.
    pub greetings: &'a [Vec<u8>],
    /// Prepares each queue pair before the peer may send.
    pub prepare: Prepare<'a>,
}

impl Handshake<'_> {
    /// Runs the handshake as the connector.
    fn initiate(
        mut self,
        mut transport: Box<dyn Transport>,
        is_cancelled: &AtomicBool,
        end: Instant,
    ) -> Result<Link, ConnectError> {
        let mut queue_pairs = self.create(&*transport)?;
        transport.send(&Frame::Hello(self.describe(&queue_pairs)), end)?;
        let answer = match receive(&mut *transport, end)? {
            Frame::Answer(rails) => rails,
            other => return Err(unexpected(&other, "an answer")),
        };
        let service = self.options.service;
        let (theirs, ours) = (answer.transport, transport_of(self.nics));
        if theirs != ours {
            let why = format!("the answer has transport {}", theirs.name());
            return Err(ConnectError::Foreign { why });
        }
        if answer.endpoints.len() != queue_pairs.len() || answer.service != service {
            let why = format!(
                "the answer has {} and service {}, but this host has {} and service {}",
                counted(answer.endpoints.len(), ours.rail()),
                answer.service.name(),
                counted(queue_pairs.len(), ours.rail()),
                service.name()
            );
            return Err(ConnectError::Foreign { why });
        }
        connect(&*transport, &mut queue_pairs, &answer)?;
        if is_cancelled.load(Ordering::Acquire) {
            return Err(ConnectError::Cancelled);
        }
        transport.send(&Frame::Ready, end)?;
        Ok(link(queue_pairs, answer, transport))
    }

    /// Answers the connector's `hello` as the listener.
    fn answer(
        mut self,
        mut transport: Box<dyn Transport>,
        hello: Rails,
        end: Instant,
    ) -> Result<PendingLink, ConnectError> {
        let (theirs, ours) = (hello.service.name(), self.options.service.name());
        let connected = if theirs == ours {
            self.create(&*transport).and_then(|mut queue_pairs| {
                connect(&*transport, &mut queue_pairs, &hello)?;
                Ok(queue_pairs)
            })
        } else {
            let why = format!(
                "the receiver has service = \"{ours}\", but this sink has \"{theirs}\": set the same service on both hosts"
            );
            refuse(&mut *transport, &why);
            return Err(ConnectError::Mismatch {
                why: format!(
                    "the sender's sink has service = \"{theirs}\", but this source has \"{ours}\": set the same service on both hosts"
                ),
            });
        };
        let queue_pairs = connected.inspect_err(|error| {
            refuse(&mut *transport, &error.to_string());
        })?;
        transport.send(&Frame::Answer(self.describe(&queue_pairs)), end)?;
        Ok(PendingLink {
            queue_pairs,
            hello,
            transport,
            end,
        })
    }

    /// Creates and prepares one queue pair for each NIC.
    fn create(
        &mut self,
        transport: &dyn Transport,
    ) -> Result<Vec<Box<dyn QueuePair>>, ConnectError> {
        let mut queue_pairs = Vec::with_capacity(self.nics.len());
        for (rail, nic) in self.nics.iter().enumerate() {
            transport.check(rail, &**nic, self.options)?;
            let mut queue_pair = nic.create_queue_pair(self.options)?;
            (self.prepare)(rail, &mut *queue_pair)?;
            queue_pairs.push(queue_pair);
        }
        Ok(queue_pairs)
    }

    fn describe(&self, queue_pairs: &[Box<dyn QueuePair>]) -> Rails {
        let endpoints = queue_pairs.iter().map(|queue_pair| queue_pair.endpoint());
        Rails {
            service: self.options.service,
            transport: transport_of(self.nics),
            endpoints: endpoints.collect(),
            greetings: self.greetings.to_vec(),
        }
    }
}

/// A connector that was answered, and whose last message has not arrived. It may already write to memory. The fields are
/// dropped in order.
pub struct PendingLink {
    queue_pairs: Vec<Box<dyn QueuePair>>,
    hello: Rails,
    transport: Box<dyn Transport>,
    end: Instant,
}

/// The state of a connector that was answered.
pub enum Progress {
    /// The connector is connected.
    Connected(Link),
    /// The last message has not arrived.
    Pending(PendingLink),
}

impl PendingLink {
    /// Waits for the connector's last message, at most for `limit` if the transport supports it.
    ///
    /// # Errors
    /// If the connection failed, or the message is too late.
    pub fn wait(mut self, limit: Duration) -> Result<Progress, ConnectError> {
        let until = self.end.min(Instant::now() + limit);
        match self.transport.receive_until(until, self.end)? {
            None => Ok(Progress::Pending(self)),
            Some(message) => match accepted(message)? {
                Frame::Ready => Ok(Progress::Connected(link(
                    self.queue_pairs,
                    self.hello,
                    self.transport,
                ))),
                other => Err(unexpected(&other, "the ready message")),
            },
        }
    }
}

/// Returns the transport of a stream, which is the same for all of its NICs.
fn transport_of(nics: &[Arc<dyn Nic>]) -> verbs::Transport {
    nics.first().map(|nic| nic.transport()).unwrap_or_default()
}

fn connect(
    transport: &dyn Transport,
    queue_pairs: &mut [Box<dyn QueuePair>],
    peer: &Rails,
) -> Result<(), ConnectError> {
    let endpoints = queue_pairs.iter_mut().zip(&peer.endpoints).enumerate();
    for (rail, (queue_pair, endpoint)) in endpoints {
        transport.connect(rail, &mut **queue_pair, endpoint)?;
    }
    Ok(())
}

fn receive(transport: &mut dyn Transport, end: Instant) -> Result<Frame, ConnectError> {
    accepted(transport.receive(end)?)
}

/// Returns the message, or an error if it is a rejection.
fn accepted(message: Frame) -> Result<Frame, ConnectError> {
    match message {
        Frame::Refusal(why) => Err(ConnectError::Refused { why }),
        message => Ok(message),
    }
}

fn refuse(transport: &mut dyn Transport, why: &str) {
    if let Err(error) = transport.send(&Frame::Refusal(why.to_owned()), Instant::now()) {
        // The peer detects the end of the connection instead.
        tracing::debug!("cannot send the reason of a rejection: {error}");
    }
}

fn unexpected(message: &Frame, expected: &str) -> ConnectError {
    ConnectError::Foreign {
        why: format!("received {} instead of {expected}", message.kind()),
    }
}

fn link(queue_pairs: Vec<Box<dyn QueuePair>>, peer: Rails, transport: Box<dyn Transport>) -> Link {
    Link {
        rails: queue_pairs,
        greetings: peer.greetings,
        monitor: transport.monitor(),
    }
}

/// Opens a transport to a listener, for these NICs and until this time.
type Open = dyn FnMut(&[Arc<dyn Nic>], Instant) -> Result<Box<dyn Transport>, ConnectError> + Send;

/// The connecting side of a handshake, which connects to a [`Listener`].
pub struct Connector {
    open: Box<Open>,
    token: Option<Token>,
    is_cancelled: Arc<AtomicBool>,
}

impl Connector {
    pub(crate) fn new(
        open: impl FnMut(&[Arc<dyn Nic>], Instant) -> Result<Box<dyn Transport>, ConnectError>
        + Send
        + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
            token: None,
            is_cancelled: Arc::default(),
        }
    }

    /// Appends `token`, if there is one, to each greeting.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// Returns the flag that cancels an attempt if it becomes true before the last message of the handshake.
    pub(crate) fn cancellation(&self) -> Arc<AtomicBool> {
        self.is_cancelled.clone()
    }

    /// Connects one queue pair for each NIC. Fails if the connection is not established within `limit`.
    pub fn connect(
        &mut self,
        handshake: Handshake<'_>,
        limit: Duration,
    ) -> Result<Link, ConnectError> {
        let end = Instant::now() + limit.min(MAX_TIMEOUT);
        let Handshake {
            nics,
            options,
            greetings,
            prepare,
        } = handshake;
        let transport = (self.open)(nics, end)?;
        let with_token = self.token.as_ref().map(|token| token.appended(greetings));
        let handshake = Handshake {
            nics,
            options,
            greetings: with_token.as_deref().unwrap_or(greetings),
            prepare,
        };
        handshake.initiate(transport, &self.is_cancelled, end)
    }
}

/// The result of waiting for a connector.
pub(crate) enum Arrival {
    /// No connector arrived in time.
    None,
    /// The connection of the connector at this address failed.
    Failed(String, ConnectError),
    /// A connector has sent its greetings.
    Connector(Box<dyn Transport>, Rails),
}

/// Receives the connectors of one transport.
pub(crate) trait Port: Send {
    /// Sets `allows` as the address filter: peers from other addresses are rejected.
    fn restrict(&mut self, allows: Allows);

    /// Waits at most until `end` for the next connector with a rail for each of `nics`. Returns an error only if the
    /// port itself fails.
    fn next(&mut self, nics: &[Arc<dyn Nic>], end: Instant) -> Result<Arrival, ConnectError>;
}

/// The result of waiting for a connector at a [`Listener`].
pub enum Accepted {
    /// No connector arrived in time.
    None,
    /// A connector, which waits until it is accepted or rejected.
    Connector(Incoming),
    /// A connector was rejected because its settings or its version differ.
    Mismatch {
        /// The peer's address.
        peer: String,
        /// What differs, and what to change on which host.
        why: String,
    },
}

impl Accepted {
    /// Returns the incoming connection, or the reason why no connection was accepted.
    pub fn connector(self) -> Result<Incoming, String> {
        match self {
            Self::Connector(incoming) => Ok(incoming),
            Self::None => Err("no peer connected in time".to_owned()),
            Self::Mismatch { peer, why } => Err(format!("{peer}: {why}")),
        }
    }
}

/// The accepting side of a handshake, which accepts connections from a [`Connector`].
pub struct Listener {
    port: Box<dyn Port>,
    address: SocketAddr,
    /// Maximum time of each step of the handshake after the connector's greeting.
    step_timeout: Duration,
    guard: Option<Guard>,
    failed: LogLimit,
}

impl Listener {
    pub(crate) fn new(port: impl Port + 'static, address: SocketAddr, step: Duration) -> Self {
        Self {
            port: Box::new(port),
            address,
            step_timeout: step,
            guard: None,
            failed: LogLimit::new(),
        }
    }

    /// Rejects peers without access.
    #[must_use]
    pub fn with_access(mut self, access: super::access::Access) -> Self {
        let (guard, allows) = Guard::new(access);
        if let Some(allows) = allows {
            self.port.restrict(allows);
        }
        self.guard = Some(guard);
        self
    }

    /// Returns the local address; if port 0 was requested, with the chosen port.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits at most for `limit` for the next connector, which must have one rail for each of `nics`. A connector whose
    /// connection fails is logged and does not end the wait.
    pub fn accept(
        &mut self,
        nics: &[Arc<dyn Nic>],
        limit: Duration,
    ) -> Result<Accepted, ConnectError> {
        let end = Instant::now() + limit.min(MAX_TIMEOUT);
        loop {
            match self.port.next(nics, end)? {
                Arrival::None => return Ok(Accepted::None),
                Arrival::Failed(peer, ConnectError::Mismatch { why }) => {
                    return Ok(Accepted::Mismatch { peer, why });
                }
                Arrival::Failed(peer, error) => self.failed.run(|suppressed| {
                    tracing::warn!(
                        "cannot accept the connector {peer}: {error}; waiting for the next one{suppressed}"
                    );
                }),
                Arrival::Connector(mut transport, hello) => {
                    let peer = transport.peer();
                    if let Some((for_sender, why)) = mismatch(&hello, nics) {
                        refuse(&mut *transport, &for_sender);
                        return Ok(Accepted::Mismatch { peer, why });
                    }
                    let guard = self.guard.as_ref();
                    match guard.and_then(|guard| guard.check(&peer, &hello.greetings)) {
                        Some(why) => refuse(&mut *transport, why),
                        None => {
                            return Ok(Accepted::Connector(Incoming {
                                transport,
                                hello,
                                nics: nics.to_vec(),
                                step_timeout: self.step_timeout,
                            }));
                        }
                    }
                }
            }
            // Return even if peers keep being rejected, so that the caller can do its other work.
            if Instant::now() >= end {
                return Ok(Accepted::None);
            }
        }
    }
}

/// Returns the reason why a connector with these rails is rejected: for the log of the sender, and for the log of the
/// receiver.
fn mismatch(hello: &Rails, nics: &[Arc<dyn Nic>]) -> Option<(String, String)> {
    let (transport, rails) = (transport_of(nics), nics.len());
    let (ours, theirs, fix) = if hello.transport != transport {
        let key = |transport: verbs::Transport| format!("transport = \"{}\"", transport.name());
        (key(transport), key(hello.transport), "the same transport")
    } else if hello.endpoints.len() != rails {
        let count = |rails: usize| counted(rails, transport.rail());
        let theirs = count(hello.endpoints.len());
        (count(rails), theirs, transport.rails_keys())
    } else {
        return None;
    };
    Some((
        format!("the receiver has {ours}, but this sink has {theirs}: set {fix} on both hosts"),
        format!(
            "the sender's sink has {theirs}, but this source has {ours}: set {fix} on both hosts"
        ),
    ))
}

/// A connector that waits for the listener's answer.
pub struct Incoming {
    transport: Box<dyn Transport>,
    hello: Rails,
    nics: Vec<Arc<dyn Nic>>,
    step_timeout: Duration,
}

impl Incoming {
    /// Returns the peer's address for messages.
    pub fn peer(&self) -> String {
        self.transport.peer()
    }

    /// Returns the connector's greetings, one per rail.
    pub fn greetings(&self) -> &[Vec<u8>] {
        &self.hello.greetings
    }

    /// Returns a handle that makes a waiting [`accept`](Self::accept) fail.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.transport.abort_handle()
    }

    /// Answers with one greeting per rail. The queue pairs are connected when this method returns.
    pub fn accept(
        self,
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<Link, ConnectError> {
        let mut pending = self.answer(options, greetings, prepare)?;
        loop {
            match pending.wait(MAX_TIMEOUT)? {
                Progress::Connected(link) => return Ok(link),
                Progress::Pending(still) => pending = still,
            }
        }
    }

    /// Answers with one greeting per rail, and does not wait for the connector's last message.
    pub fn answer(
        self,
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<PendingLink, ConnectError> {
        let handshake = Handshake {
            nics: &self.nics,
            options,
            greetings,
            prepare,
        };
        let end = Instant::now() + self.step_timeout;
        handshake.answer(self.transport, self.hello, end)
    }

    /// Rejects the connector with a reason of at most 160 bytes.
    pub fn refuse(mut self, why: &str) {
        refuse(&mut *self.transport, why);
    }
}
