//! Brings the packets of a schedule to their places.

use super::config::SimConfig;
use super::pace::Pacer;
use super::schedule::{Arrival, Arrivals, State};
use super::signal::Signal;
use crate::sys::place;
use daq_core::frame::{Clock, Timestamp};
use daq_core::source::{Filler, Polled, SourceError};
use daq_core::window::{Batch, Geometry, Outcome, PacketId, Window};
use std::time::{Duration, Instant, SystemTime};

/// Packets made at one go at most.
const BATCH: u64 = 64;

/// A running simulation.
#[derive(Debug)]
pub(super) struct Simulator {
    geometry: Geometry,
    arrivals: Arrivals,
    signal: Signal,
    /// Cuts a number to the bits that a packet carries.
    mask: u64,
    /// Packets a second.
    rate: Option<f64>,
    /// Nanoseconds of signal in a packet.
    packet_ns: Option<f64>,
    pacer: Option<Pacer>,
    /// When the first packet's first sample is taken: nanoseconds since 1970.
    origin_ns: u64,
    hold: Option<Hold>,
    /// An arrival that waits for room.
    waiting: Option<Arrival>,
}

/// What a source that waits for slots knows of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    /// How often the sender's count had broken before the last packet that was placed; `None` = the window
    /// does not follow the count yet.
    follows: Option<u32>,
    /// One past the last packet that was placed: where the window expects the next.
    cursor: u64,
    /// All frames before this number's have memory.
    room: u64,
}

impl Simulator {
    pub(super) fn new(config: &SimConfig, geometry: Geometry) -> Self {
        Self {
            arrivals: config.arrivals(&geometry),
            signal: config.recipe().build(geometry.frame_bytes),
            mask: u64::MAX >> (64 - config.sequence_bits),
            rate: config.packet_rate(&geometry),
            packet_ns: config.packet_ns(&geometry),
            pacer: None,
            origin_ns: 0,
            hold: config.hold().then(Hold::default),
            waiting: None,
            geometry,
        }
    }

    fn places(&self) -> u64 {
        u64::from(self.geometry.places)
    }

    /// The next arrival, if it is due: no more than `due` packets are made.
    fn next(&mut self, due: u64) -> Option<Arrival> {
        if let Some(arrival) = self.waiting.take() {
            return Some(arrival);
        }
        self.arrivals.next_within(due)
    }

    /// How many places from where the window expects the next packet must have memory before `arrival` may
    /// be placed; `None` if no question is needed.
    ///
    /// Asked for exactly what is wanted: asking makes the window slide as the packet itself would.
    fn wants(&self, arrival: &Arrival) -> Option<u64> {
        let hold = self
            .hold
            .as_ref()
            .filter(|_| arrival.state != State::BadHeader)?;
        let sequence = arrival.packet.sequence;
        if hold.follows != Some(arrival.packet.breaks) {
            // A new count opens in a frame of its own.
            return Some(self.places());
        }
        if sequence < hold.room {
            return None;
        }
        let ahead = sequence - hold.cursor;
        // What lies too far ahead is not believed at first, and opens a new count later.
        let is_near = ahead < self.geometry.window as u64 * self.places();
        Some(if is_near { ahead + 1 } else { self.places() })
    }

    /// Remembers what became of a packet.
    fn learn(&mut self, arrival: &Arrival, outcome: Outcome) {
        let places = self.places();
        if let Some(hold) = &mut self.hold
            && matches!(outcome, Outcome::Placed | Outcome::RingFull)
        {
            let packet = &arrival.packet;
            let room = (packet.sequence / places + 1) * places;
            hold.room = if hold.follows == Some(packet.breaks) {
                hold.room.max(room)
            } else {
                room
            };
            hold.follows = Some(packet.breaks);
            hold.cursor = packet.sequence + 1;
        }
    }

    fn timestamp(&self, arrival: &Arrival) -> Timestamp {
        let Some(packet_ns) = self.packet_ns else {
            return Timestamp::default();
        };
        let packet = &arrival.packet;
        // Packets from the start of the run to the start of this one's frame.
        let packets = packet.index as f64 - (packet.sequence % self.places()) as f64;
        #[expect(clippy::cast_possible_truncation, reason = "292 years of signal fit")]
        let ns = (packets * packet_ns) as i64;
        Timestamp {
            ns: self.origin_ns.saturating_add_signed(ns),
            clock: Clock::Simulated,
        }
    }

    fn put(&mut self, batch: &mut Batch<'_>, arrival: &Arrival) {
        let id = PacketId::of(arrival.packet.sequence & self.mask);
        let outcome = match arrival.state {
            State::BadHeader => {
                batch.reject_unreadable(1);
                return;
            }
            State::BadPayload => batch.put_bad(id),
            State::Whole => {
                let frame = arrival.packet.sequence / self.places();
                #[expect(clippy::cast_possible_truncation, reason = "below `places`, a u32")]
                let extent = self
                    .geometry
                    .extent((arrival.packet.sequence % self.places()) as u32);
                let (signal, bytes) = (&self.signal, extent.len());
                place::put(batch, id, bytes, self.timestamp(arrival), |place| {
                    signal.write(frame, extent, |piece| place.push(piece));
                })
            }
        };
        self.learn(arrival, outcome);
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

    fn fill(&mut self, window: &mut Window, _: Duration) -> Result<Polled, SourceError> {
        if self.rate.is_some() && self.pacer.is_none() {
            self.start()?;
        }
        let now = Instant::now();
        let made = self.arrivals.made();
        // Packets that do not arrive count too, or a call would not end where all are lost.
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
        if let Some(places) = self.wants(&arrival)
            && !window.has_room(places)
        {
            self.waiting = Some(arrival);
            return Ok(Polled::Full);
        }
        // Packets that were held back come in the batch of the one that they waited for: between batches the window
        // moves on over frames that are complete, and forgets those further back.
        let mut batch = window.batch();
        loop {
            self.put(&mut batch, &arrival);
            match self.next(due) {
                Some(next) if self.wants(&next).is_some() => {
                    self.waiting = Some(next);
                    return Ok(Polled::Busy);
                }
                Some(next) => arrival = next,
                None => return Ok(Polled::Busy),
            }
        }
    }
}
