//! Connects hosts by rdma_cm: one connection per rail, with greetings as private data.
//!
//! ```text
//!   connector ── request: greeting, queue pair ──▶ listener     for every rail, before the first answer
//!           ◀── response: greeting, queue pair ──         the listener's queue pair is already connected
//!           ── ready ──▶                                  the connector's queue pair is connected too
//! ```
//! rdma_cm selects the NIC by the addresses. If the configuration names a different NIC, the connection is rejected.
//! rdma_cm pads private data with zeros.

use super::access::Allows;
use super::{
    AbortHandle, ConnectError, Connector, Disconnect, Incoming, Link, Listener, MAX_HELLO,
    MAX_OFFER, PeerMonitor, Prepare, sanitized,
};
use crate::stream::wire::Hello;
use crate::sys::VerbsQueuePair;
use crate::sys::cm::{Event, EventKind, Events, Id};
use crate::sys::device;
use crate::verbs::{Nic, QueuePair, QueuePairOptions, Service, VerbsError};
use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for each step of the handshake after the peer's first message.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting thread checks whether its operation was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of requests that rdma_cm queues until the listener accepts them.
const BACKLOG: i32 = 64;
/// Maximum number of pending requests from connectors that have not yet sent requests for all rails.
const MAX_INCOMPLETE: usize = 64;
/// Maximum size of a rejection reason in bytes, set by rdma_cm.
const MAX_REFUSAL: usize = 148;

/// Connects to a listener by rdma_cm.
#[derive(Clone, Debug)]
pub struct CmConnector {
    addresses: Vec<SocketAddr>,
    is_cancelled: Option<Arc<AtomicBool>>,
}

/// Returns a connector to the listener at `address`, which must be the address of one of the listener's NICs.
pub fn connector(address: SocketAddr) -> CmConnector {
    CmConnector {
        addresses: vec![address],
        is_cancelled: None,
    }
}

impl CmConnector {
    /// Adds an address of the listener's host. Rail `i` uses address number `i` modulo the number of addresses. A
    /// listener with several NICs needs one address per NIC.
    #[must_use]
    pub fn and(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address);
        self
    }
}

/// Accepts connectors by rdma_cm.
pub struct CmListener {
    listener: Id,
    /// Requests of connectors that have not yet sent requests for all rails.
    incomplete: Vec<Request>,
    /// Predicate for the addresses that may connect; `None` allows every address.
    allows: Option<Allows>,
}

/// Creates a listener at `address`; an unspecified address listens on all NICs.
pub fn listener(address: SocketAddr) -> Result<CmListener, ConnectError> {
    let listener = Id::new(&Events::new()?)?;
    listener.listen(address, BACKLOG)?;
    Ok(CmListener {
        listener,
        incomplete: Vec::new(),
        allows: None,
    })
}

impl CmListener {
    /// Returns the local address of the listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_address()
    }
}

/// A rail that is being connected.
struct CmRail {
    id: Id,
    queue_pair: Box<dyn QueuePair>,
}

impl CmRail {
    /// Creates a queue pair on `nic`. Fails if rdma_cm has selected a different NIC.
    fn new(id: Id, nic: &dyn Nic, options: &QueuePairOptions) -> Result<Self, VerbsError> {
        check(&id, nic)?;
        Ok(Self {
            id,
            queue_pair: nic.create_queue_pair(options)?,
        })
    }

    /// Connects the queue pair with the parameters from rdma_cm.
    fn connect(&mut self, nic: &dyn Nic) -> Result<(), VerbsError> {
        let (receive, send) = self.id.transitions()?;
        let queue_pair: &mut dyn Any = &mut *self.queue_pair;
        match queue_pair.downcast_mut::<VerbsQueuePair>() {
            Some(queue_pair) => queue_pair.connect_with(receive, send),
            None => Err(nic_error(nic, "an emulated NIC must be connected by TCP")),
        }
    }
}

