//! The transport of a handshake over rdma_cm: one connection per rail, with greetings as private data.
//!
//! ```text
//!   connector ── request: greeting, queue pair ──▶ listener     for every rail, before the first answer
//!           ◀── response: greeting, queue pair ──         the listener's queue pair is already connected
//!           ── ready ──▶                                  the connector's queue pair is connected too
//! ```
//! rdma_cm selects the NIC by the addresses. If the configuration names a different NIC, the connection is rejected.
//! rdma_cm pads private data with zeros.

use super::access::Allows;
use super::exchange::{Frame, Rails};
use super::handshake::{Arrival, Connector, Listener, Port, Transport};
use super::{AbortHandle, ConnectError, Disconnect, MAX_HELLO, MAX_OFFER, PeerMonitor, sanitized};
use crate::sys::VerbsQueuePair;
use crate::sys::cm::{Event, EventKind, Events, Id};
use crate::sys::device;
use crate::verbs::{self, Endpoint, Nic, QueuePair, QueuePairOptions, Service, VerbsError};
use crate::wire::Hello;
use daq_core::units::counted;
use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for each step of the handshake after the peer's first message.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting thread checks whether its operation was aborted.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of requests that rdma_cm queues until the listener accepts them.
const BACKLOG: i32 = 64;
/// Maximum number of pending requests from connectors that have not yet sent requests for all rails.
const MAX_INCOMPLETE: usize = 64;
/// Maximum size of a rejection reason in bytes, set by rdma_cm.
const MAX_REFUSAL: usize = 148;

/// Returns a connector to the listener at `addresses`, which must be addresses of the listener's NICs. Rail `i` uses
/// address number `i` modulo the number of addresses. A listener with several NICs needs one address per NIC.
///
/// # Panics
/// If there is no address.
pub fn connector(addresses: Vec<SocketAddr>) -> Connector {
    assert!(!addresses.is_empty(), "the listener needs an address");
    Connector::new(move |nics, end| Ok(Box::new(CmTransport::open(&addresses, nics, end)?)))
}

/// Creates a listener at `address`; an unspecified address listens on all NICs.
///
/// # Errors
/// If the address cannot be bound, or librdmacm is absent.
pub fn listener(address: SocketAddr) -> Result<Listener, ConnectError> {
    let listener = Id::new(&Events::new()?)?;
    listener.listen(address, BACKLOG)?;
    let address = listener.local_address().unwrap_or(address);
    let port = CmPort {
        listener,
        incomplete: RailGroups(Vec::new()),
        allows: None,
    };
    Ok(Listener::new(port, address, STEP_TIMEOUT))
}

fn nic_error(nic: &str, why: impl Into<String>) -> VerbsError {
    VerbsError {
        nic: nic.to_owned(),
        call: "rdma_cm".to_owned(),
        errno: 0,
        why: why.into(),
    }
}

fn id_error(id: &Id, why: impl Into<String>) -> VerbsError {
    let (name, _) = id.card().unwrap_or_default();
    nic_error(&name, why)
}

/// Returns an error if rdma_cm has selected a NIC other than the configured NIC.
fn check(id: &Id, nic: &dyn Nic) -> Result<(), VerbsError> {
    let port = nic.port()?.number;
    match id.card() {
        Some((name, number)) if name == nic.name() && number == port => Ok(()),
        Some((name, number)) => Err(nic_error(
            nic.name(),
            format!(
                "the address is reached through {name} port {number}, but `nics` names {} port {port}: use an address of that NIC, or name the other NIC in `nics`",
                nic.name()
            ),
        )),
        None => Err(nic_error(
            nic.name(),
            "the address is not reachable through an RDMA NIC",
        )),
    }
}

