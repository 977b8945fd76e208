//! Wrappers for the identifiers and events of rdma_cm.

use super::context;
use super::errno::{Call, last, refused};
use super::ffi::{self as ib, rdma_cm_event_type as is};
use super::modify::{Transition, cm_retries};
use crate::verbs::VerbsError;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// The type of an rdma_cm event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The peer's address was resolved, which selected the local NIC.
    Address,
    /// The route to the peer was resolved.
    Route,
    /// A peer requests a connection; the event carries the new identifier.
    Request,
    /// The listener has accepted the request.
    Response,
    /// Both sides are connected.
    Established,
    /// The listener has rejected the request.
    Rejected,
    /// The peer closed the connection or is no longer available.
    Disconnected,
    /// The NIC was removed.
    Removed,
    /// The operation failed; the event's status contains the errno.
    Failed,
    /// An event that daq ignores.
    Other,
}

/// Converts a value of `enum rdma_cm_event_type`.
const fn kind(event: is::Type) -> EventKind {
    match event {
        is::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::Address,
        is::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::Route,
        is::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::Request,
        is::RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::Response,
        is::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
        is::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
        is::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        is::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::Removed,
        is::RDMA_CM_EVENT_ADDR_ERROR
        | is::RDMA_CM_EVENT_ROUTE_ERROR
        | is::RDMA_CM_EVENT_CONNECT_ERROR
        | is::RDMA_CM_EVENT_UNREACHABLE => EventKind::Failed,
        _ => EventKind::Other,
    }
}

/// An event. Its contents were copied, and the original was acknowledged.
pub(crate) struct Event {
    /// The type of the event.
    pub kind: EventKind,
    /// The address of the event's identifier ([`Id::address`]); for a request, the address of the listener's
    /// identifier.
    pub of: usize,
    /// A negative errno, or the reason number of a rejection.
    pub status: i32,
    /// Private data from the peer, padded with zeros.
    pub private: Vec<u8>,
    /// The identifier of the requested connection; only set for a request.
    pub request: Option<Id>,
}

/// An event channel.
pub(crate) struct Events {
    channel: NonNull<ib::rdma_event_channel>,
}

// SAFETY: librdmacm allows calls on a channel from any thread.
unsafe impl Send for Events {}
// SAFETY: librdmacm allows calls from any thread, and the pointer does not change.
unsafe impl Sync for Events {}

/// Creates the error of a failed rdma_cm call.
fn error(call: impl Into<String>, errno: i32) -> VerbsError {
    refused("rdma_cm", Call::Manager, call, errno)
}

fn checked(answer: c_int, call: impl Into<String>) -> Result<(), VerbsError> {
    if answer == 0 {
        Ok(())
    } else {
        Err(error(call, last()))
    }
}

impl Events {
    /// Creates a non-blocking channel.
    pub(crate) fn new() -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the call has no arguments and no preconditions.
        let channel = unsafe { ib::rdma_create_event_channel() };
        let channel =
            NonNull::new(channel).ok_or_else(|| error("rdma_create_event_channel", last()))?;
        let parts = Self { channel };
        context::nonblocking(parts.fd())
            .map_err(|errno| error("fcntl of the event channel", errno))?;
        Ok(Arc::new(parts))
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel exists as long as `self`, and its descriptor does not change.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// Waits until an event may be available or `limit` has passed.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), VerbsError> {
        context::wait(self.fd(), limit)
            .map(drop)
            .map_err(|errno| error("poll of the event channel", errno))
    }

    /// Returns the next event. Never blocks.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Event>, VerbsError> {
        let mut event = null_mut();
        // SAFETY: the channel exists and does not block; the pointer is valid during the call.
        if unsafe { ib::rdma_get_cm_event(self.channel.as_ptr(), &raw mut event) } != 0 {
            return match last() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(error("rdma_get_cm_event", errno)),
            };
        }
        // SAFETY: the call has returned an event, which is valid until it is acknowledged below.
        let given = unsafe { &*event };
        let kind = kind(given.event);
        // SAFETY: identifiers are created only for the port space TCP (`Id::new`), whose events use this field of the
        // union.
        let sent = unsafe { given.param.conn };
        let private = if sent.private_data.is_null() {
            Vec::new()
        } else {
            let length = usize::from(sent.private_data_len);
            // SAFETY: the library guarantees that the event contains this number of private bytes.
            unsafe { std::slice::from_raw_parts(sent.private_data.cast::<u8>(), length) }.to_vec()
        };
        let is_request = kind == EventKind::Request;
        let copied = Event {
            kind,
            of: if is_request {
                given.listen_id
            } else {
                given.id
            }
            .addr(),
            status: given.status,
            private,
            request: NonNull::new(given.id).filter(|_| is_request).map(|id| Id {
                id,
                events: Arc::clone(self),
            }),
        };
        // SAFETY: the event is acknowledged exactly once, and no reference to it remains.
        unsafe { ib::rdma_ack_cm_event(event) };
        Ok(Some(copied))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: every identifier keeps the channel alive, so none exists any more. The channel is destroyed only
        // here.
        unsafe { ib::rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}

