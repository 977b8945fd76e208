//! Places the packets of a schedule in the window.

use super::keys::SimConfig;
use super::pace::Pacer;
use super::schedule::{Arrival, Arrivals, State};
use super::signal::Signal;
use crate::sys::payload;
use daq_core::frame::{Clock, Timestamp};
use daq_core::reorder::{Batch, Geometry, PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, SourceError};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of packets per call.
const BATCH: u64 = 64;

/// A running simulation.
#[derive(Debug)]
pub(super) struct Simulator {
    geometry: Geometry,
    arrivals: Arrivals,
    signal: Signal,
    /// Mask that reduces a number to the bits that a packet contains.
    mask: u64,
    /// Number of packets per second.
    rate: Option<f64>,
    /// Signal duration of a packet in nanoseconds.
    packet_ns: Option<f64>,
    pacer: Option<Pacer>,
    /// Time of the first sample in nanoseconds since 1970.
    origin_ns: u64,
    backpressure: bool,
    /// A packet that waits for a free slot.
    waiting: Option<Arrival>,
}

impl Simulator {
    pub(super) fn new(config: &SimConfig, geometry: Geometry) -> Self {
        Self {
            arrivals: config.arrivals(&geometry),
            signal: config.signal_config().build(geometry.frame_bytes),
            mask: u64::MAX >> (64 - config.sequence_bits),
            rate: config.packet_rate(&geometry),
            packet_ns: config.packet_ns(&geometry),
            pacer: None,
            origin_ns: 0,
            backpressure: config.backpressure(),
            waiting: None,
            geometry,
        }
    }

    fn packets_per_frame(&self) -> u64 {
        u64::from(self.geometry.packets_per_frame)
    }

    /// Returns the next arrival if it is due. The sender sends at most `due` packets.
    fn next(&mut self, due: u64) -> Option<Arrival> {
        if let Some(arrival) = self.waiting.take() {
            return Some(arrival);
        }
        self.arrivals.next_within(due)
    }

    fn timestamp(&self, arrival: &Arrival) -> Timestamp {
        let Some(packet_ns) = self.packet_ns else {
            return Timestamp::default();
        };
        let packet = &arrival.packet;
        // Number of packets from the start of the run to the first packet of this packet's frame.
        let packets = packet.index as f64 - (packet.sequence % self.packets_per_frame()) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "292 years in nanoseconds fit into an i64"
        )]
        let ns = (packets * packet_ns) as i64;
        Timestamp {
            ns: self.origin_ns.saturating_add_signed(ns),
            clock: Clock::Simulated,
        }
    }

    /// Places `arrival`. Returns false if it must wait for a free slot.
    fn put(&self, batch: &mut Batch<'_>, arrival: &Arrival) -> bool {
        let id = PacketId::of(arrival.packet.sequence & self.mask);
        if self.backpressure && arrival.state != State::BadHeader && !batch.has_room(id, None) {
            return false;
        }
        match arrival.state {
            State::BadHeader => batch.reject_unreadable(1),
            State::BadPayload => {
                batch.place_bad(id);
            }
            State::Intact => {
                let frame = arrival.packet.sequence / self.packets_per_frame();
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the remainder is less than `packets_per_frame`, which is a u32"
                )]
                let extent = self
                    .geometry
                    .extent((arrival.packet.sequence % self.packets_per_frame()) as u32);
                let (signal, bytes) = (&self.signal, extent.len());
                payload::put(batch, id, bytes, self.timestamp(arrival), |payload| {
                    signal.write(frame, extent, |piece| payload.push(piece));
                });
            }
        }
        true
    }
}

impl Filler for Simulator {
    fn start(&mut self) -> Result<(), SourceError> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        self.origin_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.pacer = self.rate.map(|rate| Pacer::new(Instant::now(), rate));
        Ok(())
    }

    fn fill(&mut self, window: &mut ReorderWindow, _: Duration) -> Result<Polled, SourceError> {
        if self.rate.is_some() && self.pacer.is_none() {
            self.start()?;
        }
        let now = Instant::now();
        let made = self.arrivals.produced();
        // Lost packets also count towards the limit. Otherwise a call would not return if all packets are lost.
        let due = self
            .pacer
            .map_or(u64::MAX, |pacer| pacer.due(now))
            .min(made.saturating_add(BATCH));
        let Some(mut arrival) = self.next(due) else {
            return Ok(match self.pacer {
                _ if self.arrivals.is_over() => Polled::Ended,
                Some(pacer) if due <= made => Polled::Until(pacer.until(now, made)),
                _ => Polled::Busy,
            });
        };
        // Delayed packets must be placed in the same batch as the packet that they waited for. Between batches, the
        // window advances past complete frames and discards older frames.
        Ok(window.with_batch(|batch| {
            loop {
                if !self.put(batch, &arrival) {
                    self.waiting = Some(arrival);
                    return Polled::Full;
                }
                match self.next(due) {
                    Some(next) => arrival = next,
                    None => return Polled::Busy,
                }
            }
        }))
    }
}
