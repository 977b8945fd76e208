//! Creates the rings and the kernel under test.

use super::round_trips::Ends;
use crate::cores::Cores;
use crate::figures::times;
use crate::sys::upload::Upload;
use crate::{BenchError, Common};
use daq_core::frame::FrameMeta;
use daq_core::gpu::Dispatch;
use daq_core::gpu::driver::Device;
use daq_core::gpu::{Backend, Writer};
use daq_core::kernel::{Kernel, KernelContext, KernelSpec, Side, Stream};
use daq_core::layout::{Axis, Layout, Order, Scalar};
use daq_core::ledger::{CopyLedger, KernelLedger, ReaderLedger, RingLedger};
use daq_core::notify::{Notifier, Wait};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Ring, RingOptions};
use daq_core::staging::RingCopy;
use daq_diagnostics::fixture::Environment;
use daq_pipelines::kernels::file::{FileKernel, FrameKeys};
use daq_pipelines::runtime::Failure;
use daq_pipelines::runtime::control::Control;
use daq_pipelines::runtime::kernel::{Parts, Runner};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of frames committed and submitted in one batch.
pub(super) const MAX_BATCH: usize = 256;
/// Number of warm-up frames per method, which are not measured.
pub(super) const WARM_UP: usize = 500;
/// Distance between two results in bytes.
const RESULT_STRIDE: usize = 64;
/// Number of slots of each ring.
pub(super) const SLOTS: usize = 4096;
/// Number of frame bytes that one thread reads with one load instruction.
const BYTES_PER_THREAD: usize = 16;
/// Maximum time to wait for a result.
pub(super) const RESULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Rings and their endpoints, as the plan creates them for a kernel behind a socket source.
pub(super) struct Fixture {
    pub(super) ends: Ends,
    /// The output ring, whose results are verified.
    pub(super) output: Output,
    pub(super) runner: Runner,
    pub(super) control: Arc<Control>,
}

/// Returns the number of threads of a block for frames of `frame` bytes.
pub(super) fn threads(frame: usize) -> u32 {
    let threads = (frame / BYTES_PER_THREAD)
        .next_multiple_of(32)
        .clamp(32, 256);
    u32::try_from(threads).unwrap_or(256)
}

/// The results in the output ring.
pub(super) struct Output {
    region: Arc<Region>,
    /// Whether the built-in kernel computes the results, so that they can be verified.
    is_checked: bool,
}

impl Output {
    /// Verifies the results that are still in the ring after the kernel has ended. `made` is the number of processed
    /// frames.
    pub(super) fn check(&self, made: u64) -> Result<(), BenchError> {
        let Some(memory) = self.region.memory().filter(|_| self.is_checked) else {
            return Ok(());
        };
        let mut results = vec![0; SLOTS * RESULT_STRIDE];
        memory.read(0, &mut results)?;
        compare(&results, made)
    }
}

/// Compares the first word of each result slot with the sum of the words of the slot's last frame.
fn compare(results: &[u8], made: u64) -> Result<(), BenchError> {
    let slots = results.len() / RESULT_STRIDE;
    for frame in made.saturating_sub(slots as u64)..made {
        let at = usize::try_from(frame).unwrap_or(0) % slots * RESULT_STRIDE;
        let Some(found) = results[at..].first_chunk().copied().map(u32::from_le_bytes) else {
            continue;
        };
        let sum = total(frame);
        if found != sum {
            return Err(BenchError::Thread(format!(
                "wrong result for frame {frame}: the kernel returned {found}, expected {sum}; run `daq selftest gpu`"
            )));
        }
    }
    Ok(())
}

/// Returns the expected sum of the words of frame `frame`. The frame's first word is equal to this sum.
pub(super) const fn total(frame: u64) -> u32 {
    ((frame & 0xffff_ffff) as u32).wrapping_mul(2_654_435_761)
}

