//! Measures throughput and CPU use of the methods that transfer data from a device into a ring.

use super::card::DeviceProcess;
use super::fixture::end;
use crate::BenchError;
use crate::cpu::Spent;
use crate::figures::rate;
use daq_core::units::{ByteSize, counted};
use daq_diagnostics::fixture::{Environment, failed};
use std::time::Duration;

/// Ring size in bytes. The actual size is rounded to a multiple of the slot size.
const RING: usize = 64 << 20;
/// Maximum number of slots. Every engine has at least this many descriptors.
const MAX_SLOTS: usize = 256;

/// One method to transfer data from a device into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The baseline: one thread copies frames into memory of the size of a ring.
    Baseline,
    /// XDMA, emulated in this process, writes to host memory.
    Host,
    /// XDMA, emulated in another process, writes to host memory.
    Served,
    /// XDMA writes to host memory, and the copy engine copies to the GPU.
    Staged,
    /// XDMA writes directly to GPU memory.
    Direct,
    /// LitePCIe writes to its own slots in GPU memory, from which frames are copied to the ring. The device does not
    /// support backpressure, so it runs at half the rate of the method `Direct`.
    Copied,
}

impl Method {
    pub(super) const ALL: [Self; 6] = [
        Self::Baseline,
        Self::Host,
        Self::Served,
        Self::Staged,
        Self::Direct,
        Self::Copied,
    ];

    pub(super) const fn needs_gpu(self) -> bool {
        matches!(self, Self::Staged | Self::Direct | Self::Copied)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline copy by one thread",
            Self::Host => "xdma in this process → host ring",
            Self::Served => "xdma in another process → host ring",
            Self::Staged => "xdma → host ring → copy engine → GPU ring",
            Self::Direct => "xdma → GPU ring",
            Self::Copied => "litepcie → GPU slots → GPU ring, at half the rate of xdma → GPU ring",
        }
    }

    /// Returns the pipeline's configuration. If the method uses a GPU, the ring is located on GPU `gpu`. `pace` is the
    /// rate of a device without backpressure in bytes per second.
    pub(super) fn text(
        self,
        environment: &Environment,
        frame: usize,
        gpu: u32,
        pace: f64,
    ) -> String {
        let socket = environment.scratch.path().join("card.sock");
        let mut device = "emulated:xdma".to_owned();
        let (mut engine, mut more) = ("xdma", String::new());
        match self {
            Self::Served => device = format!("vfio-user:{}", socket.display()),
            Self::Copied => {
                let bits = (pace * 8.0).round();
                (device, engine) = ("emulated:litepcie".to_owned(), "litepcie");
                // `base` is the address of the DMA writer in the device's csr.csv.
                more = format!("base = 0x3800\nemulated = {{ rate = \"{bits} bit/s\" }}");
            }
            _ => {}
        }
        let (path, memory) = match self {
            Self::Staged => ("staged", format!("cuda:{gpu}")),
            Self::Direct | Self::Copied => ("direct", format!("cuda:{gpu}")),
            _ => ("auto", "host".to_owned()),
        };
        format!(
            r#"
[source.adc]
driver = "fpga"
device = "{device}"
engine = "{engine}"
ring   = "raw"
path   = "{path}"
{more}
[ring.raw]
memory = "{memory}"
slot   = "{frame} B"
slots  = {slots}
[sink.nothing]
driver = "null"
input  = "raw"
"#,
            slots = slots(frame),
        )
    }
}

/// Returns the number of slots of a ring for frames of `frame` bytes.
fn slots(frame: usize) -> usize {
    (RING / frame).clamp(8, MAX_SLOTS)
}

/// What one measurement returns.
pub(super) struct Rate {
    /// Transferred bytes per second.
    pub(super) bytes: f64,
    /// Numbers of busy cores: first of daq, then of the device.
    pub(super) cores: [f64; 2],
    /// Numbers of lost frames and of expected frames.
    pub(super) frames: [u64; 2],
}

impl Rate {
    /// Returns the results as figures of a comparison.
    pub(super) fn figures(&self) -> [f64; 5] {
        let [lost, expected] = self.frames.map(|frames| frames as f64);
        [self.bytes, self.cores[0], self.cores[1], lost, expected]
    }
}