fn nic_error(nic: &dyn Nic, why: impl Into<String>) -> VerbsError {
    VerbsError {
        nic: nic.name().to_owned(),
        call: "rdma_cm".to_owned(),
        errno: 0,
        why: why.into(),
    }
}

/// Returns an error if rdma_cm has selected a NIC other than the configured NIC.
fn check(id: &Id, nic: &dyn Nic) -> Result<(), VerbsError> {
    let port = nic.port()?.number;
    match id.card() {
        Some((name, number)) if name == nic.name() && number == port => Ok(()),
        Some((name, number)) => Err(nic_error(
            nic,
            format!(
                "the address is reached through {name} port {number}, but `nics` names {} port {port}: use an address of that NIC, or name the other NIC in `nics`",
                nic.name()
            ),
        )),
        None => Err(nic_error(
            nic,
            "the address is not reachable through an RDMA NIC",
        )),
    }
}

fn network(peer: String, action: &'static str, source: io::Error) -> ConnectError {
    ConnectError::Network {
        peer,
        action,
        source,
    }
}

/// Converts an unexpected event into an error.
fn failed(event: &Event, peer: String, action: &'static str) -> ConnectError {
    match event.kind {
        EventKind::Rejected => ConnectError::Refused {
            peer,
            why: rejection_reason(event.status, &event.private),
        },
        EventKind::Failed if event.status < 0 => network(
            peer,
            action,
            io::Error::from_raw_os_error(event.status.saturating_neg()),
        ),
        EventKind::Removed => network(peer, action, io::Error::other("the NIC was removed")),
        _ => network(peer, action, io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Returns the reason of a rejection: the peer's own text, or a text for the reason number.
fn rejection_reason(reason: i32, private: &[u8]) -> String {
    /// `IB_CM_REJ_INVALID_SERVICE_ID`.
    const INVALID_SERVICE_ID: i32 = 8;
    /// `IB_CM_REJ_STALE_CONN`.
    const STALE: i32 = 10;
    let end = private.iter().rposition(|&byte| byte != 0);
    let words = &private[..end.map_or(0, |last| last + 1)];
    match (reason, words) {
        (INVALID_SERVICE_ID, _) => "no rdma_cm listener at that port".to_owned(),
        (STALE, _) => {
            "the peer still has an earlier connection with this queue pair number; try again"
                .to_owned()
        }
        (reason, []) => format!("rdma_cm reports the reason code {reason}"),
        (_, words) => sanitized(words),
    }
}

/// Truncates `why` at a character boundary to the maximum size of a rejection reason.
fn truncated(why: &str) -> &[u8] {
    &why.as_bytes()[..why.floor_char_boundary(MAX_REFUSAL)]
}

/// Returns the next event; fails if no event arrives before `end`.
fn next(
    events: &Arc<Events>,
    end: Instant,
    peer: &str,
    action: &'static str,
) -> Result<Event, ConnectError> {
    loop {
        if let Some(event) = events.next()? {
            return Ok(event);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(network(
                peer.to_owned(),
                action,
                io::ErrorKind::TimedOut.into(),
            ));
        }
        events.wait(left)?;
    }
}

/// Waits for an event of type `kind` for the connection `of`. Ignores events of type `Other`.
fn await_kind(
    events: &Arc<Events>,
    of: usize,
    kind: EventKind,
    end: Instant,
    peer: &str,
    action: &'static str,
) -> Result<Event, ConnectError> {
    loop {
        let event = next(events, end, peer, action)?;
        match event.kind {
            found if found == kind && event.of == of => return Ok(event),
            EventKind::Other => {}
            _ => return Err(failed(&event, peer.to_owned(), action)),
        }
    }
}

fn check_service(nics: &[Arc<dyn Nic>], options: &QueuePairOptions) -> Result<(), VerbsError> {
    match nics.first() {
        Some(nic) if options.service != Service::Rc => Err(nic_error(
            &**nic,
            format!(
                "rdma_cm supports only rc, not {}: use connection = \"tcp\" on both hosts",
                options.service.name()
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks that the number of greetings equals the number of NICs, and that each greeting fits into the private data
/// (`max` bytes).
fn check_greetings(
    nics: &[Arc<dyn Nic>],
    greetings: &[Vec<u8>],
    max: usize,
) -> Result<(), VerbsError> {
    let longest = greetings.iter().map(Vec::len).max().unwrap_or(0);
    match nics.first() {
        Some(nic) if greetings.len() != nics.len() => Err(nic_error(
            &**nic,
            format!(
                "there must be one greeting per rail, but there are {} greetings for {} rails",
                greetings.len(),
                nics.len()
            ),
        )),
        Some(nic) if longest > max => Err(nic_error(
            &**nic,
            format!("a greeting has {longest} bytes, but rdma_cm can carry at most {max}"),
        )),
        _ => Ok(()),
    }
}

impl Connector for CmConnector {
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
        check_service(nics, options)?;
        check_greetings(nics, greetings, MAX_HELLO)?;
        let end = Instant::now() + limit;
        let events = Events::new()?;
        let mut rails = Vec::with_capacity(nics.len());
        for (i, (nic, greeting)) in nics.iter().zip(greetings).enumerate() {
            let address = self.addresses[i % self.addresses.len()];
            let peer = address.to_string();
            let left = || end.saturating_duration_since(Instant::now());
            let id = Id::new(&events)?;
            // Binds to the NIC's own address, so that rdma_cm selects exactly this NIC.
            let own = device::ip(nic.port()?.gid).filter(|ip| ip.is_ipv4() == address.is_ipv4());
            id.resolve(own, address, left())?;
            let action = "resolving the peer's address";
            await_kind(
                &events,
                id.address(),
                EventKind::Address,
                end,
                &peer,
                action,
            )?;
            id.route(left())?;
            let action = "resolving the route to the peer";
            await_kind(&events, id.address(), EventKind::Route, end, &peer, action)?;
            let mut rail = CmRail::new(id, &**nic, options)?;
            prepare(i, &mut *rail.queue_pair)?;
            rail.id
                .connect(rail.queue_pair.endpoint().number, greeting)?;
            rails.push(rail);
        }
        let peer = self.addresses[0].to_string();
        let mut answers: Vec<Option<Vec<u8>>> = vec![None; rails.len()];
        while answers.iter().any(Option::is_none) {
            let action = "waiting for an answer";
            let event = next(&events, end, &peer, action)?;
            let rail = rails.iter().position(|rail| rail.id.address() == event.of);
            match (event.kind, rail) {
                (EventKind::Response, Some(rail)) => answers[rail] = Some(event.private),
                (EventKind::Other, _) => {}
                _ => return Err(failed(&event, peer, action)),
            }
        }
        let is_cancelled = self.is_cancelled.as_ref();
        if is_cancelled.is_some_and(|is_cancelled| is_cancelled.load(Ordering::Acquire)) {
            return Err(ConnectError::Cancelled { peer });
        }
        for (rail, nic) in rails.iter_mut().zip(nics) {
            rail.connect(&**nic)?;
            rail.id.establish()?;
        }
        Ok(link(
            rails,
            answers.into_iter().flatten().collect(),
            events,
            peer,
        ))
    }
}

fn link(rails: Vec<CmRail>, greetings: Vec<Vec<u8>>, events: Arc<Events>, peer: String) -> Link {
    let (rails, ids) = rails
        .into_iter()
        .map(|rail| (rail.queue_pair, rail.id))
        .unzip();
    Link {
        rails,
        greetings,
        monitor: Box::new(CmMonitor {
            ids,
            events,
            peer,
            disconnect: None,
        }),
    }
}

/// A connector's request for one rail.
struct Request {
    id: Id,
    greeting: Vec<u8>,
    since: Instant,
}

impl Request {
    fn refuse(self, why: &str) {
        if let Err(error) = self.id.reject(truncated(why)) {
            tracing::debug!("{error}");
        }
    }
}

/// Returns the requests of one connector in the order of its rails, if the requests of all rails have arrived. The
/// stream number identifies the connector.
fn complete(greetings: &[Option<(u64, usize)>], rails: usize) -> Option<Vec<usize>> {
    let streams = greetings.iter().flatten().map(|(stream, _)| *stream);
    streams.into_iter().find_map(|stream| {
        (0..rails)
            .map(|rail| greetings.iter().position(|it| *it == Some((stream, rail))))
            .collect()
    })
}

/// Returns the stream number and the rail index of a greeting. Fails if the number of rails in the greeting is not
/// `rails`.
fn stream_and_rail(greeting: &[u8], rails: usize) -> Result<(u64, usize), String> {
    let hello = Hello::decode(greeting).map_err(|error| error.to_string())?;
    if usize::from(hello.rails) != rails {
        return Err(format!(
            "the peer has {} rails, but this host has {rails}: set the same number of NICs in `nics` on both hosts",
            hello.rails
        ));
    }
    Ok((hello.stream, hello.rail.into()))
}

/// Returns the maximum number of incomplete requests, which is at least the number of rails of one connector.
const fn max_incomplete(rails: usize) -> usize {
    if rails > MAX_INCOMPLETE {
        rails
    } else {
        MAX_INCOMPLETE
    }
}

/// Returns true if the remaining rails of a connector have timed out.
fn is_late(since: Duration) -> bool {
    since >= STEP_TIMEOUT
}

impl CmListener {
    /// Accepts or rejects a request for a rail. Returns all requests of the connector once the requests of all its
    /// rails have arrived.
    fn begin(&mut self, request: Request, nics: &[Arc<dyn Nic>]) -> Option<Vec<Request>> {
        // With a single rail nothing has to be ordered, so every greeting is valid.
        let found = match nics {
            [_] => Ok((0, 0)),
            _ => stream_and_rail(&request.greeting, nics.len()),
        };
        let (stream, rail) = match found {
            Ok(place) => place,
            Err(why) => {
                request.refuse(&why);
                return None;
            }
        };
        if let Err(error) = check(&request.id, &*nics[rail]) {
            request.refuse(&format!("rail {rail}: {}", error.why));
            return None;
        }
        if nics.len() == 1 {
            return Some(vec![request]);
        }
        // A repeated request replaces the earlier one, because its connector has started again.
        self.incomplete
            .retain(|other| stream_and_rail(&other.greeting, nics.len()) != Ok((stream, rail)));
        if self.incomplete.len() >= max_incomplete(nics.len()) {
            request.refuse("too many incomplete connection attempts; try again");
            return None;
        }
        self.incomplete.push(request);
        self.take(nics.len())
    }

    /// Removes and returns the requests of a connector, if the requests of all its rails have arrived.
    fn take(&mut self, rails: usize) -> Option<Vec<Request>> {
        let places: Vec<_> = self
            .incomplete
            .iter()
            .map(|request| stream_and_rail(&request.greeting, rails).ok())
            .collect();
        let chosen = complete(&places, rails)?;
        let mut all: Vec<Option<Request>> = self.incomplete.drain(..).map(Some).collect();
        let taken = chosen.into_iter().filter_map(|i| all[i].take()).collect();
        self.incomplete.extend(all.into_iter().flatten());
        Some(taken)
    }
}

impl Listener for CmListener {
    fn restrict(&mut self, allows: Allows) {
        self.allows = Some(allows);
    }

    fn accept(
        &mut self,
        nics: &[Arc<dyn Nic>],
        limit: Duration,
    ) -> Result<Option<Box<dyn Incoming>>, ConnectError> {
        let end = Instant::now() + limit;
        let events = Arc::clone(self.listener.events());
        loop {
            self.incomplete
                .retain(|request| !is_late(request.since.elapsed()));
            let Some(event) = events.next()? else {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                events.wait(left)?;
                continue;
            };
            let Some(id) = event.request else {
                // Either a connector has stopped, and its request is dropped, or the listener's NIC was removed, which
                // is an error.
                self.incomplete
                    .retain(|request| request.id.address() != event.of);
                if event.kind == EventKind::Removed {
                    return Err(failed(&event, "rdma_cm".to_owned(), "listening"));
                }
                continue;
            };
            let request = Request {
                id,
                greeting: event.private,
                since: Instant::now(),
            };
            let peer = request.id.peer();
            let is_allowed = |allows: &Allows| peer.is_some_and(|peer| allows(peer));
            if !self.allows.as_ref().is_none_or(is_allowed) {
                request.refuse("connections from this address are not allowed");
            } else if let Some(requests) = self.begin(request, nics) {
                return Ok(Some(Box::new(CmIncoming::new(requests, nics)?)));
            }
            // Return even if peers keep being rejected, so that the caller can do its other work.
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

/// A connector that waits for the listener's answer.
struct CmIncoming {
    ids: Vec<Id>,
    greetings: Vec<Vec<u8>>,
    nics: Vec<Arc<dyn Nic>>,
    events: Arc<Events>,
    peer: String,
    is_aborted: Arc<AtomicBool>,
}

impl CmIncoming {
    fn new(requests: Vec<Request>, nics: &[Arc<dyn Nic>]) -> Result<Self, VerbsError> {
        let events = Events::new()?;
        let peer = requests
            .first()
            .and_then(|request| request.id.peer())
            .map_or_else(|| "a connector".to_owned(), |peer| peer.to_string());
        let mut ids = Vec::with_capacity(requests.len());
        let mut greetings = Vec::with_capacity(requests.len());
        for request in requests {
            ids.push(request.id.migrated(&events)?);
            greetings.push(request.greeting);
        }
        Ok(Self {
            ids,
            greetings,
            nics: nics.to_vec(),
            events,
            peer,
            is_aborted: Arc::default(),
        })
    }
}

impl Incoming for CmIncoming {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn greetings(&self) -> &[Vec<u8>] {
        &self.greetings
    }

    fn abort_handle(&self) -> AbortHandle {
        let is_aborted = self.is_aborted.clone();
        Box::new(move || is_aborted.store(true, Ordering::Release))
    }

    fn accept(
        self: Box<Self>,
        options: &QueuePairOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<Link, ConnectError> {
        check_service(&self.nics, options)?;
        check_greetings(&self.nics, greetings, MAX_OFFER)?;
        let Self {
            ids,
            greetings: theirs,
            nics,
            events,
            peer,
            is_aborted,
        } = *self;
        let mut rails = Vec::with_capacity(nics.len());
        for (i, (id, nic)) in ids.into_iter().zip(&nics).enumerate() {
            let mut rail = CmRail::new(id, &**nic, options)?;
            prepare(i, &mut *rail.queue_pair)?;
            rail.connect(&**nic)?;
            rails.push(rail);
        }
        for (rail, greeting) in rails.iter().zip(greetings) {
            rail.id
                .accept(rail.queue_pair.endpoint().number, greeting)?;
        }
        let end = Instant::now() + STEP_TIMEOUT;
        let mut waiting: Vec<usize> = rails.iter().map(|rail| rail.id.address()).collect();
        while !waiting.is_empty() {
            let action = "waiting until the peer is ready";
            if is_aborted.load(Ordering::Acquire) {
                let error = io::ErrorKind::Interrupted.into();
                return Err(network(peer, action, error));
            }
            let Some(event) = events.next()? else {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(network(peer, action, io::ErrorKind::TimedOut.into()));
                }
                events.wait(left.min(POLL_INTERVAL))?;
                continue;
            };
            match event.kind {
                EventKind::Established => waiting.retain(|id| *id != event.of),
                EventKind::Other => {}
                _ => return Err(failed(&event, peer, action)),
            }
        }
        Ok(link(rails, theirs, events, peer))
    }

    fn refuse(self: Box<Self>, why: &str) {
        for id in &self.ids {
            if let Err(error) = id.reject(truncated(why)) {
                tracing::debug!("{}: {error}", self.peer);
            }
        }
    }
}

/// Detects that the peer of a link has disconnected.
struct CmMonitor {
    ids: Vec<Id>,
    events: Arc<Events>,
    peer: String,
    disconnect: Option<Disconnect>,
}

impl PeerMonitor for CmMonitor {
    fn poll_disconnect(&mut self) -> Option<Disconnect> {
        if self.disconnect.is_none() {
            let why = match self.events.next() {
                Ok(Some(event)) => match event.kind {
                    EventKind::Disconnected => {
                        Some("the peer closed the connection or its process died")
                    }
                    EventKind::Removed => Some("the NIC was removed"),
                    EventKind::Failed => Some("the connection has failed"),
                    _ => None,
                }
                .map(str::to_owned),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            };
            self.disconnect = why.map(|why| Disconnect {
                final_frames: None,
                why: format!("{}: {why}", self.peer),
            });
        }
        self.disconnect.clone()
    }

    fn close(&mut self, _: u64) {
        for id in &self.ids {
            if let Err(error) = id.disconnect() {
                tracing::debug!("{}: {error}", self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_reason_is_sentence() {
        assert_eq!(
            rejection_reason(28, b"the ring is full\0\0\0"),
            "the ring is full"
        );
        assert!(rejection_reason(8, &[0; 148]).contains("no rdma_cm listener"));
        assert_eq!(
            rejection_reason(24, &[0; 148]),
            "rdma_cm reports the reason code 24"
        );
        assert_eq!(rejection_reason(28, b"no\x1b[2J\nroom\0"), "no [2J room");
    }

    #[test]
    fn incomplete_connectors_are_limited_and_dropped() {
        assert_eq!((max_incomplete(2), max_incomplete(255)), (64, 255));
        assert!(is_late(STEP_TIMEOUT) && !is_late(STEP_TIMEOUT / 2));
    }

    #[test]
    fn long_rejection_is_truncated_at_character_boundary() {
        let short = "no";
        assert_eq!(truncated(short), short.as_bytes());
        let long = "ä".repeat(100);
        let truncated = truncated(&long);
        assert!(truncated.len() <= MAX_REFUSAL && truncated.len() > MAX_REFUSAL - 4);
        assert!(std::str::from_utf8(truncated).is_ok());
    }

    /// Rails of several connectors may arrive in any order; each connector must get only its own rails, in order.
    #[test]
    fn rails_of_one_connector_are_grouped() {
        let incomplete = [Some((7, 1)), Some((9, 0)), None, Some((9, 2)), Some((7, 0))];
        assert_eq!(complete(&incomplete, 2), Some(vec![4, 0]));
        assert_eq!(complete(&incomplete, 3), None);
        let more = [&incomplete[..], &[Some((9, 1))]].concat();
        assert_eq!(complete(&more, 3), Some(vec![1, 5, 3]));
        assert_eq!(complete(&[], 1), None);
    }

    #[test]
    fn greeting_identifies_rail_and_connector() {
        let hello = Hello {
            mode: crate::stream::wire::Mode::Write,
            rail: 1,
            rails: 2,
            packets_per_frame: 0,
            stream: 77,
            first: 0,
            slot: 4096,
            credit_address: 0,
            credit_rkey: 0,
        };
        let mut bytes = hello.encode();
        bytes.resize(MAX_HELLO, 0);
        assert_eq!(stream_and_rail(&bytes, 2), Ok((77, 1)));
        assert!(
            stream_and_rail(&bytes, 3)
                .unwrap_err()
                .contains("the same number of NICs")
        );
        assert!(stream_and_rail(&[0; MAX_HELLO], 2).is_err());
    }

    /// Without librdmacm or the rdma_cm device, the error must contain an explanation.
    #[test]
    fn missing_library_is_reported() {
        let address = "127.0.0.1:0".parse().unwrap();
        match listener(address) {
            Ok(_) => println!("this host has rdma_cm, so there is no error to check"),
            Err(error) => assert!(error.to_string().contains("rdma_cm"), "{error}"),
        }
    }
}
