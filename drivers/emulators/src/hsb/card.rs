//! Writes a sensor's packets by a queue pair of a network card, to a host that has one too.
//!
//! The card builds the packets from address, key, immediate and payload. Tested on emulated cards and soft-RoCE, not on
//! hardware.

use super::packet::{OVERHEAD, WRITE, WRITE_IMMEDIATE};
use super::registers::Target;
use daq_core::dma::{DmaBuffer, DmaError};
use daq_rdma::nics;
use daq_rdma::registration::set::{RailRegions, RegistrationSet};
use daq_rdma::verbs::{
    Access, Endpoint, Nic, Payload, QueuePair, QueuePairOptions, Service, Side, Status, Verb,
    VerbsError, WorkCompletion, WorkRequest,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Packets under way.
const PLACES: usize = 64;
/// How long one look for what was written lasts.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Looks in a row that find nothing, after which the card is given up.
const LOOKS: u32 = 100;
/// Faults that take a packet which no card makes.
pub(super) const IMPOSSIBLE: [&str; 3] = ["bad-length", "bad-opcode", "bad-icrc"];

/// Why the writer failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CardError {
    /// The card refuses a queue, or to connect it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The card refuses memory.
    #[error(transparent)]
    Memory(#[from] DmaError),
}

/// A queue pair that a host has configured for a sensor.
pub(super) struct Writer {
    /// Destroyed before the keys of what it reads.
    queue: Box<dyn QueuePair>,
    keys: Arc<RailRegions>,
    memory: DmaBuffer,
    /// Bytes of a place.
    place: usize,
    /// The place of the next packet, and those under way.
    next: usize,
    under_way: usize,
    /// Looks in a row that found nothing.
    idle: u32,
}

impl Writer {
    /// Connects with the queue that `target` names, by the card `nic` of the name `name`.
    pub(super) fn connect(
        nic: &Arc<dyn Nic>,
        name: &str,
        target: &Target,
    ) -> Result<Self, CardError> {
        // A frame's last packet may have its metadata behind its payload.
        let place = (target.packet + OVERHEAD + 256).next_multiple_of(64);
        let registrations = RegistrationSet::new(
            std::slice::from_ref(nic),
            Access::default(),
            Box::new(|| Ok(())),
        );
        let memory = DmaBuffer::new(registrations.clone(), PLACES * place)?;
        let keys = registrations.acquire(memory.address())?;
        let mut queue = nic.create_queue_pair(&QueuePairOptions {
            service: Service::Uc,
            sends: u32::try_from(PLACES).unwrap_or(u32::MAX),
            receives: 1,
            sges: 1,
            inline: 0,
            events: true,
        })?;
        queue.connect(&Endpoint {
            number: target.queue,
            lid: if nics::is_emulated_nic(name) {
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
            place,
            next: 0,
            under_way: 0,
            idle: 0,
        })
    }

    /// Writes `bytes` as packets of `packet` bytes, the last one with what is left.
    pub(super) fn send_packets(&mut self, bytes: &[u8], packet: usize) -> io::Result<()> {
        bytes
            .chunks(packet.max(1))
            .try_for_each(|packet| self.send(packet))
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        let Some((address, key, immediate, payload)) = parts(packet) else {
            return Err(io::Error::other("a card cannot send such a packet"));
        };
        while self.under_way == PLACES {
            self.wait()?;
        }
        let at = self.next * self.place;
        for (i, word) in payload.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            self.memory.write64(at + 8 * i, u64::from_ne_bytes(bytes));
        }
        let work = WorkRequest {
            id: 0,
            verb: Verb::Write {
                address,
                rkey: key,
                immediate,
            },
            payload: Payload::Memory(&[self.keys.of(0).sge(at, payload.len())]),
            signaled: true,
        };
        self.queue.post_send(&work).map_err(io::Error::other)?;
        self.next = (self.next + 1) % PLACES;
        self.under_way += 1;
        Ok(())
    }

    /// Waits until everything was written.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        while self.under_way > 0 {
            self.wait()?;
        }
        Ok(())
    }

    /// Collects what was written, and waits where that is nothing.
    fn wait(&mut self) -> io::Result<()> {
        let mut done = [WorkCompletion {
            id: 0,
            side: Side::Sent,
            status: Status::Flushed,
            bytes: 0,
            immediate: None,
        }; PLACES];
        let count = self.queue.poll(&mut done).map_err(io::Error::other)?;
        self.under_way -= count.min(self.under_way);
        let failed = done[..count]
            .iter()
            .find(|done| done.status != Status::Success);
        if let Some(failed) = failed {
            return Err(io::Error::other(failed.status.name()));
        }
        self.idle = if count > 0 { 0 } else { self.idle + 1 };
        if self.idle > LOOKS {
            return Err(io::Error::other(
                "timeout: the card does not complete the writes",
            ));
        }
        if count == 0 {
            self.queue.wait(POLL_INTERVAL).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Address, key, immediate and payload of a packet, if it is a write.
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
