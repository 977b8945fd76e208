//! Runs a source with its own ring on the test's thread, instead of in the runtime.

#![allow(dead_code, reason = "each test uses only some of the items")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod loopback;

use daq_core::config::{Diagnostics, Document};
use daq_core::entry::{Registry, SourceContext, SourceEntry, SourceSpec};
use daq_core::ledger::{ReaderLedger, RingLedger, SourceLedger, SourceReport};
use daq_core::region::{HostOptions, Region};
use daq_core::reorder::{Geometry, ReorderWindow};
use daq_core::ring::{Fill, Reader, Ring, RingOptions};
use daq_core::source::{Filler, Polled, Producers, SourceError};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", text, &mut diagnostics);
    let mut section = document.sections("source").remove(0);
    let _ = section.take_string("driver", &[], &mut diagnostics);
    let _ = section.take_string("ring", &[], &mut diagnostics);
    let spec = (entry.parse)(&mut section, registry, &mut diagnostics);
    if diagnostics.has_errors() {
        return Err(diagnostics.render(document.sources(), false));
    }
    Ok(spec.expect("an error for no source"))
}

/// A source with its ring and a reader.
pub struct Fixture {
    pub fillers: Vec<Box<dyn Filler>>,
    pub windows: Vec<ReorderWindow>,
    pub reader: Reader,
    pub ledger: SourceLedger,
    pub ring_ledger: RingLedger,
    pub geometry: Geometry,
    pub rejections: daq_core::ledger::Rejections,
}

/// Opens `spec` on a ring of `slots` slots of `slot` bytes.
pub fn new_fixture(
    spec: &dyn SourceSpec,
    slot: usize,
    slots: usize,
) -> Result<Fixture, SourceError> {
    let mut geometry = spec
        .geometry(slot)
        .map_err(|problem| SourceError::new("geometry", problem.to_string()))?;
    geometry.window = geometry.window.min(slots - 1);
    let context = SourceContext {
        name: "adc".to_owned(),
        directory: PathBuf::from("."),
        geometry,
        nic: None,
        counts: daq_core::ledger::Counts::default(),
        rejections: daq_core::ledger::Rejections::default(),
    };
    let rejections = context.rejections.clone();
    let Producers::Fillers(fillers) = spec.build(&context)? else {
        panic!("an engine")
    };
    let options = RingOptions {
        packets_per_frame: geometry.packets_per_frame,
        supports_backpressure: spec.supports_backpressure(),
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
    let ring_ledger = RingLedger::default();
    let (ring, producer) = Ring::new(region, options, ring_ledger.clone()).unwrap();
    let reader = ring.attach(true, 16, ReaderLedger::default()).unwrap();
    let ledger = SourceLedger::default();
    let windows = ReorderWindow::new(producer, geometry, fillers.len(), &ledger);
    Ok(Fixture {
        fillers,
        windows,
        reader,
        ledger,
        ring_ledger,
        geometry,
        rejections,
    })
}

impl Fixture {
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

    /// Fills until everything that this thread has sent has been received.
    pub fn fill_all(&mut self) {
        loopback::arrived();
        let (filler, window) = (&mut self.fillers[0], &mut self.windows[0]);
        while filler.fill(window, Duration::ZERO).unwrap() == Polled::Busy {}
    }

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

/// Returns a free port of the loopback interface.
pub fn free_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, loopback::free_port()).into()
}