/// An rdma_cm identifier: a connection, a connection attempt or a listener.
pub(crate) struct Id {
    id: NonNull<ib::rdma_cm_id>,
    /// Must be dropped after the identifier is destroyed.
    events: Arc<Events>,
}

// SAFETY: librdmacm allows calls on an identifier from any thread, and only the owner of this value uses it.
unsafe impl Send for Id {}

impl Id {
    /// Creates an identifier.
    pub(crate) fn new(events: &Arc<Events>) -> Result<Self, VerbsError> {
        let mut id = null_mut();
        // SAFETY: the channel exists as long as `events`; the pointer is valid during the call.
        let answer = unsafe {
            ib::rdma_create_id(
                events.channel.as_ptr(),
                &raw mut id,
                null_mut(),
                ib::rdma_port_space::RDMA_PS_TCP,
            )
        };
        match NonNull::new(id) {
            Some(id) if answer == 0 => Ok(Self {
                id,
                events: Arc::clone(events),
            }),
            _ => Err(error("rdma_create_id", last())),
        }
    }

    /// Returns the address of the identifier. Events contain this address to name the identifier.
    pub(crate) fn address(&self) -> usize {
        self.id.as_ptr().addr()
    }

    /// Returns the event channel of the identifier.
    pub(crate) const fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Listens at `address` with a queue of at most `waiting` requests.
    pub(crate) fn listen(&self, address: SocketAddr, waiting: c_int) -> Result<(), VerbsError> {
        let mut at = SockAddr::new(address);
        // SAFETY: the identifier exists; the address is valid during the call, which copies it.
        let answer = unsafe { ib::rdma_bind_addr(self.id.as_ptr(), at.pointer()) };
        checked(answer, format!("rdma_bind_addr {address}"))?;
        // SAFETY: the identifier exists.
        let answer = unsafe { ib::rdma_listen(self.id.as_ptr(), waiting) };
        checked(answer, format!("rdma_listen {address}"))
    }

