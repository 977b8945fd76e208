//! A card, opened: its context, its protection domain, and what happens to it.

use super::errno::{Call, found, last, refused};
use super::ffi as ib;
use crate::verbs::{NicEvent, VerbsError};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of queued events; older ones are dropped.
const MAX_EVENTS: usize = 64;

/// The list of devices that libibverbs gives, freed at the end.
struct DeviceList {
    first: NonNull<*mut ib::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: the call fills `count`, which lives through it.
        let first = unsafe { ib::ibv_get_device_list(&raw mut count) };
        match NonNull::new(first) {
            Some(first) => Ok(Self {
                first,
                count: usize::try_from(count).unwrap_or(0),
            }),
            None => Err(refused(
                "RDMA",
                Call::DeviceList,
                "ibv_get_device_list",
                last(),
            )),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (NonNull<ib::ibv_device>, String)> {
        (0..self.count).filter_map(|i| {
            // SAFETY: the library's array has `count` entries and lives until `self` is dropped.
            let device = NonNull::new(unsafe { *self.first.as_ptr().add(i) })?;
            // SAFETY: the device is one of the list's, which lives.
            let name = unsafe { ib::ibv_get_device_name(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the library's names end with a zero and live as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed this once; devices that were opened stay open.
        unsafe { ib::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// The names of the cards that libibverbs has a driver for.
pub fn names() -> Result<Vec<String>, VerbsError> {
    Ok(DeviceList::new()?.iter().map(|(_, name)| name).collect())
}

/// An opened card with a protection domain of its own.
pub struct Context {
    name: String,
    raw: NonNull<ib::ibv_context>,
    domain: NonNull<ib::ibv_pd>,
    events: Mutex<Events>,
}

/// What has happened, and whom it concerns.
#[derive(Default)]
struct Events {
    pending: VecDeque<NicEvent>,
    /// Whether a completion queue has failed, by its address.
    queues: BTreeMap<usize, Arc<AtomicBool>>,
}

// SAFETY: libibverbs allows every call on a context, a domain and what is made from them from any thread; what must not be
// used by two at a time (a queue) is behind `&mut` elsewhere. The pointers do not change until drop.
unsafe impl Send for Context {}
// SAFETY: as above; `events` is behind a mutex.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the card `name`.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let list = DeviceList::new()?;
        let Some((device, _)) = list.iter().find(|(_, found)| found == name) else {
            let names: Vec<String> = list.iter().map(|(_, name)| name).collect();
            return Err(found(
                name,
                "opening it",
                if names.is_empty() {
                    "libibverbs found no RDMA NIC on this host: check `rdma link`; rdma-core contains the user-space drivers (Debian: ibverbs-providers)"
                        .to_owned()
                } else {
                    format!("there is no such NIC; available: {}", names.join(", "))
                },
            ));
        };
        // SAFETY: the device is one of a list that lives.
        let context = unsafe { ib::ibv_open_device(device.as_ptr()) };
        let Some(context) = NonNull::new(context) else {
            return Err(refused(name, Call::Open, "ibv_open_device", last()));
        };
        // SAFETY: the context was just opened.
        let domain = unsafe { ib::ibv_alloc_pd(context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let errno = last();
            // SAFETY: the context was just opened, nothing was created from it, and there is no other reference.
            unsafe { ib::ibv_close_device(context.as_ptr()) };
            return Err(refused(name, Call::Make, "ibv_alloc_pd", errno));
        };
        let opened = Self {
            name: name.to_owned(),
            raw: context,
            domain,
            events: Mutex::new(Events::default()),
        };
        // SAFETY: the context is open, and its descriptor is the library's, which no one here closes.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        nonblocking(fd).map_err(|errno| refused(name, Call::Open, "fcntl of its events", errno))?;
        Ok(Arc::new(opened))
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library's context; open as long as `self` lives.
    pub const fn raw(&self) -> *mut ib::ibv_context {
        self.raw.as_ptr()
    }

    /// The protection domain; there as long as `self` lives.
    pub const fn domain(&self) -> *mut ib::ibv_pd {
        self.domain.as_ptr()
    }

    /// What the card can do.
    pub fn attributes(&self) -> Result<ib::ibv_device_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ib::ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the structure lives through the call.
        let answer = unsafe { ib::ibv_query_device(self.raw(), attributes.as_mut_ptr()) };
        self.checked(answer, "ibv_query_device")?;
        // SAFETY: it was zeroed, which is a value of all of its fields, and then filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The state of its port `number`.
    pub fn port(&self, number: u8) -> Result<ib::ibv_port_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ib::ibv_port_attr>::zeroed();
        // SAFETY: as for `attributes`.
        let answer = unsafe { ib::query_port(self.raw(), number, attributes.as_mut_ptr()) };
        self.checked(answer, format!("ibv_query_port {number}"))?;
        // SAFETY: as for `attributes`.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Entry `index` of the table of addresses of port `number`.
    pub fn gid(&self, number: u8, index: u8) -> Result<[u8; 16], VerbsError> {
        let mut gid = ib::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the union lives through the call.
        let answer = unsafe { ib::ibv_query_gid(self.raw(), number, index.into(), &raw mut gid) };
        if answer != 0 {
            let said = format!("ibv_query_gid {index} of port {number}");
            return Err(refused(&self.name, Call::Query, said, last()));
        }
        // SAFETY: every bit pattern is a value of the array.
        Ok(unsafe { gid.raw })
    }

    fn checked(&self, answer: c_int, said: impl Into<String>) -> Result<(), VerbsError> {
        if answer == 0 {
            return Ok(());
        }
        // Some drivers answer -1 and leave errno, others answer with it.
        let errno = if answer > 0 { answer } else { last() };
        Err(refused(&self.name, Call::Query, said, errno))
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `failed` set when the completion queue at `address` fails.
    pub fn register_cq(&self, address: usize, failed: Arc<AtomicBool>) {
        self.lock().queues.insert(address, failed);
    }

    /// Ends [`register_cq`](Self::register_cq); to be called before the queue is destroyed, for another may get its address.
    pub fn unregister_cq(&self, address: usize) {
        self.lock().queues.remove(&address);
    }

    /// Returns the oldest queued event without waiting.
    pub fn event(&self) -> Option<NicEvent> {
        let mut events = self.lock();
        self.collect(&mut events);
        events.pending.pop_front()
    }

    /// Collects what has happened, so that queues learn of it. Another thread that does so already is left alone.
    pub fn poll_events(&self) {
        if let Ok(mut events) = self.events.try_lock() {
            self.collect(&mut events);
        }
    }

    fn collect(&self, events: &mut Events) {
        loop {
            let mut event = MaybeUninit::<ib::ibv_async_event>::zeroed();
            // SAFETY: the context is open, its descriptor does not block, and the structure lives through the call.
            if unsafe { ib::ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
                return;
            }
            // SAFETY: the call has filled the structure, of whose integer every pattern is a value.
            let kind = unsafe { (*event.as_ptr()).event_type };
            if kind == CQ_ERR {
                // SAFETY: events of this kind carry the completion queue; the pointer is compared, never followed.
                let address = unsafe { (*event.as_ptr()).element.cq }.addr();
                if let Some(failed) = events.queues.get(&address) {
                    failed.store(true, Ordering::Release);
                }
            }
            // SAFETY: the event was got by ibv_get_async_event and is acknowledged this once. Destroying what it is of
            // waits for that, so its pointer still stands for what it was got for.
            unsafe { ib::ibv_ack_async_event(event.as_mut_ptr()) };
            if events.pending.len() == MAX_EVENTS {
                events.pending.pop_front();
            }
            events.pending.push_back(named(kind));
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all that is made from the domain and the context keeps `self`, so nothing is left of it; each is ended
        // this once, the domain first.
        let (domain, context) = unsafe {
            (
                ib::ibv_dealloc_pd(self.domain.as_ptr()),
                ib::ibv_close_device(self.raw.as_ptr()),
            )
        };
        if domain != 0 || context != 0 {
            tracing::warn!(
                "{}: closing it: ibv_dealloc_pd answers {domain}, ibv_close_device {context}",
                self.name
            );
        }
    }
}

/// `IBV_EVENT_CQ_ERR`.
const CQ_ERR: u32 = ib::ibv_event_type::IBV_EVENT_CQ_ERR;

/// The event of that number of `enum ibv_event_type`.
fn named(kind: u32) -> NicEvent {
    use ib::ibv_event_type as is;
    const FATAL: u32 = is::IBV_EVENT_DEVICE_FATAL;
    const UP: u32 = is::IBV_EVENT_PORT_ACTIVE;
    const DOWN: u32 = is::IBV_EVENT_PORT_ERR;
    const NAMES: [&str; 20] = [
        "CQ_ERR",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "COMM_EST",
        "SQ_DRAINED",
        "PATH_MIG",
        "PATH_MIG_ERR",
        "DEVICE_FATAL",
        "PORT_ACTIVE",
        "PORT_ERR",
        "LID_CHANGE",
        "PKEY_CHANGE",
        "SM_CHANGE",
        "SRQ_ERR",
        "SRQ_LIMIT_REACHED",
        "QP_LAST_WQE_REACHED",
        "CLIENT_REREGISTER",
        "GID_CHANGE",
        "WQ_FATAL",
    ];
    match kind {
        CQ_ERR => NicEvent::CompletionOverrun,
        FATAL => NicEvent::Fatal,
        UP => NicEvent::PortUp,
        DOWN => NicEvent::PortDown,
        other => NicEvent::Other(
            NAMES
                .get(other as usize)
                .map_or_else(|| format!("event {other}"), |name| (*name).to_owned()),
        ),
    }
}

/// Makes reads of `fd`, which is open, return at once.
pub fn nonblocking(fd: c_int) -> Result<(), i32> {
    // SAFETY: the call takes no memory of ours, and a number that is no descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(last());
    }
    Ok(())
}

/// Waits until `fd` can be read or `limit` has passed; a signal ends it early. Times beyond 24 days are that.
pub fn wait(fd: c_int, limit: std::time::Duration) -> Result<bool, i32> {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = c_int::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
    // SAFETY: the structure is one, lives through the call, and its number is only looked at.
    let ready = unsafe { libc::poll(&raw mut one, 1, ms) };
    match ready {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match last() {
            libc::EINTR => Ok(false),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_async_event_is_named() {
        assert_eq!(named(0), NicEvent::CompletionOverrun);
        assert_eq!(named(8), NicEvent::Fatal);
        assert_eq!(named(9), NicEvent::PortUp);
        assert_eq!(named(10), NicEvent::PortDown);
        assert_eq!(named(18), NicEvent::Other("GID_CHANGE".to_owned()));
        assert_eq!(named(77), NicEvent::Other("event 77".to_owned()));
    }
}
