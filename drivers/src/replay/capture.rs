//! Places the datagrams of captures in the window.

use super::keys::ReplayConfig;
use super::offload;
use super::timetable::Timetable;
use crate::packet::datagram::{Depacketizer, split_message};
use crate::packet::pcap::{Capture, Filter, Skipped};
use crate::packet::{Flow, Format};
use crate::sender::MIN_ALTERNATIONS;
use daq_core::entry::SourceContext;
use daq_core::frame::{Clock, Timestamp};
use daq_core::ledger::{Playback, Rejections};
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of datagrams per call.
const BATCH: usize = 64;
/// Maximum size of a UDP payload in bytes.
const MAX_UDP_PAYLOAD: usize = 1 << 16;

/// Reasons for packets of a capture without a readable datagram: their names for counters, and the messages.
const CUT_SHORT: (&str, &str) = (
    "cut_short",
    "the capture contains only the first bytes of the packet: capture whole packets, for example with `tcpdump -s 0`",
);
const UNKNOWN_LINK: (&str, &str) = (
    "unknown_link",
    "the link layer of the packet is not supported: capture on an Ethernet interface, or with `tcpdump -i any`",
);
const MALFORMED: (&str, &str) = (
    "malformed",
    "the length fields of the packet contradict each other: check the program that sent or captured it",
);

/// Replays captures one after another.
pub(super) struct CapturePlayer {
    /// Name of the source, for messages.
    name: String,
    paths: Vec<PathBuf>,
    /// Index of the capture being read, and its reader until it ends.
    present: usize,
    capture: Option<Capture>,
    filter: Filter,
    /// Number of datagrams in this pass that match the filter, and number of datagrams that do not match.
    matched: u64,
    filtered: u64,
    /// The packets of the current capture that were counted as rejected.
    counted: Skipped,
    rejections: Rejections,
    /// Number of records of the current capture that contained several datagrams.
    split: u64,
    repeats: bool,
    is_first_pass: bool,
    timetable: Timetable,
    splitter: Splitter,
    /// Part of a record that waits until it is due or a slot is free.
    held: WaitingRecord,
    /// The size of each capture in bytes.
    sizes: Vec<u64>,
    playback: Playback,
}

#[derive(Debug)]
struct WaitingRecord {
    waits: bool,
    timestamp_ns: u64,
    flow: Flow,
    payload: Vec<u8>,
    /// Size in bytes of each datagram in the record except the last.
    segment: usize,
}

struct Splitter {
    depacketizer: Depacketizer,
    /// Whether the replay waits for free slots.
    backpressure: bool,
}

impl CapturePlayer {
    /// Opens the first capture, and checks that the other captures can be opened.
    pub(super) fn open(
        context: &SourceContext,
        config: &ReplayConfig,
        format: Format,
    ) -> Result<Self, SourceError> {
        let (name, directory) = (&context.name, &context.directory);
        let paths = config.path.0.iter().map(|path| directory.join(path));
        let paths: Vec<_> = paths.collect();
        let sizes = paths.iter().map(std::fs::metadata);
        let sizes: Vec<_> = sizes
            .map(|file| file.map_or(0, |file| file.len()))
            .collect();
        context
            .playback
            .set_recording(sizes.iter().sum(), config.repeats);
        let filter = Filter {
            port: config.port,
            address: config.destination,
        };
        for path in paths.iter().skip(1) {
            open(path, filter)?;
        }
        let first = paths.first().map(|path| open(path, filter));
        Ok(Self {
            name: name.to_owned(),
            capture: first.transpose()?,
            paths,
            present: 0,
            filter,
            matched: 0,
            filtered: 0,
            counted: Skipped::default(),
            rejections: context.rejections.clone(),
            split: 0,
            repeats: config.repeats,
            is_first_pass: true,
            timetable: Timetable::new(config.speed),
            splitter: Splitter {
                depacketizer: Depacketizer::new(name, format)
                    .with_rejections(context.rejections.clone()),
                backpressure: config.backpressure,
            },
            held: WaitingRecord {
                waits: false,
                timestamp_ns: 0,
                flow: Flow::default(),
                payload: Vec::with_capacity(MAX_UDP_PAYLOAD),
                segment: MAX_UDP_PAYLOAD,
            },
            sizes,
            playback: context.playback.clone(),
        })
    }

    /// Places the packets stored during format detection. Returns false if some packets must wait for a free slot.
    fn flush(&mut self, window: &mut ReorderWindow) -> bool {
        let backpressure = self.splitter.backpressure;
        self.splitter.depacketizer.flush(window, backpressure)
    }

    /// Reports how much of all captures was read.
    fn report_position(&self) {
        let before: u64 = self.sizes.iter().take(self.present).sum();
        let current = self.capture.as_ref().map_or(0, Capture::position);
        self.playback.set_bytes(before + current);
    }

    /// Continues with the next capture or the next pass. Returns false at the end.
    fn next_capture(&mut self, window: &mut ReorderWindow) -> Result<bool, SourceError> {
        if let Some(capture) = self.capture.take()
            && self.is_first_pass
        {
            self.log_summary(&self.paths[self.present], &capture);
        }
        self.present += 1;
        if self.present >= self.paths.len() {
            // If one pass contains no matching datagram, no later pass will.
            if !self.repeats || self.matched == 0 {
                self.report_position();
                return Ok(false);
            }
            (self.present, self.matched, self.is_first_pass) = (0, 0, false);
            self.timetable.restart();
            window.restart();
        }
        self.split = 0;
        self.counted = Skipped::default();
        self.capture = Some(open(&self.paths[self.present], self.filter)?);
        Ok(true)
    }