/// Converts an unexpected event into an error.
fn failed(event: &Event, action: &'static str) -> ConnectError {
    match event.kind {
        EventKind::Rejected => ConnectError::Refused {
            why: rejection_reason(event.status, &event.private),
        },
        EventKind::Failed if event.status < 0 => ConnectError::network(
            action,
            io::Error::from_raw_os_error(event.status.saturating_neg()),
        ),
        EventKind::Removed => {
            ConnectError::network(action, io::Error::other("the NIC was removed"))
        }
        _ => ConnectError::network(action, io::ErrorKind::ConnectionAborted.into()),
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

/// Returns the next event; fails if no event arrives before `end`, or if `is_aborted` becomes true.
fn next(
    events: &Arc<Events>,
    is_aborted: &AtomicBool,
    end: Instant,
    action: &'static str,
) -> Result<Event, ConnectError> {
    loop {
        let failed = |kind: io::ErrorKind| ConnectError::network(action, kind.into());
        if is_aborted.load(Ordering::Acquire) {
            return Err(failed(io::ErrorKind::Interrupted));
        }
        if let Some(event) = events.next()? {
            return Ok(event);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(io::ErrorKind::TimedOut));
        }
        events.wait(left.min(POLL_INTERVAL))?;
    }
}

/// Resolves `address` on a new connection from `nic`.
fn resolve(
    events: &Arc<Events>,
    address: SocketAddr,
    nic: &dyn Nic,
    end: Instant,
) -> Result<Id, ConnectError> {
    let left = || end.saturating_duration_since(Instant::now());
    let id = Id::new(events)?;
    let wait = |kind, action| {
        loop {
            let event = next(events, &AtomicBool::new(false), end, action)?;
            match event.kind {
                found if found == kind && event.of == id.address() => return Ok(()),
                EventKind::Other => {}
                _ => return Err(failed(&event, action)),
            }
        }
    };
    // Binds to the NIC's own address, so that rdma_cm selects exactly this NIC.
    let own = device::ip(nic.port()?.gid).filter(|ip| ip.is_ipv4() == address.is_ipv4());
    id.resolve(own, address, left())?;
    wait(EventKind::Address, "resolving the peer's address")?;
    id.route(left())?;
    wait(EventKind::Route, "resolving the route to the peer")?;
    Ok(id)
}

/// The connections of all rails to one peer.
struct CmTransport {
    ids: Vec<Id>,
    events: Arc<Events>,
    peer: String,
    is_listener: bool,
    is_aborted: Arc<AtomicBool>,
}

impl CmTransport {
    fn open(
        addresses: &[SocketAddr],
        nics: &[Arc<dyn Nic>],
        end: Instant,
    ) -> Result<Self, ConnectError> {
        let events = Events::new()?;
        let rails = nics.iter().zip(addresses.iter().cycle());
        let ids = rails.map(|(nic, address)| resolve(&events, *address, &**nic, end));
        Ok(Self {
            ids: ids.collect::<Result<_, _>>()?,
            events,
            peer: addresses[0].to_string(),
            is_listener: false,
            is_aborted: Arc::default(),
        })
    }

    /// Returns the transport of a connector's requests, and the connector's greetings.
    fn accept(peer: String, requests: Vec<Request>) -> Result<(Self, Rails), ConnectError> {
        let events = Events::new()?;
        let mut ids = Vec::with_capacity(requests.len());
        let mut greetings = Vec::with_capacity(requests.len());
        for request in requests {
            ids.push(request.id.migrated(&events)?);
            greetings.push(request.greeting);
        }
        let transport = Self {
            ids,
            events,
            peer,
            is_listener: true,
            is_aborted: Arc::default(),
        };
        Ok((transport, rails(greetings)))
    }

    /// Calls `send` with the connection, the number of the queue pair and the greeting of each rail.
    fn send_greetings(
        &self,
        rails: &Rails,
        max: usize,
        send: fn(&Id, u32, &[u8]) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let greetings = rails.endpoints.iter().zip(&rails.greetings);
        for (id, (endpoint, greeting)) in self.ids.iter().zip(greetings) {
            let length = greeting.len();
            if length > max {
                let why =
                    format!("a greeting has {length} bytes, but rdma_cm can carry at most {max}");
                return Err(id_error(id, why));
            }
            send(id, endpoint.number, greeting)?;
        }
        Ok(())
    }

    /// Calls `send` for every rail, even if a call fails. Returns the first error.
    fn each(&self, send: impl Fn(&Id) -> Result<(), VerbsError>) -> Result<(), VerbsError> {
        let sent: Vec<_> = self.ids.iter().map(send).collect();
        sent.into_iter().collect()
    }
}

/// Returns the description of a peer's rails. rdma_cm itself transfers the endpoints, and supports only `rc`.
fn rails(greetings: Vec<Vec<u8>>) -> Rails {
    Rails {
        service: Service::Rc,
        transport: verbs::Transport::Rdma,
        endpoints: vec![Endpoint::default(); greetings.len()],
        greetings,
    }
}

impl Transport for CmTransport {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn send(&mut self, message: &Frame, _: Instant) -> Result<(), ConnectError> {
        match message {
            Frame::Hello(rails) => self.send_greetings(rails, MAX_HELLO, Id::connect)?,
            Frame::Answer(rails) => self.send_greetings(rails, MAX_OFFER, Id::accept)?,
            Frame::Refusal(why) => self.each(|id| id.reject(truncated(why)))?,
            Frame::Ready => self.each(Id::establish)?,
            Frame::Close(_) => self.each(Id::disconnect)?,
            // Only connections over TCP have this message.
            Frame::Join(_) => {}
        }
        Ok(())
    }

    fn receive(&mut self, end: Instant) -> Result<Frame, ConnectError> {
        let (expected, action) = if self.is_listener {
            (EventKind::Established, "waiting until the peer is ready")
        } else {
            (EventKind::Response, "waiting for an answer")
        };
        let mut greetings = vec![None; self.ids.len()];
        while greetings.iter().any(Option::is_none) {
            let event = next(&self.events, &self.is_aborted, end, action)?;
            let rail = self.ids.iter().position(|id| id.address() == event.of);
            match (event.kind, rail) {
                (kind, Some(rail)) if kind == expected => greetings[rail] = Some(event.private),
                (EventKind::Other, _) => {}
                _ => return Err(failed(&event, action)),
            }
        }
        Ok(if self.is_listener {
            Frame::Ready
        } else {
            Frame::Answer(rails(greetings.into_iter().flatten().collect()))
        })
    }

    /// Fails if rdma_cm has selected a different NIC.
    fn check(
        &self,
        rail: usize,
        nic: &dyn Nic,
        options: &QueuePairOptions,
    ) -> Result<(), VerbsError> {
        if options.service != Service::Rc {
            let name = options.service.name();
            return Err(nic_error(
                nic.name(),
                format!(
                    "rdma_cm supports only rc, not {name}: use connection = \"tcp\" on both hosts"
                ),
            ));
        }
        check(&self.ids[rail], nic)
    }

    /// Connects the queue pair with the parameters from rdma_cm.
    fn connect(
        &self,
        rail: usize,
        queue_pair: &mut dyn QueuePair,
        _: &Endpoint,
    ) -> Result<(), VerbsError> {
        let id = &self.ids[rail];
        let (receive, send) = id.transitions()?;
        let queue_pair: &mut dyn Any = queue_pair;
        match queue_pair.downcast_mut::<VerbsQueuePair>() {
            Some(queue_pair) => queue_pair.connect_with(receive, send),
            None => Err(id_error(id, "an emulated NIC must be connected by TCP")),
        }
    }

    fn abort_handle(&self) -> AbortHandle {
        let is_aborted = self.is_aborted.clone();
        Box::new(move || is_aborted.store(true, Ordering::Release))
    }

    fn monitor(self: Box<Self>) -> Box<dyn PeerMonitor> {
        Box::new(CmMonitor {
            transport: *self,
            disconnect: None,
        })
    }
}

/// A connector's request for one rail.
struct Request {
    id: Id,
    greeting: Vec<u8>,
}

impl Request {
    fn refuse(self, why: &str) {
        if let Err(error) = self.id.reject(truncated(why)) {
            tracing::debug!("{error}");
        }
    }
}

/// A request for one rail, and when it arrived.
struct RailRequest<T> {
    stream: u64,
    rail: usize,
    since: Instant,
    request: T,
}

/// Requests of connectors that have not yet sent requests for all rails. The stream number identifies the connector.
struct RailGroups<T>(Vec<RailRequest<T>>);

impl<T> RailGroups<T> {
    /// Adds a request. Returns all requests of the connector in the order of its rails, if they are complete. Fails if
    /// there are too many requests, and returns the request.
    fn add(&mut self, new: RailRequest<T>, rails: usize) -> Result<Option<Vec<T>>, T> {
        let stream = new.stream;
        // A repeated request replaces the earlier one, because its connector has started again.
        self.0
            .retain(|other| (other.stream, other.rail) != (stream, new.rail));
        // The limit is at least the number of rails of one connector.
        if self.0.len() >= rails.max(MAX_INCOMPLETE) {
            return Err(new.request);
        }
        self.0.push(new);
        if self.0.iter().filter(|one| one.stream == stream).count() < rails {
            return Ok(None);
        }
        let mut complete: Vec<_> = self.0.extract_if(.., |one| one.stream == stream).collect();
        complete.sort_by_key(|one| one.rail);
        Ok(Some(complete.into_iter().map(|one| one.request).collect()))
    }

    /// Removes the requests of connectors whose remaining rails are late.
    fn remove_late(&mut self, now: Instant) {
        self.0
            .retain(|one| now.saturating_duration_since(one.since) < STEP_TIMEOUT);
    }
}

/// Returns the stream number and the rail index of a greeting. Fails if the number of rails in the greeting is not
/// `rails`.
fn stream_and_rail(greeting: &[u8], rails: usize) -> Result<(u64, usize), String> {
    let hello = Hello::decode(greeting).map_err(|error| error.to_string())?;
    if usize::from(hello.rails) != rails {
        return Err(format!(
            "the peer has {}, but this host has {rails}: set the same number of NICs in `nics` on both hosts",
            counted(hello.rails, "queue pair")
        ));
    }
    Ok((hello.stream, hello.rail.into()))
}

/// Accepts connectors by rdma_cm.
struct CmPort {
    listener: Id,
    incomplete: RailGroups<Request>,
    /// Predicate for the addresses that may connect; `None` allows every address.
    allows: Option<Allows>,
}

impl CmPort {
    /// Accepts or rejects a request for a rail. Returns all requests of the connector once the requests of all its
    /// rails have arrived.
    fn begin(&mut self, request: Request, nics: &[Arc<dyn Nic>]) -> Option<Vec<Request>> {
        let peer = request.id.peer();
        let is_allowed = |allows: &Allows| peer.is_some_and(|peer| allows(peer));
        if !self.allows.as_ref().is_none_or(is_allowed) {
            request.refuse("connections from this address are not allowed");
            return None;
        }
        // With a single rail nothing has to be ordered, so every greeting is valid.
        let found = match nics {
            [_] => Ok((0, 0)),
            _ => stream_and_rail(&request.greeting, nics.len()),
        };
        let (stream, rail) = match found {
            Ok(found) => found,
            Err(why) => {
                request.refuse(&why);
                return None;
            }
        };
        if let Err(error) = check(&request.id, &*nics[rail]) {
            request.refuse(&format!("rail {rail}: {}", error.why));
            return None;
        }
        let request = RailRequest {
            stream,
            rail,
            since: Instant::now(),
            request,
        };
        self.incomplete
            .add(request, nics.len())
            .unwrap_or_else(|request| {
                request.refuse("too many incomplete connection attempts; try again");
                None
            })
    }

    /// Handles an event. Returns all requests of a connector once they are complete.
    fn handle(
        &mut self,
        event: Event,
        nics: &[Arc<dyn Nic>],
    ) -> Result<Option<Vec<Request>>, ConnectError> {
        if let Some(id) = event.request {
            let greeting = event.private;
            return Ok(self.begin(Request { id, greeting }, nics));
        }
        // Either a connector has stopped, and its request is dropped, or the listener's NIC was removed, which is an
        // error.
        self.incomplete
            .0
            .retain(|one| one.request.id.address() != event.of);
        if event.kind == EventKind::Removed {
            return Err(failed(&event, "listening"));
        }
        Ok(None)
    }
}

impl Port for CmPort {
    fn restrict(&mut self, allows: Allows) {
        self.allows = Some(allows);
    }

    fn next(&mut self, nics: &[Arc<dyn Nic>], end: Instant) -> Result<Arrival, ConnectError> {
        let events = Arc::clone(self.listener.events());
        loop {
            self.incomplete.remove_late(Instant::now());
            let left = end.saturating_duration_since(Instant::now());
            match events.next()? {
                Some(event) => {
                    if let Some(requests) = self.handle(event, nics)? {
                        let peer = requests.first().and_then(|request| request.id.peer());
                        let peer = peer.map_or("(unknown)".to_owned(), |peer| peer.to_string());
                        return Ok(match CmTransport::accept(peer.clone(), requests) {
                            Ok((transport, hello)) => {
                                Arrival::Connector(Box::new(transport), hello)
                            }
                            Err(error) => Arrival::Failed(peer, error),
                        });
                    }
                }
                None if !left.is_zero() => events.wait(left)?,
                None => {}
            }
            // Return even if peers keep being rejected, so that the caller can do its other work.
            if left.is_zero() {
                return Ok(Arrival::None);
            }
        }
    }
}

/// Detects that the peer of a link has disconnected.
struct CmMonitor {
    transport: CmTransport,
    disconnect: Option<Disconnect>,
}

impl PeerMonitor for CmMonitor {
    fn poll_disconnect(&mut self) -> Option<Disconnect> {
        if self.disconnect.is_none() {
            let why = match self.transport.events.next() {
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
            let final_frames = None;
            self.disconnect = why.map(|why| Disconnect { final_frames, why });
        }
        self.disconnect.clone()
    }

    fn close(&mut self, frames: u64) {
        if let Err(error) = self.transport.send(&Frame::Close(frames), Instant::now()) {
            tracing::debug!("{}: {error}", self.transport.peer);
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

    fn request(stream: u64, rail: usize) -> RailRequest<(u64, usize)> {
        RailRequest {
            stream,
            rail,
            since: Instant::now(),
            request: (stream, rail),
        }
    }

    #[test]
    fn incomplete_connectors_are_limited_and_dropped() {
        for (rails, max) in [(2, 64), (255, 255)] {
            let mut incomplete = RailGroups(Vec::new());
            for stream in 0..max {
                assert_eq!(incomplete.add(request(stream, 0), rails), Ok(None));
            }
            assert_eq!(incomplete.add(request(max, 0), rails), Err((max, 0)));
            // A repeated request replaces the earlier one.
            assert_eq!(incomplete.add(request(0, 0), rails), Ok(None));
            let start = incomplete.0[0].since;
            incomplete.remove_late(start + STEP_TIMEOUT / 2);
            assert_eq!(incomplete.0.len() as u64, max);
            incomplete.remove_late(Instant::now() + STEP_TIMEOUT);
            assert!(incomplete.0.is_empty());
        }
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
        let mut incomplete = RailGroups(Vec::new());
        for (stream, rail) in [(7, 1), (9, 0), (9, 2), (9, 2)] {
            assert_eq!(incomplete.add(request(stream, rail), 3), Ok(None));
        }
        let all = incomplete.add(request(9, 1), 3);
        assert_eq!(all, Ok(Some(vec![(9, 0), (9, 1), (9, 2)])));
        assert_eq!(incomplete.0.len(), 1);
        let pair = incomplete.add(request(7, 0), 2);
        assert_eq!(pair, Ok(Some(vec![(7, 0), (7, 1)])));
        let single = incomplete.add(request(1, 0), 1);
        assert_eq!(single, Ok(Some(vec![(1, 0)])));
    }

    #[test]
    fn greeting_identifies_rail_and_connector() {
        let hello = Hello {
            rail: 1,
            rails: 2,
            stream: 77,
            ..Hello::default()
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
