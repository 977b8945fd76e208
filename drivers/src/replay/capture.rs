//! Brings the datagrams of captures to their places.

use super::config::ReplayConfig;
use super::offload;
use super::timetable::Timetable;
use crate::packet::Format;
use crate::packet::datagram::{Placer, packets};
use crate::packet::pcap::{Capture, Datagram};
use daq_core::frame::{Clock, Timestamp};
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
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
    paths: Vec<PathBuf>,
    /// Which of them is being read; its packets, until the end.
    present: usize,
    capture: Option<Capture>,
    filter: Filter,
    /// Datagrams of this pass that were meant, and all others.
    matched: u64,
    filtered: u64,
    /// Records of the present capture that held several datagrams.
    split: u64,
    repeats: bool,
    is_first_pass: bool,
    timetable: Timetable,
    to_places: ToPlaces,
    /// What waits for its time or for room of a record.
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
    /// Bytes of each datagram in it but the last.
    segment: usize,
}

struct ToPlaces {
    placer: Placer,
    /// Whether datagrams wait for slots.
    hold: bool,
}

impl CapturePlayer {
    /// Opens the first capture, and looks whether the others can be opened.
    pub(super) fn open(
        name: &str,
        directory: &Path,
        config: &ReplayConfig,
        format: Format,
    ) -> Result<Self, SourceError> {
        let paths = config.path.0.iter().map(|path| directory.join(path));
        let paths: Vec<_> = paths.collect();
        for path in paths.iter().skip(1) {
            open(path)?;
        }
        Ok(Self {
            name: name.to_owned(),
            capture: paths.first().map(|path| open(path)).transpose()?,
            paths,
            present: 0,
            filter: Filter {
                port: config.port,
                destination: config.destination,
            },
            matched: 0,
            filtered: 0,
            split: 0,
            repeats: config.repeats,
            is_first_pass: true,
            timetable: Timetable::new(config.speed),
            to_places: ToPlaces {
                placer: Placer::new(name, format),
                hold: config.hold,
            },
            held: Held {
                waits: false,
                timestamp_ns: 0,
                payload: Vec::with_capacity(LARGEST),
                segment: LARGEST,
            },
        })
    }

    /// Places what was kept while the format was learned; false if some of it must wait for room.
    fn flush(&mut self, window: &mut ReorderWindow) -> bool {
        let hold = self.to_places.hold;
        self.to_places.placer.flush(window, hold)
    }

    /// Goes on with the next capture, or from the start again; false at the end.
    fn go_on(&mut self, window: &mut ReorderWindow) -> Result<bool, SourceError> {
        if let Some(capture) = self.capture.take()
            && self.is_first_pass
        {
            self.tell(&self.paths[self.present], &capture);
        }
        self.present += 1;
        if self.present >= self.paths.len() {
            // After a pass that brought nothing no other would bring anything.
            if !self.repeats || self.matched == 0 {
                return Ok(false);
            }
            (self.present, self.matched, self.is_first_pass) = (0, 0, false);
            self.timetable.restart();
            window.restart();
        }
        self.split = 0;
        self.capture = Some(open(&self.paths[self.present])?);
        Ok(true)
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
        if self.split > 0 {
            let (split, frames) = (self.split, capture.frames());
            tracing::info!(
                "source {name}: {split} of {frames} packets in {path} hold several datagrams each (segmentation offload); \
                 they were split, and the datagrams of one packet have the same time"
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
    /// Places the datagrams of a record, of `segment` bytes each but the last; returns the bytes that must wait for room.
    fn put(&mut self, window: &mut ReorderWindow, bytes: &[u8], segment: usize, ns: u64) -> usize {
        let received = recorded(ns);
        if !self.hold {
            let datagrams = packets(bytes, segment).map(|datagram| (datagram, received));
            self.placer.place(window, datagrams);
            return 0;
        }
        let mut rest = bytes.len();
        for datagram in packets(bytes, segment) {
            if !self.placer.place_with_room(window, datagram, received) {
                return rest;
            }
            rest -= datagram.len();
        }
        0
    }
}

fn open(path: &Path) -> Result<Capture, SourceError> {
    Capture::open(path).map_err(|why| {
        SourceError::new(path.display().to_string(), format!("{why}; correct `path`"))
    })
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
    fn fill(&mut self, window: &mut ReorderWindow, _: Duration) -> Result<Polled, SourceError> {
        let now = Instant::now();
        if self.held.waits {
            let ns = self.held.timestamp_ns;
            if ns > 0
                && let Some(wait) = self.timetable.wait(ns, now)
            {
                return Ok(Polled::Until(wait));
            }
            let Held {
                payload, segment, ..
            } = &mut self.held;
            let rest = self.to_places.put(window, payload, *segment, ns);
            payload.drain(..payload.len() - rest);
            if rest > 0 {
                return Ok(Polled::Full);
            }
            self.held.waits = false;
        }
        for _ in 0..BATCH {
            let Some(capture) = &mut self.capture else {
                return Ok(Polled::Ended);
            };
            let next = capture.next().map_err(|why| {
                let path = self.paths[self.present].display().to_string();
                SourceError::new(path, why.to_string())
            })?;
            let Some(datagram) = next else {
                let is_last = self.present + 1 >= self.paths.len();
                if is_last && !self.flush(window) {
                    return Ok(Polled::Full);
                }
                let goes_on = self.go_on(window)?;
                return Ok(if goes_on { Polled::Busy } else { Polled::Ended });
            };
            if !self.filter.takes(&datagram) {
                self.filtered += 1;
                continue;
            }
            self.matched += 1;
            let payload = datagram.payload;
            let split = offload::segment(self.to_places.placer.format(), &datagram);
            let segment = match split {
                Ok(segment) => segment,
                Err(why) => {
                    let path = self.paths[self.present].display().to_string();
                    let number = capture.frames();
                    return Err(SourceError::new(path, format!("packet {number} {why}")));
                }
            };
            self.split += u64::from(segment < payload.len());
            let ns = datagram.timestamp_ns;
            let wait = if ns == 0 {
                None
            } else {
                self.timetable.wait(ns, now)
            };
            let rest = match wait {
                None => self.to_places.put(window, payload, segment, ns),
                Some(_) => payload.len(),
            };
            if rest == 0 && wait.is_none() {
                continue;
            }
            self.held.waits = true;
            self.held.timestamp_ns = ns;
            self.held.payload.clear();
            let rest = &payload[payload.len() - rest..];
            self.held.payload.extend_from_slice(rest);
            self.held.segment = segment;
            return Ok(wait.map_or(Polled::Full, Polled::Until));
        }
        Ok(Polled::Busy)
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.to_places.placer.flush(window, false);
    }
}