/// Describes the lost frames of all rounds in the same form as a ledger. The text is empty if no frames were expected.
pub(super) fn loss(rounds: &[[f64; 5]]) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the values are numbers of frames"
    )]
    let sum = |i: usize| rounds.iter().map(|figures| figures[i]).sum::<f64>() as u64;
    match (sum(3), sum(4)) {
        (_, 0) => String::new(),
        (0, expected) => format!("no loss in {}", counted(expected, "frame")),
        (lost, expected) => format!("lost {lost} of {}", counted(expected, "frame")),
    }
}

impl Method {
    /// Runs this method for `window`. Frames of methods that use a GPU go to `gpu`.
    pub(super) fn rate(
        self,
        environment: &Environment,
        frame: usize,
        (gpu, pace): (u32, f64),
        window: Duration,
    ) -> Result<Rate, BenchError> {
        if self == Self::Baseline {
            return baseline(frame, window);
        }
        let served = match self {
            Self::Served => Some(DeviceProcess::start(
                &environment.scratch.path().join("card.sock"),
            )?),
            _ => None,
        };
        let process = served.as_ref().map(DeviceProcess::process);
        let pipeline = environment.start(&self.text(environment, frame, gpu, pace))?;
        let warm = slots(frame) as u64;
        let measured = pipeline.await_frames("raw", warm).and_then(|()| {
            let count = || (Spent::now(process.as_deref()), pipeline.published("raw"));
            let before = count();
            std::thread::sleep(window);
            // Linux may not have scheduled the emulated device yet, so wait for a frame.
            pipeline.await_frames("raw", before.1 + 1)?;
            let after = count();
            let bytes = (after.1 - before.1) as f64 * frame as f64;
            Ok((bytes / after.0.seconds(&before.0), after.0.since(&before.0)))
        });
        let ((bytes, cores), source) = end(pipeline, measured)?;
        let lost = source.lost_total();
        if lost > 0 && self != Self::Copied {
            return Err(failed(format!(
                "{lost} frames of {} were lost although the engine applies backpressure; this is a defect in daq",
                ByteSize(frame as u64)
            )));
        }
        Ok(Rate {
            bytes,
            cores,
            frames: [lost, source.expected],
        })
    }
}

fn baseline(frame: usize, window: Duration) -> Result<Rate, BenchError> {
    let from = vec![1_u8; frame];
    let mut to = vec![0_u8; slots(frame) * frame];
    let mut slot = 0;
    let before = Spent::now(None);
    let bytes = rate(
        window,
        || {
            to[slot * frame..][..frame].copy_from_slice(&from);
            slot = (slot + 1) % slots(frame);
            std::hint::black_box(&mut to);
            Ok(frame)
        },
        || Ok(()),
    )?;
    Ok(Rate {
        bytes,
        cores: [Spent::now(None).alone(&before), f64::NAN],
        frames: [0; 2],
    })
}

#[cfg(test)]
mod tests {
    use super::super::environment;
    use super::*;

    #[test]
    fn host_ring_bench_loses_no_frame() {
        let window = Duration::from_millis(5);
        let rate = |method: Method| {
            let rate = method.rate(
                &environment(&daq_pipelines::registry(), None).unwrap(),
                64 << 10,
                (0, 0.0),
                window,
            );
            rate.unwrap()
        };
        let host = rate(Method::Host);
        let [lost, expected] = host.frames;
        assert!(host.bytes > 0.0 && lost == 0 && expected > 0);
        assert_eq!(
            loss(&[host.figures()]),
            format!("no loss in {}", counted(expected, "frame"))
        );
        let lossy = [1.0, 1.0, 1.0, 2.0, 4.0];
        let all = expected + 4;
        assert_eq!(
            loss(&[host.figures(), lossy]),
            format!("lost 2 of {all} frames")
        );
        let baseline = rate(Method::Baseline);
        assert!(baseline.bytes > 0.0);
        assert_eq!(loss(&[baseline.figures()]), "");
    }

    #[test]
    fn impossible_method_is_reported() {
        let rate = Method::Direct.rate(
            &environment(&daq_pipelines::registry(), None).unwrap(),
            64 << 10,
            (7, 0.0),
            Duration::ZERO,
        );
        let error = rate.err().unwrap().to_string();
        assert!(error.contains("cuda:7"), "{error}");
    }
}