    /// Selects the NIC for the path from `source`, if given, to `address`; completes with [`EventKind::Address`].
    pub(crate) fn resolve(
        &self,
        source: Option<IpAddr>,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<(), VerbsError> {
        let mut from = source.map(|ip| SockAddr::new(SocketAddr::new(ip, 0)));
        let mut to = SockAddr::new(address);
        // SAFETY: the identifier exists; the addresses are valid during the call, which copies them.
        let answer = unsafe {
            ib::rdma_resolve_addr(
                self.id.as_ptr(),
                from.as_mut().map_or(null_mut(), SockAddr::pointer),
                to.pointer(),
                milliseconds(limit),
            )
        };
        let source = source.map_or_else(String::new, |ip| format!(" from {ip}"));
        checked(answer, format!("rdma_resolve_addr {address}{source}"))
    }

    /// Resolves the route to the peer; completes with [`EventKind::Route`].
    pub(crate) fn route(&self, limit: Duration) -> Result<(), VerbsError> {
        // SAFETY: the identifier exists.
        let answer = unsafe { ib::rdma_resolve_route(self.id.as_ptr(), milliseconds(limit)) };
        checked(answer, "rdma_resolve_route")
    }

    /// Requests a connection for the queue pair `number`; completes with [`EventKind::Response`] or a rejection.
    pub(crate) fn connect(&self, number: u32, greeting: &[u8]) -> Result<(), VerbsError> {
        let mut attributes_ = attributes_(number, greeting);
        // SAFETY: the identifier exists; the parameters and the greeting are valid during the call, which copies them.
        let answer = unsafe { ib::rdma_connect(self.id.as_ptr(), &raw mut attributes_) };
        checked(answer, "rdma_connect")
    }

    /// Confirms to the listener that this side is ready; called after a response.
    pub(crate) fn establish(&self) -> Result<(), VerbsError> {
        // SAFETY: the identifier exists.
        let answer = unsafe { ib::rdma_establish(self.id.as_ptr()) };
        checked(answer, "rdma_establish")
    }

    /// Accepts a request with the queue pair `number`; completes with [`EventKind::Established`].
    pub(crate) fn accept(&self, number: u32, greeting: &[u8]) -> Result<(), VerbsError> {
        let mut attributes_ = attributes_(number, greeting);
        // SAFETY: the identifier exists; the parameters and the greeting are valid during the call, which copies them.
        let answer = unsafe { ib::rdma_accept(self.id.as_ptr(), &raw mut attributes_) };
        checked(answer, "rdma_accept")
    }

    /// Rejects a request, with a reason of at most 148 bytes.
    pub(crate) fn reject(&self, why: &[u8]) -> Result<(), VerbsError> {
        let length = u8::try_from(why.len()).unwrap_or(0);
        // SAFETY: the identifier exists; the bytes are valid during the call, which copies them.
        let answer = unsafe { ib::rdma_reject(self.id.as_ptr(), why.as_ptr().cast(), length) };
        checked(answer, "rdma_reject")
    }

    /// Disconnects and notifies the peer.
    pub(crate) fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: the identifier exists.
        let answer = unsafe { ib::rdma_disconnect(self.id.as_ptr()) };
        checked(answer, "rdma_disconnect")
    }

    /// Returns the name and the port of the selected NIC; `None` until the NIC is known.
    pub(crate) fn card(&self) -> Option<(String, u8)> {
        // SAFETY: the identifier exists and is used only by this thread; its context belongs to the library and stays
        // open.
        let (context, port) = unsafe { ((*self.id.as_ptr()).verbs, (*self.id.as_ptr()).port_num) };
        let context = NonNull::new(context)?;
        // SAFETY: the context is open, so its device pointer is valid.
        let name = unsafe { ib::ibv_get_device_name((*context.as_ptr()).device) };
        if name.is_null() {
            return None;
        }
        // SAFETY: the library's names are NUL-terminated and valid as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        Some((name.to_string_lossy().into_owned(), port))
    }

