//! A ring with one reader.

use daq_core::frame::FrameMeta;
use daq_core::ledger::{ReaderLedger, RingLedger};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Producer, Reader, Ring, RingOptions};
use std::sync::Arc;

/// One frame: its metadata and its bytes.
pub type Record = (FrameMeta, Vec<u8>);

/// A ring, its producer and a reader. [`write`](Self::write) and [`read`](Self::read) also access GPU memory.
#[derive(Debug)]
pub struct RingFixture {
    /// The memory of the slots.
    pub region: Arc<Region>,
    /// The ring.
    pub ring: Ring,
    /// The ring's producer.
    pub producer: Producer,
    /// The reader.
    pub reader: Reader,
    /// The counters of the ring.
    pub ledger: RingLedger,
}

impl RingFixture {
    /// Creates a ring in host memory with at least 2 slots of at least 1 byte, and a reader with a guarantee.
    pub fn host(name: &str, slots: usize, slot_bytes: usize) -> Self {
        Self::new(RingOptions::new(name, slots.max(2), slot_bytes.max(1)))
    }

    /// Creates a ring in host memory, and a reader with a guarantee.
    pub fn new(options: RingOptions) -> Self {
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        Self::in_region(region, options)
    }

    /// Creates a ring in `region`, and a reader with a guarantee.
    pub fn in_region(region: Arc<Region>, options: RingOptions) -> Self {
        Self::with_reader(region, options, true)
    }

    /// Creates a ring in `region`, and a reader with or without a guarantee.
    pub fn with_reader(region: Arc<Region>, options: RingOptions, guarantee: bool) -> Self {
        let (slots, ledger) = (options.slots, RingLedger::default());
        let (ring, producer) = Ring::new(region.clone(), options, ledger.clone()).unwrap();
        let reader = ring
            .attach(guarantee, slots, ReaderLedger::default())
            .unwrap();
        Self {
            region,
            ring,
            producer,
            reader,
            ledger,
        }
    }

    /// Publishes `frames`, which must fit into the free slots. The length in the metadata becomes that of the bytes.
    pub fn write(&mut self, frames: &[Record]) {
        let base = self.region.address().as_ptr() as u64;
        let mut slots = self.producer.reserve(frames.len());
        assert_eq!(slots.remaining(), frames.len(), "the ring is full");
        for (meta, bytes) in frames {
            let at = usize::try_from(slots.slice().address(0) - base).unwrap();
            match self.region.memory() {
                Some(memory) => memory.write(at, bytes).unwrap(),
                None => slots.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes),
            }
            slots.finish(FrameMeta {
                length: bytes.len(),
                ..*meta
            });
        }
        slots.publish();
    }

    /// Returns all published frames, and releases their slots.
    pub fn read(&mut self) -> Vec<Record> {
        let base = self.region.address().as_ptr() as u64;
        let Some(lease) = self.reader.poll(usize::MAX) else {
            return Vec::new();
        };
        let record = |i| {
            let frame = lease.frame(i);
            let length = frame.meta().length;
            let Some(memory) = self.region.memory() else {
                return (*frame.meta(), frame.bytes().unwrap()[..length].to_vec());
            };
            let mut bytes = vec![0; length];
            let at = usize::try_from(lease.slice().unwrap().address(i) - base).unwrap();
            memory.read(at, &mut bytes).unwrap();
            (*frame.meta(), bytes)
        };
        (0..lease.len()).map(record).collect()
    }
}