/// Fills a frame whose length must be a multiple of 16 bytes. All words after the first are non-zero and sum to 0. So a
/// missing word, or a word of another frame, changes the sum.
pub(super) fn fill(bytes: &mut [u8], frame: u64) {
    let (words, _) = bytes.as_chunks_mut::<4>();
    let mut rest = 0_u32;
    if let [first, between @ .., last] = words {
        *first = total(frame).to_le_bytes();
        for (word, n) in between.iter_mut().zip(1_u32..) {
            // Each value is 1 modulo 4, and the number of values is 2 modulo 4, so the last value is not 0 either.
            let value = (total(frame) ^ n.wrapping_mul(0x85eb_ca6b)) << 2 | 1;
            *word = value.to_le_bytes();
            rest = rest.wrapping_add(value);
        }
        *last = rest.wrapping_neg().to_le_bytes();
    }
}

/// Returns an error if a component has failed.
pub(super) fn check(control: &Control) -> Result<(), BenchError> {
    control.failures().first().map_or(Ok(()), |failure| {
        let Failure { component, why, .. } = failure;
        Err(BenchError::Thread(format!("{component}: {why}")))
    })
}

pub(super) struct Bench<'a> {
    pub(super) common: &'a Common,
    pub(super) cores: Cores,
    pub(super) device: &'static Device,
    pub(super) environment: Environment,
    /// Whether the built-in kernel computes the results.
    pub(super) is_checked: bool,
}

impl Bench<'_> {
    fn kernel(
        &self,
        frame: usize,
        concurrent_frames: u32,
        dispatch: Dispatch,
        rings: Option<(&Ring, &Ring)>,
    ) -> Result<Box<dyn Kernel>, BenchError> {
        let keys = FileKernel {
            threads: threads(frame),
            blocks: Some(1),
            concurrent_frames: Some(concurrent_frames),
            frame: FrameKeys {
                points: Some(1),
                ..FrameKeys::default()
            },
            ..FileKernel::new("touch.cu")
        };
        let input = layout(frame);
        let mut context = KernelContext {
            name: "touch".to_owned(),
            directory: self.environment.scratch.path().to_owned(),
            burst: MAX_BATCH,
            dispatch,
            ..KernelContext::alone(&input, Side::Cuda(self.device.ordinal()))
        };
        if let Some((input, output)) = rings {
            (context.slots, context.output) = (input.slice(), output.slice());
        }
        Ok(keys.build(&context)?)
    }

    /// Creates rings for frames of `frame` bytes and starts a persistent kernel.
    pub(super) fn fixture(
        &self,
        frame: usize,
        concurrent_frames: u32,
    ) -> Result<Fixture, BenchError> {
        let mut fixture = self.prepare(frame, concurrent_frames)?;
        fixture.runner.start()?;
        Ok(fixture)
    }

    /// Creates rings for frames of `frame` bytes and a persistent kernel, which is not started. All memory must be allocated
    /// before the first persistent kernel of a GPU starts.
    pub(super) fn prepare(
        &self,
        frame: usize,
        concurrent_frames: u32,
    ) -> Result<Fixture, BenchError> {
        let bell = Arc::new(Notifier::default());
        let options = |name: &str, bytes: usize| RingOptions::new(name, SLOTS, bytes);
        let carried = |name: &str| RingOptions {
            notifiers: vec![bell.clone()],
            ..options(name, frame)
        };
        let host = Region::host(carried("host").region_bytes(), HostOptions::default())?;
        let gpu = Region::mapped(
            self.device,
            carried("gpu").region_bytes(),
            Writer::Cpu,
            &Backend::ALL,
        )?;
        let output = Region::cuda(self.device, options("out", 4).region_bytes())?;
        let (source, producer) = Ring::new(host, carried("host"), RingLedger::default())?;
        let quiet = RingOptions {
            single_threaded: true,
            ..options("gpu", frame)
        };
        let (input, copied) = Ring::new(gpu, quiet, RingLedger::default())?;
        let (out, made) = Ring::new(output.clone(), options("out", 4), RingLedger::default())?;
        let attach = |ring: &Ring| ring.attach(true, MAX_BATCH, ReaderLedger::default());
        let inline_copy =
            RingCopy::inline(attach(&source)?, copied, CopyLedger::default(), MAX_BATCH);
        let kernel = self.kernel(
            frame,
            concurrent_frames,
            Dispatch::Persistent,
            Some((&input, &out)),
        )?;
        let control = Arc::new(Control::new(RESULT_TIMEOUT));
        let runner = Runner::new(Parts {
            name: "touch".to_owned(),
            reader: attach(&input)?,
            producer: made,
            stream: None,
            kernel,
            ledger: KernelLedger::default(),
            burst: MAX_BATCH,
            wait: Wait::Busy,
            control: control.clone(),
            on_device: true,
            isolated: false,
            persistent: None,
            inline_copy: inline_copy.map(|inline_copy| (inline_copy, bell)),
        });
        Ok(Fixture {
            ends: Ends::new(frame, producer, attach(&out)?),
            output: Output {
                region: output,
                is_checked: self.is_checked,
            },
            runner,
            control,
        })
    }

    /// Measures the time of each frame if it is copied and processed with a launch, followed by a wait.
    pub(super) fn launches(
        &self,
        frame: usize,
        round_trips: usize,
    ) -> Result<Vec<f64>, BenchError> {
        let options = |name: &str, bytes: usize| RingOptions::new(name, 64, bytes);
        let gpu = Region::cuda(self.device, options("gpu", frame).region_bytes())?;
        let out = Region::cuda(self.device, options("out", 4).region_bytes())?;
        let (ring, mut copied) = Ring::new(gpu, options("gpu", frame), RingLedger::default())?;
        let (_, mut made) = Ring::new(out, options("out", 4), RingLedger::default())?;
        let mut reader = ring.attach(true, 1, ReaderLedger::default())?;
        let mut kernel = self.kernel(frame, 1, Dispatch::Launch, None)?;
        let upload = Upload::new(self.device, frame)?;
        let mut frames = 0..;
        times(WARM_UP.min(round_trips), round_trips, || {
            upload.begin(frame)?;
            let mut slots = copied.reserve(1);
            slots.finish(FrameMeta::whole(frames.next().unwrap_or(0), frame));
            slots.publish();
            if let Some(lease) = reader.poll(1) {
                let mut out = made.reserve(1);
                let _ = kernel.run(&lease, &mut out, Stream::Cuda(upload.stream()))?;
                upload.stream().synchronize()?;
                out.publish();
            }
            Ok(())
        })
    }
}