    /// Returns the peer's address; `None` for a listener.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists; this field covers the whole union of addresses, which is zeroed or filled.
        let storage = unsafe { (*self.id.as_ptr()).route.addr.__bindgen_anon_2.dst_storage };
        SockAddr(storage).address()
    }

    /// Returns the local address.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists; this field covers the whole union of addresses, which is zeroed or filled.
        let storage = unsafe { (*self.id.as_ptr()).route.addr.__bindgen_anon_1.src_storage };
        SockAddr(storage).address()
    }

    /// Returns the transitions to ready-to-receive and ready-to-send for the queue pair.
    pub(crate) fn transitions(&self) -> Result<(Transition, Transition), VerbsError> {
        let step = |state: ib::ibv_qp_state::Type| {
            // SAFETY: the structure consists only of integers, for which zero is a valid value.
            let mut attributes: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
            attributes.qp_state = state;
            let mut mask = 0;
            // SAFETY: the identifier exists; the structure and the mask are valid during the call.
            let answer = unsafe {
                ib::rdma_init_qp_attr(self.id.as_ptr(), &raw mut attributes, &raw mut mask)
            };
            checked(answer, "rdma_init_qp_attr")?;
            Ok(Transition { attributes, mask })
        };
        Ok((
            step(ib::ibv_qp_state::IBV_QPS_RTR)?,
            step(ib::ibv_qp_state::IBV_QPS_RTS)?,
        ))
    }

    /// Returns the identifier with `events` as its event channel.
    pub(crate) fn migrated(self, events: &Arc<Events>) -> Result<Self, VerbsError> {
        // SAFETY: both exist. All received events were acknowledged; otherwise the call would block.
        let answer = unsafe { ib::rdma_migrate_id(self.id.as_ptr(), events.channel.as_ptr()) };
        checked(answer, "rdma_migrate_id")?;
        let id = self.id;
        // The new value takes the raw identifier. The old channel must be released only after the new value holds its
        // own.
        let mut old = ManuallyDrop::new(self);
        let migrated = Self {
            id,
            events: Arc::clone(events),
        };
        // SAFETY: `old` is neither used nor dropped afterwards.
        unsafe { std::ptr::drop_in_place(&raw mut old.events) };
        Ok(migrated)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY:
        // - The library created the identifier, and it is destroyed only here.
        // - All received events were acknowledged; Linux drops the others.
        //
        // This closes a connection and rejects a request.
        let answer = unsafe { ib::rdma_destroy_id(self.id.as_ptr()) };
        if answer != 0 {
            tracing::warn!("rdma_destroy_id: {}", std::io::Error::last_os_error());
        }
    }
}

/// Returns the connection parameters.
fn attributes_(number: u32, greeting: &[u8]) -> ib::rdma_conn_param {
    let (retry_count, rnr_retry_count) = cm_retries();
    ib::rdma_conn_param {
        private_data: greeting.as_ptr().cast::<c_void>(),
        private_data_len: u8::try_from(greeting.len()).unwrap_or(0),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count,
        rnr_retry_count,
        srq: 0,
        qp_num: number,
    }
}

fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis())
        .unwrap_or(c_int::MAX)
        .max(1)
}

/// An address in the format of system calls.
struct SockAddr(libc::sockaddr_storage);

impl SockAddr {
    fn new(address: SocketAddr) -> Self {
        // SAFETY: the structure consists only of integers, for which zero is a valid value.
        let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let at = (&raw mut storage).cast::<u8>();
        match address {
            SocketAddr::V4(v4) => {
                let address = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*v4.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large enough and aligned for every address type.
                unsafe { at.cast::<libc::sockaddr_in>().write_unaligned(address) };
            }
            SocketAddr::V6(v6) => {
                let address = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: the storage is large enough and aligned for every address type.
                unsafe { at.cast::<libc::sockaddr_in6>().write_unaligned(address) };
            }
        }
        Self(storage)
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }

    fn address(&self) -> Option<SocketAddr> {
        let at = (&raw const self.0).cast::<u8>();
        match c_int::from(self.0.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is large enough for every address type, and every bit pattern is valid for these
                // integers.
                let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the storage is large enough for every address type, and every bit pattern is valid for these
                // integers.
                let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
                Some(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(v6.sin6_addr.s6_addr),
                    u16::from_be(v6.sin6_port),
                    v6.sin6_flowinfo,
                    v6.sin6_scope_id,
                )))
            }
            _ => None,
        }
    }
}

/// Converts an address family to the type of its field in an address.
fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.0.0.1:4791", "[2001:db8::7]:18515", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SockAddr::new(address).address(), Some(address));
        }
        // SAFETY: the structure consists only of integers, for which zero is a valid value.
        let none = SockAddr(unsafe { MaybeUninit::zeroed().assume_init() });
        assert_eq!(none.address(), None);
    }

    #[test]
    fn every_cm_event_is_mapped() {
        let kinds: Vec<EventKind> = (0..17).map(kind).collect();
        use EventKind::{
            Address, Disconnected, Established, Failed, Other, Rejected, Removed, Request,
            Response, Route,
        };
        let expected = [
            Address,
            Failed,
            Route,
            Failed,
            Request,
            Response,
            Failed,
            Failed,
            Rejected,
            Established,
            Disconnected,
            Removed,
            Other,
            Other,
            Other,
            Other,
            Other,
        ];
        assert_eq!(kinds, expected);
    }
}
