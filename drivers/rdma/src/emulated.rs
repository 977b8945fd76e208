//! An emulated NIC, for tests and for hosts without RDMA hardware: the verbs over TCP.
//!
//! ```text
//!   NIC ── listens on its own TCP port ──▶ one stream per connection of two queue pairs; each side has two threads:
//!             sending    sends acknowledgements, the number of posted receives, and then requests in order
//!             receiving  writes into registered memory, stores sends into posted receives, handles answers
//! ```
//! An unreliable queue pair with peer number 0 accepts any peer that knows its number, as hardware does. Sensor bridges
//! need this.
//!
//! The emulated NIC checks keys, bounds and access rights as hardware does, and injects [`Faults`]. In contrast to
//! hardware it takes locks and makes system calls, and can access only memory that the CPU can access. It does not
//! emulate the speed of hardware, reordered packets, the 40-byte header before a datagram, or datagrams from several
//! queue pairs.

mod faults;
mod memory;
mod message;
mod pair;
mod queue_pair;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

pub use faults::{Faults, UnknownFault};

use crate::connect::acceptor::{Acceptor, HandshakenPeer};
use crate::random::{random, random_word};
use crate::tcp::sys;
use crate::verbs::{
    Access, Endpoint, Limits, MemoryRegion, Nic, NicEvent, Port, QueuePair, QueuePairOptions,
    RegistrationMethod, Service, VerbsError,
};
use daq_core::region::Region;
use memory::{MemorySlice, Registration};
use message::Preamble;
use pair::Pair;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Maximum payload of a packet in bytes: the largest MTU of InfiniBand.
const MTU: u32 = 4096;
/// Maximum number of unread events; later events are dropped.
const MAX_EVENTS: usize = 64;

const LIMITS: Limits = Limits {
    max_work: 16384,
    max_completions: 65536,
    max_sges: 16,
    max_message: 1 << 31,
    max_inline: 256,
};

/// An emulated NIC.
pub struct EmulatedNic {
    name: String,
    address: SocketAddr,
    faults: Faults,
    /// The listening socket. It is shut down when the NIC is dropped, which ends the listening thread.
    listening: OwnedFd,
    tables: Mutex<Tables>,
    weak_self: Weak<EmulatedNic>,
}

#[derive(Default)]
struct Tables {
    queues: HashMap<u32, Weak<Pair>>,
    local: HashMap<u32, Arc<Registration>>,
    remote: HashMap<u32, Arc<Registration>>,
    events: VecDeque<NicEvent>,
}

/// Ends the registration of memory when this value is dropped.
struct RegistrationGuard {
    nic: Arc<EmulatedNic>,
    registration: Arc<Registration>,
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        let mut tables = self.nic.tables();
        tables.local.remove(&self.registration.local);
        tables.remote.remove(&self.registration.remote);
        drop(tables);
        self.registration.end();
    }
}

impl EmulatedNic {
    /// Creates a NIC that listens at `address`, which must be an address of this host.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers without faults pass a temporary value"
    )]
    #[expect(clippy::new_ret_no_self, reason = "callers need only the trait object")]
    pub fn new(address: IpAddr, faults: Faults) -> Result<Arc<dyn Nic>, VerbsError> {
        let refused = |call: &str, error: std::io::Error| VerbsError {
            nic: "emulated".to_owned(),
            call: format!("{call} {address}"),
            errno: error.raw_os_error().unwrap_or(0),
            why: "use an address of this host: emulated:ADDRESS".to_owned(),
        };
        let listener =
            TcpListener::bind((address, 0)).map_err(|error| refused("listening at", error))?;
        let at = listener
            .local_addr()
            .map_err(|error| refused("listening at", error))?;
        let listening = listener
            .try_clone()
            .map_err(|error| refused("listening at", error))?;
        let acceptor = Acceptor::new(listener, |_| Some(Preamble::BYTES))
            .map_err(|error| refused("listening at", error))?;
        let nic = Arc::new_cyclic(|weak_self| Self {
            name: "emulated".to_owned(),
            address: at,
            faults: faults.clone(),
            listening: listening.into(),
            tables: Mutex::default(),
            weak_self: Weak::clone(weak_self),
        });
        faults.attach(&nic);
        let weak_self = Weak::clone(&nic.weak_self);
        std::thread::Builder::new()
            .name("daq-nic-listen".to_owned())
            .spawn(move || listen(acceptor, &weak_self))
            .map_err(|error| refused("starting a thread for", error))?;
        Ok(nic)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, call: impl Into<String>, errno: i32, why: impl Into<String>) -> VerbsError {
        VerbsError {
            nic: self.name.clone(),
            call: call.into(),
            errno,
            why: why.into(),
        }
    }

    /// Returns the memory of the peer's `address` if `rkey` names memory that the peer may write and all `bytes` bytes
    /// are inside.
    fn remote(&self, rkey: u32, address: u64, bytes: u64) -> Option<MemorySlice> {
        let registration = Arc::clone(self.tables().remote.get(&rkey)?);
        let bytes = usize::try_from(bytes).ok()?;
        let offset = registration.offset(address, bytes)?;
        registration.access.remote_write.then_some(MemorySlice {
            registration,
            offset,
            bytes,
        })
    }

    fn local(&self, rkey: u32) -> Option<Arc<Registration>> {
        self.tables().local.get(&rkey).cloned()
    }

    fn push_event(&self, event: NicEvent) {
        let events = &mut self.tables().events;
        if events.len() < MAX_EVENTS {
            events.push_back(event);
        }
    }

    fn for_each_pair(&self, act: impl Fn(&Pair)) {
        let queues: Vec<_> = self.tables().queues.values().cloned().collect();
        for queue in queues.iter().filter_map(Weak::upgrade) {
            act(&queue);
        }
    }

    fn wake(&self) {
        self.for_each_pair(|queue| {
            // Taking the lock ensures that every thread that read the old state is waiting already and gets the
            // notification.
            drop(queue.lock());
            queue.changed.notify_all();
        });
    }

    fn accept_stream(&self, peer: HandshakenPeer) {
        let Some(preamble) = Preamble::decode(&peer.greeting) else {
            return;
        };
        if self.faults.is_down() {
            return;
        }
        let queue = self.tables().queues.get(&preamble.to.0).cloned();
        if let Some(queue) = queue.and_then(|queue| queue.upgrade()) {
            queue.deliver(peer.stream, preamble);
        }
    }
}