fn layout(bytes: usize) -> Layout {
    Layout {
        scalar: Scalar::Int32,
        complex: false,
        channels: 1,
        points: bytes / 4,
        order: Order::Interleaved,
        axis: Axis::Time { rate: None },
        frame_rate: None,
        is_contiguous: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(words: &[u32]) -> u32 {
        words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
    }

    #[test]
    fn frame_checksum_depends_on_every_word() {
        for (bytes, frame) in [(16, 0), (64, 1), (256, 77), (16 << 10, u64::MAX)] {
            let words = |frame| -> Vec<u32> {
                let mut filled = vec![0; bytes];
                fill(&mut filled, frame);
                let (words, _) = filled.as_chunks::<4>();
                words.iter().copied().map(u32::from_le_bytes).collect()
            };
            let (words, next) = (words(frame), words(frame.wrapping_add(SLOTS as u64)));
            assert_eq!((sum(&words), words[0]), (total(frame), total(frame)));
            assert!(words[1..].iter().all(|word| *word != 0));
            assert!(words.iter().zip(&next).all(|(word, next)| word != next));
            // Sixteen bytes, which a thread reads with one load, and one cache line of 64 bytes.
            for part in [4, 16].into_iter().filter(|part| *part < words.len()) {
                let mut parts = words.chunks(part);
                assert!(parts.all(|part| sum(part) != 0), "{bytes} {frame}");
            }
        }
    }

    #[test]
    fn wrong_result_is_reported_until_overwritten() {
        let mut results = vec![0; 4 * RESULT_STRIDE];
        for frame in 0..6_u64 {
            let at = usize::try_from(frame % 4).unwrap() * RESULT_STRIDE;
            results[at..][..4].copy_from_slice(&total(frame).to_le_bytes());
        }
        assert!(compare(&results, 6).is_ok());
        assert!(compare(&[], 0).is_ok());
        results[3 * RESULT_STRIDE] ^= 1;
        let error = compare(&results, 6).unwrap_err().to_string();
        assert!(error.contains("for frame 3:"), "{error}");
        assert!(
            compare(&results, 3).is_err(),
            "slot 0 contains the result of frame 4 instead of frame 0"
        );
    }
}
