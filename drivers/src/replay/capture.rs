//! Brings the datagrams of captures to their places.

use super::config::ReplayConfig;
use super::timetable::Timetable;
use crate::datagram::Placer;
use crate::format::{Format, Parsed};
use crate::pcap::{Capture, Datagram};
use daq_core::frame::{Clock, Timestamp};
use daq_core::source::{Filler, Polled, SourceError};
use daq_core::window::{Geometry, Outcome, PacketId, Window};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Datagrams placed in one call at most.
const BATCH: usize = 64;
/// The largest UDP payload.
const LARGEST: usize = 1 << 16;

/// Replays captures, one after the other.
pub(super) struct CapturePlayer {
    /// The source's name, for messages.
    name: String,
    /// Those to come, the next one last.
    captures: Vec<(PathBuf, Capture)>,
    filter: Filter,
    matched: u64,
    filtered: u64,
    timetable: Timetable,
    to_places: ToPlaces,
    /// A datagram that waits for its time or for room.
    held: Held,
}

/// Which datagrams are meant.
#[derive(Clone, Copy, Debug)]
struct Filter {
    port: Option<u16>,
    destination: Option<IpAddr>,
}

impl Filter {
    fn takes(&self, datagram: &Datagram<'_>) -> bool {
        let to = datagram.destination;
        self.port.is_none_or(|port| port == to.port())
            && self.destination.is_none_or(|address| address == to.ip())
    }
}

#[derive(Debug)]
struct Held {
    waits: bool,
    timestamp_ns: u64,
    payload: Vec<u8>,
}

/// What is known of the window, so that nothing is placed where there is no room.
struct ToPlaces {
    placer: Placer,
    geometry: Geometry,
    hold: bool,
    /// The last packet that was placed: the window expects the one after it.
    last: Option<PacketId>,
}

impl CapturePlayer {
    /// Opens every capture.
    pub(super) fn open(
        name: &str,
        directory: &Path,
        config: &ReplayConfig,
        format: Format,
        geometry: Geometry,
    ) -> Result<Self, SourceError> {
        let mut captures = Vec::new();
        for path in config.path.0.iter().rev() {
            let path = directory.join(path);
            let capture = Capture::open(&path).map_err(|why| {
                SourceError::new(path.display().to_string(), format!("{why}; correct `path`"))
            })?;
            captures.push((path, capture));
        }
        Ok(Self {
            name: name.to_owned(),
            captures,
            filter: Filter {
                port: config.port,
                destination: config.destination,
            },
            matched: 0,
            filtered: 0,
            timetable: Timetable::new(config.speed),
            to_places: ToPlaces {
                placer: Placer::new(name, format),
                geometry,
                hold: config.hold,
                last: None,
            },
            held: Held {
                waits: false,
                timestamp_ns: 0,
                payload: Vec::with_capacity(LARGEST),
            },
        })
    }

    /// Tells what a capture held beside packets, once it is over.
    fn tell(&self, path: &Path, capture: &Capture) {
        let (name, path) = (&self.name, path.display());
        if capture.is_torn() {
            tracing::warn!(
                "source {name}: {path} ends in the middle of a packet, as after a killed capture"
            );
        }
        let skipped = capture.skipped();
        if skipped.total() > 0 {
            let frames = capture.frames();
            tracing::warn!(
                "source {name}: of {frames} packets in {path} some are no whole UDP datagram: {skipped:?}"
            );
        }
        if self.matched == 0 {
            let filtered = self.filtered;
            tracing::warn!(
                "source {name}: {path} gave no datagram; `port` and `destination` passed over {filtered}"
            );
        }
    }
}