/// Passes each stream that a peer opens to the queue pair that the peer names, until the NIC is dropped.
fn listen(mut acceptor: Acceptor, nic: &Weak<EmulatedNic>) {
    while let Ok(peer) = acceptor.next(None) {
        let Some(nic) = nic.upgrade() else {
            return;
        };
        if let Some(peer) = peer {
            nic.accept_stream(peer);
        }
    }
}

impl Drop for EmulatedNic {
    fn drop(&mut self) {
        // The shutdown wakes the listening thread, which then ends.
        let _ = rustix::net::shutdown(&self.listening, rustix::net::Shutdown::Both);
    }
}

fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl Nic for EmulatedNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn port(&self) -> Result<Port, VerbsError> {
        Ok(Port {
            number: 1,
            is_active: !self.faults.is_down(),
            is_ethernet: true,
            mtu: MTU,
            lid: 0,
            gid_index: 0,
            gid: gid(self.address.ip()),
        })
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let call = format!("registering {} bytes as {method}", region.bytes());
        if let Some(errno) = self.faults.refusal(method) {
            return Err(self.refused(call, errno, "injected fault"));
        }
        if region.cpu_address().is_none() {
            let why = "an emulated NIC can access only memory that the CPU can access: add `gdrapi` or `dma-buf` to `backends` of `[staging]`, or stage through host memory";
            return Err(self.refused(call, libc::EOPNOTSUPP, why));
        }
        let Some(nic) = self.weak_self.upgrade() else {
            return Err(self.refused(call, libc::ENODEV, "the NIC is being closed"));
        };
        // The remote address differs from the CPU address, so that code that confuses the two fails.
        let base = random(34) << 12;
        let mut tables = self.tables();
        let (local, remote) = loop {
            let keys = (random_word(32), random_word(32));
            if !tables.local.contains_key(&keys.0) && !tables.remote.contains_key(&keys.1) {
                break keys;
            }
        };
        let registration = Arc::new(Registration::new(
            Arc::clone(region),
            access,
            (local, remote),
            base,
        ));
        tables.local.insert(local, Arc::clone(&registration));
        tables.remote.insert(remote, Arc::clone(&registration));
        drop(tables);
        let handle = RegistrationGuard { nic, registration };
        Ok(MemoryRegion::new(
            Box::new(handle),
            Arc::clone(region),
            method,
            (local, remote),
            base,
        ))
    }

    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        let call = "create a queue pair";
        if options.sends > LIMITS.max_work
            || options.receives > LIMITS.max_work
            || options.sges > LIMITS.max_sges
        {
            let why = format!(
                "the queue pair exceeds the limits of {} requests per direction and {} scatter/gather elements",
                LIMITS.max_work, LIMITS.max_sges
            );
            return Err(self.refused(call, libc::EINVAL, why));
        }
        let Some(nic) = self.weak_self.upgrade() else {
            return Err(self.refused(call, libc::ENODEV, "the NIC is being closed"));
        };
        let qkey = match options.service {
            Service::Ud => random_word(31),
            Service::Rc | Service::Uc => 0,
        };
        let mut tables = self.tables();
        tables.queues.retain(|_, queue| queue.strong_count() > 0);
        let number = loop {
            let number = random_word(24);
            if !tables.queues.contains_key(&number) {
                break number;
            }
        };
        let numbers = (number, random_word(24));
        let pair = Arc::new(Pair::new(nic, numbers, qkey, *options));
        tables.queues.insert(number, Arc::downgrade(&pair));
        drop(tables);
        Ok(Box::new(queue_pair::EmulatedQueuePair::new(pair)))
    }

    fn event(&self) -> Option<NicEvent> {
        self.tables().events.pop_front()
    }
}

impl EmulatedNic {
    fn endpoint(&self, pair: &Pair) -> Endpoint {
        Endpoint {
            number: pair.number,
            psn: pair.psn,
            lid: self.address.port(),
            gid: gid(self.address.ip()),
            mtu: MTU,
            qkey: pair.qkey,
        }
    }
}

impl fmt::Debug for EmulatedNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
