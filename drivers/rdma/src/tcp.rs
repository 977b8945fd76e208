//! The transport `tcp` of a stream: the verbs over plain TCP connections, for hosts without RDMA hardware.
//!
//! ```text
//!   sender's queue pair                            receiver's queue pair
//!     posted requests ── one sendmsg per batch ──▶ one recvmsg: every payload directly into its slot
//!        completions ◀── number of messages that have arrived ──
//! ```
//! Each queue pair has one connection, which the connector opens to the listener's port. A request completes when the
//! other side has received it and has it in its completion queue, so that the frame protocol above is the same as on
//! reliable RDMA connections. Only writes and reliable connections are supported.
//!
//! In contrast to the [emulated NIC](crate::emulated), which checks programs that use the verbs, a queue pair over TCP has
//! no threads, takes no locks, and does not allocate after it is connected.
//!
//! # Integrity
//! TCP numbers every byte, so bytes are neither lost, repeated nor reordered. Its checksum has only 16 bits: of segments
//! that the hardware damages without detection, about one in 65536 is accepted. Head and destinations of each batch
//! have a checksum of their own, so that a damaged one never directs a payload to a wrong place. Payloads have none here; the
//! frame protocol above can add [checksums](crate::wire).

mod input;
pub(crate) mod join;
mod output;
mod queue_pair;
mod registration;
pub(crate) mod socket;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use queue_pair::TcpQueuePair;

use crate::random::{random, random_word};
use crate::verbs::{
    Access, Limits, MemoryRegion, Nic, NicEvent, Port, QueuePair, QueuePairOptions,
    RegistrationMethod, Transport, VerbsError,
};
use daq_core::region::Region;
use registration::Registration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the transport in messages.
pub(crate) const NAME: &str = "tcp";

const LIMITS: Limits = Limits {
    max_work: 1 << 17,
    max_completions: 1 << 18,
    max_sges: 2,
    max_message: wire::MAX_PAYLOAD,
    max_inline: 256,
};

/// The registered memory, by remote key.
#[derive(Debug, Default)]
struct Registrations(Mutex<HashMap<u32, Arc<Registration>>>);

impl Registrations {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Registration>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, rkey: u32) -> Option<Arc<Registration>> {
        self.lock().get(&rkey).cloned()
    }
}

/// Ends the registration of memory when this value is dropped.
struct RegistrationGuard {
    registrations: Arc<Registrations>,
    registration: Arc<Registration>,
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        self.registrations.lock().remove(&self.registration.rkey);
        self.registration.end();
    }
}

/// The TCP connections of one source or sink, as a NIC.
#[derive(Debug, Default)]
pub struct TcpNic {
    registrations: Arc<Registrations>,
}

impl TcpNic {
    /// Returns the NICs of a stream with this number of connections.
    pub fn rails(connections: usize) -> Vec<Arc<dyn Nic>> {
        let nic: Arc<dyn Nic> = Arc::new(Self::default());
        vec![nic; connections]
    }
}

impl Nic for TcpNic {
    fn name(&self) -> &str {
        NAME
    }

    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn port(&self) -> Result<Port, VerbsError> {
        Ok(Port {
            number: 1,
            is_active: true,
            is_ethernet: true,
            mtu: 4096,
            lid: 0,
            gid_index: 0,
            gid: [0; 16],
        })
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        if region.cpu_address().is_none() {
            return Err(VerbsError {
                nic: NAME.to_owned(),
                call: format!("registering {} bytes as {method}", region.bytes()),
                errno: libc::EOPNOTSUPP,
                why: "TCP needs memory that the CPU can access: stage through host memory"
                    .to_owned(),
            });
        }
        // The remote address differs from the CPU address, which the peer need not know.
        let base = random(34) << 12;
        let mut all = self.registrations.lock();
        let rkey = loop {
            let rkey = random_word(32);
            if !all.contains_key(&rkey) {
                break rkey;
            }
        };
        let registration = Arc::new(Registration::new(region.clone(), access, rkey, base));
        all.insert(rkey, registration.clone());
        drop(all);
        let guard = RegistrationGuard {
            registrations: self.registrations.clone(),
            registration,
        };
        Ok(MemoryRegion::new(
            Box::new(guard),
            region.clone(),
            method,
            (rkey, rkey),
            base,
        ))
    }

    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        let queue_pair = TcpQueuePair::new(NAME, options, self.registrations.clone())?;
        Ok(Box::new(queue_pair))
    }

    fn event(&self) -> Option<NicEvent> {
        None
    }
}