impl ToPlaces {
    /// Places one datagram; false if it must wait for room.
    fn put(&mut self, window: &mut Window, bytes: &[u8], timestamp_ns: u64) -> bool {
        let received = recorded(timestamp_ns);
        let Ok(Parsed::Data(packet)) = self.placer.format_mut().parse(bytes) else {
            // Counted, and told, by the one that does so for packets from the wire.
            self.placer.place(window, [(bytes, received)]);
            return true;
        };
        let id = PacketId {
            unit: packet.unit,
            sub: packet.sub,
        };
        if self.hold
            && let Some(places) = self.wants(id)
            && !window.has_room(places)
        {
            return false;
        }
        let time = self.placer.time(packet.timestamp, received);
        // Within the datagram: the parser has checked its length.
        let outcome = window.batch().put(id, &bytes[packet.payload], time);
        if matches!(
            outcome,
            Outcome::Placed | Outcome::RingFull | Outcome::Duplicate
        ) && self.is_ahead(id, outcome)
        {
            self.last = Some(id);
        }
        true
    }

    /// Whether the window now goes on from `id`: not where it was a copy of what lies in a closed frame.
    fn is_ahead(&self, id: PacketId, outcome: Outcome) -> bool {
        outcome != Outcome::Duplicate || self.ahead(id).is_some_and(|ahead| ahead >= 0)
    }

    /// Places between where the window expects the next packet and `id`.
    fn ahead(&self, id: PacketId) -> Option<i64> {
        let last = self.last?;
        let places = self.geometry.numbering.places_between(last.unit, id)?;
        Some(places - i64::from(last.sub) - 1)
    }

    /// How many places from there must have memory before `id` may be placed; `None` = it needs none.
    ///
    /// Asked for exactly what is wanted: asking makes the window slide as the packet itself would.
    fn wants(&self, id: PacketId) -> Option<u64> {
        let frame = u64::from(self.geometry.places);
        let Some(ahead) = self.ahead(id) else {
            return Some(frame);
        };
        let near = self.geometry.window as u64 * frame;
        match u64::try_from(ahead) {
            Ok(ahead) if ahead < near => Some(ahead + 1),
            Err(_) if ahead.unsigned_abs() <= near => None,
            // Too far away to be believed at first; it opens a new count later, in a frame of its own.
            _ => Some(frame),
        }
    }
}

fn recorded(ns: u64) -> Timestamp {
    if ns == 0 {
        Timestamp::default()
    } else {
        Timestamp {
            ns,
            clock: Clock::Recorded,
        }
    }
}

impl Filler for CapturePlayer {
    fn fill(&mut self, window: &mut Window, _: Duration) -> Result<Polled, SourceError> {
        let now = Instant::now();
        if self.held.waits {
            let ns = self.held.timestamp_ns;
            if ns > 0
                && let Some(wait) = self.timetable.wait(ns, now)
            {
                return Ok(Polled::Until(wait));
            }
            if !self.to_places.put(window, &self.held.payload, ns) {
                return Ok(Polled::Full);
            }
            self.held.waits = false;
        }
        for _ in 0..BATCH {
            let Some((path, capture)) = self.captures.last_mut() else {
                return Ok(Polled::Ended);
            };
            let next = capture.next();
            let next =
                next.map_err(|why| SourceError::new(path.display().to_string(), why.to_string()))?;
            let Some(datagram) = next else {
                if let Some((path, capture)) = self.captures.pop() {
                    self.tell(&path, &capture);
                }
                return Ok(Polled::Busy);
            };
            if !self.filter.takes(&datagram) {
                self.filtered += 1;
                continue;
            }
            self.matched += 1;
            let ns = datagram.timestamp_ns;
            let wait = if ns == 0 {
                None
            } else {
                self.timetable.wait(ns, now)
            };
            if wait.is_none() && self.to_places.put(window, datagram.payload, ns) {
                continue;
            }
            self.held.waits = true;
            self.held.timestamp_ns = ns;
            self.held.payload.clear();
            self.held.payload.extend_from_slice(datagram.payload);
            return Ok(wait.map_or(Polled::Full, Polled::Until));
        }
        Ok(Polled::Busy)
    }
}