    /// Counts the packets of the current capture that were read since the last call and have no readable datagram as rejected.
    fn count_rejected(&mut self, window: &ReorderWindow) {
        let Some(capture) = &self.capture else {
            return;
        };
        let (now, before) = (capture.rejected(), self.counted);
        if now == before {
            return;
        }
        self.counted = now;
        let counts = [
            (CUT_SHORT, now.cut_short - before.cut_short),
            (UNKNOWN_LINK, now.unknown_link - before.unknown_link),
            (MALFORMED, now.malformed - before.malformed),
        ];
        let path = self.paths[self.present].display();
        for ((name, message), packets) in counts.into_iter().filter(|(_, packets)| *packets > 0) {
            window.reject(packets);
            self.rejections
                .count(name, packets, format_args!("{path}: {message}"));
        }
    }

    /// Logs a summary of a finished capture.
    fn log_summary(&self, path: &Path, capture: &Capture) {
        let (name, path) = (&self.name, path.display());
        if capture.is_torn() {
            tracing::warn!(
                "source {name}: {path} ends in the middle of a packet, as if the capture was interrupted"
            );
        }
        let skipped = capture.skipped();
        if skipped.total() > 0 {
            let frames = capture.frames();
            tracing::warn!(
                "source {name}: some of {frames} packets in {path} are not complete UDP datagrams: {skipped:?}"
            );
        }
        if self.split > 0 {
            let (split, frames) = (self.split, capture.frames());
            tracing::info!(
                "source {name}: {split} of {frames} packets in {path} contain several datagrams each (segmentation offload); \
                 they were split, and all datagrams of one packet have the same timestamp"
            );
        }
        if self.matched == 0 {
            let filtered = self.filtered;
            tracing::warn!(
                "source {name}: {path} contains no matching datagram; `port` and `destination` excluded {filtered}"
            );
        }
    }
}

impl Splitter {
    /// Places the datagrams of a record, each of `segment` bytes except the last. Returns the number of bytes that must
    /// wait for a slot.
    fn put(
        &mut self,
        window: &mut ReorderWindow,
        bytes: &[u8],
        segment: usize,
        (ns, flow): (u64, Flow),
    ) -> usize {
        let received = recorded(ns);
        self.depacketizer.use_flow(flow);
        if !self.backpressure {
            let datagrams = split_message(bytes, segment).map(|datagram| (datagram, received));
            self.depacketizer.place(window, datagrams);
            return 0;
        }
        let mut rest = bytes.len();
        for datagram in split_message(bytes, segment) {
            if !self
                .depacketizer
                .place_with_room(window, datagram, received)
            {
                return rest;
            }
            rest -= datagram.len();
        }
        0
    }
}

fn open(path: &Path, filter: Filter) -> Result<Capture, SourceError> {
    let capture = Capture::open(path).map_err(|why| {
        SourceError::new(path.display().to_string(), format!("{why}; correct `path`"))
    })?;
    Ok(capture.with_filter(filter))
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
        self.report_position();
        let now = Instant::now();
        if self.held.waits {
            let ns = self.held.timestamp_ns;
            if ns > 0
                && let Some(wait) = self.timetable.wait(ns, now)
            {
                return Ok(Polled::Until(wait));
            }
            let WaitingRecord {
                payload,
                segment,
                flow,
                ..
            } = &mut self.held;
            let rest = self.splitter.put(window, payload, *segment, (ns, *flow));
            payload.drain(..payload.len() - rest);
            if rest > 0 {
                return Ok(Polled::Full);
            }
            self.held.waits = false;
        }
        for _ in 0..BATCH {
            self.count_rejected(window);
            let Some(capture) = &mut self.capture else {
                return Ok(Polled::Ended);
            };
            let next = capture.next().map_err(|why| {
                let path = self.paths[self.present].display().to_string();
                SourceError::new(path, why.to_string())
            })?;
            let Some(datagram) = next else {
                self.count_rejected(window);
                let is_last = self.present + 1 >= self.paths.len();
                if is_last && !self.flush(window) {
                    return Ok(Polled::Full);
                }
                let goes_on = self.next_capture(window)?;
                return Ok(if goes_on { Polled::Busy } else { Polled::Ended });
            };
            if !self.filter.matches(datagram.destination) {
                self.filtered += 1;
                continue;
            }
            self.matched += 1;
            let payload = datagram.payload;
            let split = offload::segment(self.splitter.depacketizer.format(), &datagram);
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
            let flow = Flow {
                source: Some(datagram.source),
                destination: Some(datagram.destination),
            };
            let wait = if ns == 0 {
                None
            } else {
                self.timetable.wait(ns, now)
            };
            let rest = match wait {
                None => self.splitter.put(window, payload, segment, (ns, flow)),
                Some(_) => payload.len(),
            };
            if rest == 0 && wait.is_none() {
                continue;
            }
            self.held.waits = true;
            (self.held.timestamp_ns, self.held.flow) = (ns, flow);
            self.held.payload.clear();
            let rest = &payload[payload.len() - rest..];
            self.held.payload.extend_from_slice(rest);
            self.held.segment = segment;
            return Ok(wait.map_or(Polled::Full, Polled::Until));
        }
        Ok(Polled::Busy)
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.splitter.depacketizer.flush(window, false);
        if window.alternations() >= MIN_ALTERNATIONS {
            tracing::warn!(
                "source {}: packet numbers alternate between two streams, and each change begins an epoch; select one stream with \
                 `port` and `destination`, or configure a source for each",
                self.name
            );
        }
    }
}
