//! Sends a sensor's packets as RDMA writes by a queue pair of a NIC. The receiving host needs an RDMA NIC too.
//!
//! The NIC builds the packets from address, key, immediate data and payload. Tested on emulated NICs and soft-RoCE, not
//! on hardware.

use super::packet::{OVERHEAD, WRITE, WRITE_IMMEDIATE};
use super::registers::Target;
use daq_core::dma::{DmaBuffer, DmaError};
use daq_core::topology::nic::is_emulated_nic;
use daq_rdma::registration::set::{RailRegions, RegistrationSet};
use daq_rdma::verbs::{
    Access, Endpoint, Nic, Payload, QueuePair, QueuePairOptions, Service, Status, Verb, VerbsError,
    WorkCompletion, WorkRequest,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of packets in flight, each with its own slot in the send buffer.
const MAX_IN_FLIGHT: usize = 64;
/// Maximum time of one wait for completions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of consecutive waits without a completion after which the writer fails.
const MAX_POLLS: u32 = 100;
/// Faults that are unavailable with a NIC, because they need a packet that a NIC cannot send.
pub(super) const IMPOSSIBLE: [&str; 3] = ["bad-length", "bad-opcode", "bad-icrc"];

/// Error of the writer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NicError {
    /// The NIC cannot create or connect the queue pair.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The NIC cannot register the memory.
    #[error(transparent)]
    Memory(#[from] DmaError),
}

/// A queue pair that a host has configured for a sensor.
pub(super) struct Writer {
    /// The queue pair. It must be dropped before the memory registrations that it uses.
    queue: Box<dyn QueuePair>,
    keys: Arc<RailRegions>,
    memory: DmaBuffer,
    /// Size of a slot in bytes.
    slot_bytes: usize,
    /// The slot of the next packet.
    next: usize,
    /// Number of packets in flight.
    in_flight: usize,
    /// Number of consecutive waits without a completion.
    idle: u32,
}

impl Writer {
    /// Connects a queue pair of `nic` to the queue pair that `target` names. `name` is the configured name of the NIC.
    pub(super) fn connect(
        nic: &Arc<dyn Nic>,
        name: &str,
        target: &Target,
    ) -> Result<Self, NicError> {
        // The last packet of a frame may contain metadata after its payload.
        let slot_bytes = (target.packet + OVERHEAD + 256).next_multiple_of(64);
        let registrations = RegistrationSet::new(
            std::slice::from_ref(nic),
            Access::default(),
            Box::new(|| Ok(())),
        );
        let memory = DmaBuffer::new(registrations.clone(), MAX_IN_FLIGHT * slot_bytes)?;
        let keys = registrations.acquire(memory.address())?;
        let mut queue = nic.create_queue_pair(&QueuePairOptions {
            service: Service::Uc,
            sends: u32::try_from(MAX_IN_FLIGHT).unwrap_or(u32::MAX),
            receives: 1,
            sges: 1,
            inline: 0,
            events: true,
        })?;
        queue.connect(&Endpoint {
            number: target.queue,
            lid: if is_emulated_nic(name) {
                target.to.port()
            } else {
                0
            },
            gid: target.to.ip().to_ipv6_mapped().octets(),
            mtu: nic.port()?.mtu,
            ..Endpoint::default()
        })?;
        Ok(Self {
            queue,
            keys,
            memory,
            slot_bytes,
            next: 0,
            in_flight: 0,
            idle: 0,
        })
    }

    /// Sends `bytes` as packets of `packet` bytes each; the last packet may be shorter.
    pub(super) fn send_packets(&mut self, bytes: &[u8], packet: usize) -> io::Result<()> {
        bytes
            .chunks(packet.max(1))
            .try_for_each(|packet| self.send(packet))
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let Some((address, key, immediate, payload)) = parts(packet) else {
            return Err(io::Error::other(
                "a NIC cannot send this packet, because the packet is not a valid RDMA write",
            ));
        };
        while self.in_flight == MAX_IN_FLIGHT {
            self.wait()?;
        }
        let at = self.next * self.slot_bytes;
        for (i, word) in payload.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.memory.write64(at + 8 * i, u64::from_ne_bytes(bytes));
        }
        let work = WorkRequest {
            id: 0,
            verb: Verb::write(address, key, immediate),
            payload: Payload::Memory(&[self.keys.of(0).sge(at, payload.len())]),
            signaled: true,
        };
        self.queue.post_send(&work).map_err(io::Error::other)?;
        self.next = (self.next + 1) % MAX_IN_FLIGHT;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits until all packets were sent.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        while self.in_flight > 0 {
            self.wait()?;
        }
        Ok(())
    }

    /// Collects completions. If no completion is available, waits for a limited time.
    fn wait(&mut self) -> io::Result<()> {
        let mut done = [WorkCompletion::default(); MAX_IN_FLIGHT];
        let count = self.queue.poll(&mut done).map_err(io::Error::other)?;
        self.in_flight -= count.min(self.in_flight);
        let failed = done[..count]
            .iter()
            .find(|done| done.status != Status::Success);
        if let Some(failed) = failed {
            return Err(io::Error::other(failed.status.name()));
        }
        self.idle = if count > 0 { 0 } else { self.idle + 1 };
        if self.idle > MAX_POLLS {
            return Err(io::Error::other(
                "timeout: the NIC has not completed the RDMA writes",
            ));
        }
        if count == 0 {
            self.queue.wait(POLL_INTERVAL).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Returns address, key, immediate data and payload of a packet, if the packet is an RDMA write.
fn parts(packet: &[u8]) -> Option<(u64, u32, Option<u32>, &[u8])> {
    let word = |at: usize| Some(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let (immediate, head) = match *packet.first()? {
        WRITE => (None, OVERHEAD - 4),
        WRITE_IMMEDIATE => (Some(word(28)?), OVERHEAD),
        _ => return None,
    };
    let address = u64::from(word(12)?) << 32 | u64::from(word(16)?);
    let payload = packet.get(head..packet.len().checked_sub(4)?)?;
    Some((address, word(20)?, immediate, payload))
}

#[cfg(test)]
mod tests {
    use super::super::packet::{Flow, Headers, push};
    use super::*;

    #[test]
    fn packet_round_trips() {
        let flow = Flow {
            from: "127.0.0.1:12288".parse().unwrap(),
            to: "127.0.0.2:4791".parse().unwrap(),
        };
        for immediate in [None, Some(0x1234_5678)] {
            let headers = Headers {
                opcode: immediate.map_or(WRITE, |_| WRITE_IMMEDIATE),
                queue: 3,
                psn: 4,
                address: 0x1122_3344_5566_7788,
                key: 0x99aa_bbcc,
                length: 5,
                immediate,
                is_broken: false,
            };
            let mut packet = Vec::new();
            push(&mut packet, &flow, &headers, 5, |to| {
                to.copy_from_slice(b"bytes");
            });
            let found = parts(&packet).unwrap();
            let expected = (headers.address, headers.key, immediate, &b"bytes"[..]);
            assert_eq!(found, expected);
            packet[0] = 0x04;
            assert_eq!(parts(&packet), None);
        }
        assert_eq!(parts(&[WRITE; 20]), None);
    }
}
