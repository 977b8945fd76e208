//! Tests copies between rings on two GPUs with the simulated driver, which rejects a GPU's access to the memory of
//! another GPU unless the access was granted.

use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{Backing, Device, Identity, Memory, PeerLink};
use daq_core::ledger::{CopyLedger, ReaderLedger, RingLedger};
use daq_core::notify::{Notifier, Wait};
use daq_core::region::{Placement, Region};
use daq_core::ring::{Reader, Ring, RingOptions};
use daq_core::staging::{
    CopyEngineThread, CopyMethod, CopyThread, Rates, RingCopy, Route, StagingError, Step, between,
    on_stream,
};
use daq_testkit::ring::RingFixture;
use daq_testkit::{Simulated, assert_contains, this_test};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: usize = 16;
const SLOT: usize = 4096;
const DEPTH: usize = 4;
/// Time after which a test fails instead of waiting for ever.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A ring on GPU 0, a reader of the ring on GPU 1 that the frames are copied to, and the thread that copies.
struct Pair {
    from: RingFixture,
    to: (Arc<Region>, Reader),
    copies: CopyEngineThread,
    ledger: CopyLedger,
}

impl Pair {
    /// Creates the rings. `method` creates the method that copies from the first to the second region.
    fn new(method: impl FnOnce(&Arc<Region>, &Arc<Region>) -> Box<dyn CopyMethod>) -> Self {
        let bell = Arc::new(Notifier::default());
        let options = |name: &str| RingOptions {
            notifiers: vec![bell.clone()],
            ..RingOptions::new(name, SLOTS, SLOT)
        };
        let bytes = options("").region_bytes();
        let region = |gpu| Region::cuda(Device::open(gpu).unwrap(), bytes).unwrap();
        let (from, to) = (
            RingFixture::in_region(region(0), options("from")),
            region(1),
        );
        let (target, producer) =
            Ring::new(to.clone(), options("to"), RingLedger::default()).unwrap();
        let end = target.attach(true, SLOTS, ReaderLedger::default()).unwrap();
        let reader = from.ring.attach(true, 1, ReaderLedger::default()).unwrap();
        let tuning = Rates::assumed_between_gpus().tuning_for(None, Some(DEPTH));
        let mut copies = CopyEngineThread::new(method(&from.region, &to), tuning, bell.clone());
        let ledger = CopyLedger::default();
        copies.add(RingCopy::new(
            reader,
            producer,
            ledger.clone(),
            tuning.chunk,
        ));
        Self {
            from,
            to: (to, end),
            copies,
            ledger,
        }
    }

