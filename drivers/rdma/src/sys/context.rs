//! An opened NIC: its context, its protection domain and its asynchronous events.

use super::errno::{Call, found, last, refused};
use super::ffi as ib;
use crate::verbs::{NicEvent, VerbsError};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of queued events; the oldest events are dropped.
const MAX_EVENTS: usize = 64;

/// The device list of libibverbs, freed on drop.
struct DeviceList {
    first: NonNull<*mut ib::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is valid during the call, which fills it.
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
            // SAFETY: the library's array has `count` entries and exists until `self` is dropped.
            let device = NonNull::new(unsafe { *self.first.as_ptr().add(i) })?;
            // SAFETY: the device is an entry of the list, which exists.
            let name = unsafe { ib::ibv_get_device_name(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the library's names are NUL-terminated and valid as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from `ibv_get_device_list` and is freed only here. Opened devices stay open.
        unsafe { ib::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// Returns the names of the NICs for which libibverbs has a driver.
pub(crate) fn names() -> Result<Vec<String>, VerbsError> {
    Ok(DeviceList::new()?.iter().map(|(_, name)| name).collect())
}

/// An opened NIC with its own protection domain.
pub(crate) struct Context {
    name: String,
    raw: NonNull<ib::ibv_context>,
    domain: NonNull<ib::ibv_pd>,
    events: Mutex<Events>,
}

/// Pending events, and the completion queues that must be notified of failures.
#[derive(Default)]
struct Events {
    pending: VecDeque<NicEvent>,
    /// For each completion queue, by its address: the flag that is set when the queue fails.
    queues: BTreeMap<usize, Arc<AtomicBool>>,
}

// SAFETY:
// - libibverbs allows calls on a context, a domain and the objects created from them from any thread.
// - Objects that only one thread at a time may use, such as a queue pair, require `&mut`.
// - The pointers do not change until drop.
unsafe impl Send for Context {}
// SAFETY: the conditions for `Send` apply, and a mutex protects `events`.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the NIC `name`.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let list = DeviceList::new()?;
        let Some((device, _)) = list.iter().find(|(_, found)| found == name) else {
            let names: Vec<String> = list.iter().map(|(_, name)| name).collect();
            return Err(found(
                name,
                "opening the NIC",
                if names.is_empty() {
                    "libibverbs found no RDMA NIC on this host: check `rdma link`; rdma-core contains the user-space drivers (Debian: ibverbs-providers)"
                        .to_owned()
                } else {
                    format!("there is no such NIC; available: {}", names.join(", "))
                },
            ));
        };
        // SAFETY: the device is an entry of a list that exists.
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
        // SAFETY: the context is open. Its descriptor belongs to the library, and this crate does not close it.
        let fd = unsafe { (*context.as_ptr()).async_fd };
        nonblocking(fd)
            .map_err(|errno| refused(name, Call::Open, "fcntl of the event descriptor", errno))?;
        Ok(Arc::new(opened))
    }

    /// Returns the NIC's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the library's context, which stays open as long as `self` exists.
    pub(crate) const fn raw(&self) -> *mut ib::ibv_context {
        self.raw.as_ptr()
    }

    /// Returns the protection domain, which exists as long as `self`.
    pub(crate) const fn domain(&self) -> *mut ib::ibv_pd {
        self.domain.as_ptr()
    }

    /// Returns the NIC's attributes.
    pub(crate) fn attributes(&self) -> Result<ib::ibv_device_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ib::ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the structure is valid during the call.
        let answer = unsafe { ib::ibv_query_device(self.raw(), attributes.as_mut_ptr()) };
        self.checked(answer, "ibv_query_device")?;
        // SAFETY: the structure was zeroed, which is valid for all its fields, and then filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns the state of port `number`.
    pub(crate) fn port(&self, number: u8) -> Result<ib::ibv_port_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ib::ibv_port_attr>::zeroed();
        // SAFETY: the context is open; the structure is valid during the call.
        let answer = unsafe { ib::query_port(self.raw(), number, attributes.as_mut_ptr()) };
        self.checked(answer, format!("ibv_query_port {number}"))?;
        // SAFETY: the structure was zeroed, which is valid for all its fields, and then filled.
        Ok(unsafe { attributes.assume_init() })
    }

    /// Returns entry `index` of the GID table of port `number`.
    pub(crate) fn gid(&self, number: u8, index: u8) -> Result<[u8; 16], VerbsError> {
        let mut gid = ib::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the union is valid during the call.
        let answer = unsafe { ib::ibv_query_gid(self.raw(), number, index.into(), &raw mut gid) };
        if answer != 0 {
            let call = format!("ibv_query_gid {index} of port {number}");
            return Err(refused(&self.name, Call::Query, call, last()));
        }
        // SAFETY: every bit pattern is valid for the array.
        Ok(unsafe { gid.raw })
    }

    fn checked(&self, answer: c_int, call: impl Into<String>) -> Result<(), VerbsError> {
        if answer == 0 {
            return Ok(());
        }
        // Some drivers return -1 and set errno; others return the errno.
        let errno = if answer > 0 { answer } else { last() };
        Err(refused(&self.name, Call::Query, call, errno))
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the flag `failed`, which is set when the completion queue at `address` fails.
    pub(crate) fn register_cq(&self, address: usize, failed: Arc<AtomicBool>) {
        self.lock().queues.insert(address, failed);
    }

    /// Reverts [`register_cq`](Self::register_cq). Must be called before the completion queue is destroyed, because a
    /// new queue can get the same address.
    pub(crate) fn unregister_cq(&self, address: usize) {
        self.lock().queues.remove(&address);
    }

    /// Returns the oldest queued event without waiting.
    pub(crate) fn event(&self) -> Option<NicEvent> {
        let mut events = self.lock();
        self.collect(&mut events);
        events.pending.pop_front()
    }

    /// Collects pending events, so that the flags of failed completion queues are set. Does nothing if another thread
    /// is collecting events.
    pub(crate) fn poll_events(&self) {
        if let Ok(mut events) = self.events.try_lock() {
            self.collect(&mut events);
        }
    }

    fn collect(&self, events: &mut Events) {
        loop {
            let mut event = MaybeUninit::<ib::ibv_async_event>::zeroed();
            // SAFETY: the context is open, its descriptor does not block, and the structure is valid during the call.
            if unsafe { ib::ibv_get_async_event(self.raw(), event.as_mut_ptr()) } != 0 {
                return;
            }
            // SAFETY: the call has filled the structure, and every bit pattern is valid for the integer.
            let kind = unsafe { (*event.as_ptr()).event_type };
            if kind == CQ_ERR {
                // SAFETY: events of this type contain the completion queue. The pointer is only compared, never
                // dereferenced.
                let address = unsafe { (*event.as_ptr()).element.cq }.addr();
                if let Some(failed) = events.queues.get(&address) {
                    failed.store(true, Ordering::Release);
                }
            }
            // SAFETY: the event came from `ibv_get_async_event` and is acknowledged exactly once. Its object still
            // exists, because the library destroys an object only after all its events were acknowledged.
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
        // SAFETY: every object created from the domain or the context keeps `self` alive, so none exists any more. Each
        // of the two is destroyed only here, the domain first.
        let (domain, context) = unsafe {
            (
                ib::ibv_dealloc_pd(self.domain.as_ptr()),
                ib::ibv_close_device(self.raw.as_ptr()),
            )
        };
        if domain != 0 || context != 0 {
            tracing::warn!(
                "{}: cannot close the NIC: ibv_dealloc_pd returned {domain}, ibv_close_device returned {context}",
                self.name
            );
        }
    }
}

/// `IBV_EVENT_CQ_ERR`: the event of a completion queue that failed.
const CQ_ERR: u32 = ib::ibv_event_type::IBV_EVENT_CQ_ERR;

/// Converts a value of `enum ibv_event_type`.
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

/// Makes reads of the open descriptor `fd` non-blocking.
pub(crate) fn nonblocking(fd: c_int) -> Result<(), i32> {
    // SAFETY: the call accesses no memory of the process, and an invalid descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: the call accesses no memory of the process, and an invalid descriptor is an error.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(last());
    }
    Ok(())
}

/// Waits until `fd` is readable or `limit` has passed. A signal ends the wait early. The maximum is about 24 days.
pub(crate) fn wait(fd: c_int, limit: std::time::Duration) -> Result<bool, i32> {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = c_int::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
    // SAFETY: the array has one structure, which is valid during the call. The descriptor is only polled.
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
