//! Runs a source with its own ring on the test's thread, instead of in the runtime.

use crate::loopback;
use crate::ring::RingFixture;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Document};
use daq_core::entry::{Registry, SourceContext, SourceEntry, SourceSpec};
use daq_core::ledger::{
    CounterFile, Counts, PartLedgers, Playback, Rejections, RingLedger, SourceLedger, SourceReport,
};
use daq_core::region::{HostOptions, Region};
use daq_core::reorder::{Geometry, ReorderWindow};
use daq_core::ring::{Fill, Reader, RingOptions};
use daq_core::source::{Filler, Obstacle, Polled, Producers, SourceError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns the checked source of a configuration's first section, which has only keys of the source, or all diagnostics.
pub fn parse(entry: &SourceEntry, text: &str) -> Result<Box<dyn SourceSpec>, String> {
    parse_after(&Registry::default(), entry, text, &[])
}

/// Returns the checked source of a configuration's first section, or all diagnostics.
pub fn spec(entry: &SourceEntry, text: &str) -> Result<Box<dyn SourceSpec>, String> {
    spec_in(&Registry::default(), entry, text)
}

/// As [`spec`], in a program with the entries of `registry`.
pub fn spec_in(
    registry: &Registry,
    entry: &SourceEntry,
    text: &str,
) -> Result<Box<dyn SourceSpec>, String> {
    parse_after(registry, entry, text, &["driver", "ring"])
}

/// Removes the keys `others` of the runtime before the source reads its section.
fn parse_after(
    registry: &Registry,
    entry: &SourceEntry,
    text: &str,
    others: &[&str],
) -> Result<Box<dyn SourceSpec>, String> {
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let mut section = document.sections("source").remove(0);
    for key in others {
        let _ = section.take_string(key, &[], &mut diagnostics);
    }
    let spec = (entry.parse)(&mut section, registry, &mut diagnostics);
    if diagnostics.has_errors() {
        return Err(diagnostics.render(document.sources(), false));
    }
    Ok(spec.expect("an error for no source"))
}

/// Returns the context of the source `adc` with frames of `geometry`.
pub fn context(geometry: Geometry) -> SourceContext {
    SourceContext {
        name: "adc".to_owned(),
        directory: ".".into(),
        geometry,
        beside: Vec::new(),
        nic: None,
        counts: Counts::default(),
        rejections: Rejections::default(),
        playback: Playback::default(),
        obstacle: Obstacle::default(),
    }
}

/// A source with its ring and a reader.
#[allow(missing_debug_implementations, reason = "fillers have none")]
pub struct SourceFixture {
    /// The source's fillers, one per thread.
    pub fillers: Vec<Box<dyn Filler>>,
    /// The windows of the fillers.
    pub windows: Vec<ReorderWindow>,
    /// The reader, which has a guarantee.
    pub reader: Reader,
    /// The counters of the source.
    pub ledger: SourceLedger,
    /// The counters of the ring.
    pub ring_ledger: RingLedger,
    /// The division of frames into packets.
    pub geometry: Geometry,
    /// The reasons of rejected packets.
    pub rejections: Rejections,
    /// The position in a recording.
    pub playback: Playback,
}

/// Opens `spec` on a ring of `slots` slots of `slot` bytes.
pub fn new_fixture(
    spec: &dyn SourceSpec,
    slot: usize,
    slots: usize,
) -> Result<SourceFixture, SourceError> {
    new_fixture_beside(spec, slot, slots, Vec::new())
}

/// As [`new_fixture`], beside sources that claim `beside`.
pub fn new_fixture_beside(
    spec: &dyn SourceSpec,
    slot: usize,
    slots: usize,
    beside: Vec<Claim>,
) -> Result<SourceFixture, SourceError> {
    let facts = spec.facts();
    let frames = spec.frames(slot);
    let mut geometry = frames
        .map_err(|problem| SourceError::new("frames", problem.to_string()))?
        .geometry;
    geometry.window = geometry.window.min(slots - 1);
    let context = SourceContext {
        beside,
        ..context(geometry)
    };
    let (rejections, playback) = (context.rejections.clone(), context.playback.clone());
    let Producers::Fillers(fillers) = spec.build(&context)? else {
        panic!("an engine")
    };
    let options = RingOptions {
        packets_per_frame: geometry.packets_per_frame,
        supports_backpressure: facts.supports_backpressure,
        fill: Fill::byte(0xee),
        ..RingOptions::new("raw", slots, slot)
    };
    let region = Region::host(
        options.region_bytes(),
        HostOptions {
            huge: true,
            ..HostOptions::default()
        },
    )
    .unwrap();
    let RingFixture {
        producer,
        reader,
        ledger: ring_ledger,
        ..
    } = RingFixture::in_region(region, options);
    let ledger = SourceLedger {
        parts: PartLedgers::on(&CounterFile::in_memory(), "adc", &facts.parts).unwrap(),
        ..SourceLedger::default()
    };
    let windows = ReorderWindow::new(producer, geometry, fillers.len(), &ledger);
    Ok(SourceFixture {
        fillers,
        windows,
        reader,
        ledger,
        ring_ledger,
        geometry,
        rejections,
        playback,
    })
}

impl SourceFixture {
    /// Fills on this thread while `on` returns true. Only the first filler runs.
    pub fn fill_while(&mut self, mut on: impl FnMut(&SourceLedger) -> bool) {
        let (filler, window) = (&mut self.fillers[0], &mut self.windows[0]);
        while on(&self.ledger) {
            let polled = filler.fill(window, Duration::from_millis(20)).unwrap();
            window.tick(Instant::now());
            if polled == Polled::Ended {
                break;
            }
        }
    }

    /// Fills once, without waiting.
    pub fn fill(&mut self) -> Polled {
        self.fillers[0]
            .fill(&mut self.windows[0], Duration::ZERO)
            .unwrap()
    }

    /// Fills until everything that this thread has sent has been received.
    pub fn fill_all(&mut self) {
        loopback::arrived();
        while self.fill() == Polled::Busy {}
    }

    /// Calls `send` while each filler runs on a thread of its own, and then ends the stream. All that `send` has sent must
    /// have been received when it returns.
    pub fn fill_by_threads(&mut self, send: impl FnOnce()) {
        self.fill_at(Instant::now, send);
    }

    /// As [`fill_by_threads`](Self::fill_by_threads), while time stands still for the windows. So no frame is closed because this
    /// process was delayed.
    pub fn fill_without_time(&mut self, send: impl FnOnce()) {
        let now = Instant::now();
        self.fill_at(|| now, send);
    }

    fn fill_at(&mut self, now: impl Fn() -> Instant + Sync, send: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        let others = AtomicUsize::new(self.fillers.len() - 1);
        std::thread::scope(|scope| {
            let (stop, others, now) = (&stop, &others, &now);
            for (filler, window) in self.fillers.iter_mut().zip(&mut self.windows) {
                scope.spawn(move || {
                    while !stop.load(Ordering::Acquire) {
                        filler.fill(window, Duration::from_micros(200)).unwrap();
                        window.tick(now());
                    }
                    // The sequencer must tick until the other threads have ended, as in the runtime.
                    if window.is_sequencer() {
                        while others.load(Ordering::Acquire) > 0 {
                            window.tick(now());
                        }
                    } else {
                        others.fetch_sub(1, Ordering::AcqRel);
                    }
                });
            }
            loopback::stay();
            send();
            stop.store(true, Ordering::Release);
        });
        self.windows[0].finish();
    }

    /// Returns the state of the source's counters.
    pub fn report(&self) -> SourceReport {
        SourceReport::of(&self.ledger)
    }

    /// Returns all frames that are ready: number, epoch, bytes, and which packets arrived.
    pub fn read(&mut self) -> Vec<(u64, u32, Vec<u8>, Vec<bool>)> {
        let mut frames = Vec::new();
        while let Some(lease) = self.reader.poll(1) {
            let frame = lease.frame(0);
            let meta = *frame.meta();
            let present = (0..meta.packets_per_frame)
                .map(|place| frame.present().is_present(place))
                .collect();
            frames.push((
                meta.sequence,
                meta.epoch,
                frame.bytes().unwrap()[..meta.length].to_vec(),
                present,
            ));
        }
        frames
    }
}