    /// Publishes `count` frames from number `first` on. Their lengths repeat after `lengths`.
    fn write(&mut self, first: u64, count: u64, lengths: &[usize]) -> Vec<Vec<u8>> {
        let frames: Vec<_> = (first..first + count)
            .zip(lengths.iter().cycle())
            .map(|(number, length)| {
                let bytes: Vec<u8> = (0..*length)
                    .map(|i| (i as u64 * 31 + number * 7).to_le_bytes()[0])
                    .collect();
                (FrameMeta::whole(number, *length), bytes)
            })
            .collect();
        self.from.write(&frames);
        // The second reader of the ring is not needed here.
        self.from.reader.discard_pending();
        frames.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Copies until `count` frames have arrived, and returns their bytes.
    fn read(&mut self, count: usize) -> Result<Vec<Vec<u8>>, StagingError> {
        let mut frames = Vec::new();
        let started = Instant::now();
        while frames.len() < count {
            assert!(
                started.elapsed() < TIMEOUT,
                "{} frames arrived",
                frames.len()
            );
            if self.copies.step()? == Step::Idle {
                self.copies.wait(Wait::Adaptive, Duration::from_millis(1));
            }
            let (region, reader) = &mut self.to;
            let base = region.address().as_ptr() as u64;
            let Some(lease) = reader.poll(usize::MAX) else {
                continue;
            };
            for i in 0..lease.len() {
                let mut bytes = vec![0; lease.frame(i).meta().length];
                let at = usize::try_from(lease.slice().unwrap().address(i) - base).unwrap();
                region.memory().unwrap().read(at, &mut bytes).unwrap();
                frames.push(bytes);
            }
        }
        Ok(frames)
    }
}

fn granted(from: &Arc<Region>, to: &Arc<Region>) -> Box<dyn CopyMethod> {
    between(from, to, DEPTH).unwrap().unwrap()
}

#[test]
fn frames_are_copied_between_gpus_unchanged() {
    let simulated = Simulated::new("gpus=2,latency=100");
    let is_parent = simulated.alone(this_test!(), |_| {
        let mut pair = Pair::new(granted);
        let mut first = 0;
        // Full frames are copied together; short frames are copied as rows.
        for lengths in [&[SLOT][..], &[SLOT / 4, 100, 1, SLOT / 2], &[0, 1, SLOT]] {
            for count in [1, 3, 8, 12, 7] {
                let written = pair.write(first, count, lengths);
                assert_eq!(pair.read(written.len()).unwrap(), written, "{lengths:?}");
                first += count;
            }
        }
        assert_eq!(pair.ledger.started.get(), first);
        assert_eq!(pair.ledger.frames.get(), first);
        assert_eq!(pair.ledger.failed.get(), 0);
        assert!(pair.ledger.copies.get() < first, "bursts are combined");
    });
    if is_parent {
        let copied = &simulated.report()["copied"];
        assert!(copied["peer"].as_u64().unwrap() > 100_000, "{copied}");
        assert_eq!(copied["device_to_device"], 0, "{copied}");
        assert_eq!(simulated.leaks(), [""; 0]);
    }
}

#[test]
fn copy_without_access_fails_and_counts_frames() {
    let simulated = Simulated::new("gpus=2");
    let _ = simulated.alone(this_test!(), |_| {
        let route = Route::between(Placement::Cuda(0), Placement::Cuda(1)).unwrap();
        let mut pair = Pair::new(|_, _| on_stream(route, DEPTH).unwrap());
        pair.write(0, 5, &[SLOT]);
        let error = pair.read(5).unwrap_err().to_string();
        assert_contains!(error => "copying from cuda:0 to cuda:1", "CUDA_ERROR_INVALID_VALUE");
        let Pair {
            from,
            mut copies,
            ledger,
            ..
        } = pair;
        // The ring ends, so that the copies can end.
        drop(from);
        let started = Instant::now();
        while !copies.discard() {
            assert!(started.elapsed() < TIMEOUT, "{ledger:?}");
            std::thread::yield_now();
        }
        assert_eq!(ledger.frames.get(), 0);
        assert_eq!(ledger.started.get(), ledger.failed.get());
    });
}

#[test]
fn access_is_refused_between_unconnected_gpus_and_for_plain_memory() {
    let simulated = Simulated::new("gpus=3,no-peer=0:1");
    let _ = simulated.alone(this_test!(), |device| {
        let gpus = Identity::all().unwrap();
        assert_eq!(gpus[0].link_to(&gpus[1]), None);
        assert_eq!(gpus[0].link_to(&gpus[0]), None);
        assert_eq!(gpus[0].link_to(&gpus[2]), Some(PeerLink::NvLink));
        let region = |gpu| Region::cuda(Device::open(gpu).unwrap(), SLOT).unwrap();
        let error = between(&region(0), &region(1), 1).unwrap_err().to_string();
        assert_contains!(error => "granting cuda:0 access to memory of cuda:1");
        let other = Device::open(2).unwrap();
        let plain = Memory::with(other, SLOT, Backing::Plain).unwrap();
        let error = plain.grant(device).unwrap_err().to_string();
        assert_contains!(error => "granting cuda:0 access to memory of cuda:2", "a plain allocation");
    });
}

#[test]
fn peers_over_pcie_are_detected() {
    let simulated = Simulated::new("gpus=2,nvlink=0");
    let _ = simulated.alone(this_test!(), |_| {
        let gpus = Identity::all().unwrap();
        assert_eq!(gpus[0].link_to(&gpus[1]), Some(PeerLink::Pcie));
    });
}

#[test]
fn memory_without_virtual_addresses_has_no_peers() {
    let simulated = Simulated::new("gpus=2,vmm=0");
    let _ = simulated.alone(this_test!(), |_| {
        let gpus = Identity::all().unwrap();
        assert_eq!(gpus[0].link_to(&gpus[1]), None);
    });
}
