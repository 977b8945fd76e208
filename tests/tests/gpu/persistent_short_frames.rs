//! Tests short frames in the middle of the input of a persistent kernel. Sources produce short frames only at the end
//! of a stream, so this test drives the kernel directly, on the simulated driver.

use daq_core::frame::FrameMeta;
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::{self, Device};
use daq_core::gpu::{Backend, Writer};
use daq_core::kernel::{KernelContext, KernelSpec, Side, Stream};
use daq_core::layout::{Samples, Scalar};
use daq_core::notify::Wait;
use daq_core::region::Region;
use daq_core::ring::{Completion, RingOptions, Slice};
use daq_pipelines::kernels::FileKernel;
use daq_testkit::ring::RingFixture;
use daq_testkit::{Simulated, TIMEOUT, this_test};
use std::time::Instant;

const BYTES: usize = 4096;
/// Number of slots of the input and of the output. These numbers and the burst sizes have no common factor.
const SLOTS: [usize; 2] = [16, 11];
const BURSTS: [usize; 6] = [5, 3, 7, 1, 4, 6];
const SOURCE: &str =
    "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {}\n";

/// A ring in GPU memory to which the CPU can store.
struct End {
    ring: RingFixture,
    slots: Slice,
}

impl End {
    fn new(device: &'static Device, slots: usize) -> Self {
        let options = RingOptions::new("ring", slots, BYTES);
        let bytes = options.region_bytes();
        let region = Region::mapped(device, bytes, Writer::Cpu, &[Backend::Gdrapi]).unwrap();
        let ring = RingFixture::in_region(region, options);
        let slots = ring.ring.slice();
        Self { ring, slots }
    }

    /// Publishes frame `i`.
    fn publish(&mut self, i: u64) {
        assert_eq!(
            self.ring.producer.claim(1),
            1,
            "the ring must have a free slot"
        );
        let at = self.ring.producer.open_slot(0).addr() as u64 - self.slots.base;
        let mapping = self.ring.region.mapping().unwrap();
        mapping
            .copy_to(usize::try_from(at).unwrap(), &frame(i))
            .unwrap();
        let meta = FrameMeta {
            sequence: i,
            length: if is_short(i) { BYTES - 2 } else { BYTES },
            ..FrameMeta::default()
        };
        self.ring.producer.describe(0, &meta, std::iter::empty());
        self.ring.producer.publish(1);
    }

    /// Returns the published frames and releases their slots.
    fn take(&mut self) -> Vec<(FrameMeta, Vec<u8>)> {
        let Some(lease) = self.ring.reader.poll(usize::MAX) else {
            return Vec::new();
        };
        let slice = lease.slice().unwrap();
        let mapping = self.ring.region.mapping().unwrap();
        (0..lease.len())
            .map(|i| {
                let at = usize::try_from(slice.address(i) - self.slots.base).unwrap();
                let mut bytes = vec![0; BYTES];
                mapping.copy_from(at, &mut bytes).unwrap();
                (*lease.frame(i).meta(), bytes)
            })
            .collect()
    }
}

/// Returns whether frame `i` is short: single frames, two successive frames, and the first and the last frame of a
/// burst.
fn is_short(i: u64) -> bool {
    i % 13 == 4 || i % 13 == 5 || i.is_multiple_of(17)
}

fn frame(i: u64) -> Vec<u8> {
    (0..BYTES as u64)
        .map(|k| u8::try_from((k * 31 + i * 7 + k / 251) % 251).unwrap())
        .collect()
}

/// The body of the test, which runs in a child process with the simulated driver.
fn body(device: &'static Device) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("same.cu"), SOURCE).unwrap();
    let samples = Samples {
        scalar: Scalar::Int16,
        ..Samples::default()
    };
    let [mut input, mut output] = SLOTS.map(|slots| End::new(device, slots));
    let keys = FileKernel {
        concurrent_frames: Some(3),
        blocks: Some(2),
        ..FileKernel::new("same.cu")
    };
    let mut kernel = keys
        .build(&KernelContext {
            directory: directory.path().to_owned(),
            slots: input.slots,
            output: output.slots,
            dispatch: Dispatch::Persistent,
            ..KernelContext::alone(&samples.layout(BYTES).unwrap(), Side::Cuda(0))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    // The stream is created before the persistent kernel starts. The kernel does not use it.
    let stream = driver::Stream::new(device, 1).unwrap();
    kernel.start().unwrap_or_else(|error| panic!("{error}"));

    let (mut next, mut consumed, mut failed) = (0, 0, 0);
    let mut came = Vec::new();
    for burst in BURSTS.iter().cycle().take(60) {
        let frames = *burst as u64;
        (next..next + frames).for_each(|i| input.publish(i));
        next += frames;
        let lease = input.ring.reader.poll(*burst).unwrap();
        assert_eq!(lease.len(), *burst);
        let mut slots = output.ring.producer.reserve(kernel.outputs(*burst));
        let submitted = kernel
            .run(&lease, &mut slots, Stream::Cuda(&stream))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(submitted.completion, Completion::Credit { .. }));
        lease.retire(submitted.completion);
        let made = slots.submit() as u64;
        assert_eq!(made, submitted.consumed);
        (consumed, failed) = (consumed + submitted.consumed, failed + submitted.failed);
        let start = Instant::now();
        while input.ring.reader.has_in_flight() {
            assert!(start.elapsed() < TIMEOUT, "{:?}", kernel.hang_report());
            input.ring.reader.wait_in_flight(Wait::Adaptive, TIMEOUT);
            input.ring.reader.reap(|_| {});
        }
        output.ring.producer.publish(made);
        came.extend(output.take());
    }
    let whole: Vec<u64> = (0..next).filter(|i| !is_short(*i)).collect();
    assert_eq!(consumed, whole.len() as u64);
    assert_eq!(failed, next - consumed);
    assert!(failed > 40, "{failed}");
    assert_eq!(came.len(), whole.len());
    for ((meta, bytes), i) in came.iter().zip(whole) {
        assert_eq!((meta.sequence, meta.length), (i, BYTES));
        assert!(*bytes == frame(i), "frame {i} has wrong bytes");
    }
}

#[test]
fn persistent_kernel_skips_short_frames_and_keeps_slots() {
    let machine = Simulated::new("").with_compiler().with_gdr("");
    if !machine.alone(this_test!(), body) {
        return;
    }
    let report = machine.report();
    assert_eq!(report["launches"], 1, "{report:#}");
    assert_eq!(report["blocked"], 0, "{report:#}");
    machine.assert_all_released();
}
