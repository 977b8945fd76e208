//! Measures throughput and CPU use of the methods that transfer data from a device into a ring.

use super::card::DeviceProcess;
use super::fixture::{Bench, Spent};
use crate::bench::{BenchError, median, rate};
use daq_core::units::{ByteSize, counted};
use std::time::Duration;

/// Ring size in bytes. The actual size is rounded to a multiple of the slot size.
const RING: usize = 64 << 20;
/// Maximum number of slots. Every engine has at least this many descriptors.
const MAX_SLOTS: usize = 256;

/// One method to transfer data from a device into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
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
    pub(super) const HOST: [Self; 2] = [Self::Host, Self::Served];
    pub(super) const GPU: [Self; 3] = [Self::Staged, Self::Direct, Self::Copied];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "xdma in this process → host ring",
            Self::Served => "xdma in another process → host ring",
            Self::Staged => "xdma → host ring → copy engine → GPU ring",
            Self::Direct => "xdma → GPU ring",
            Self::Copied => "litepcie → GPU slots → GPU ring, at half the rate of xdma → GPU ring",
        }
    }

    /// Returns the pipeline's configuration. If the method uses a GPU, the ring is located on GPU `gpu`. `pace` is the
    /// rate of a device without backpressure in bytes per second.
    pub(super) fn text(self, bench: &Bench, frame: usize, gpu: u32, pace: f64) -> String {
        let socket = bench.scratch.path().join("card.sock");
        let (device, path, more) = match self {
            Self::Host => ("emulated:xdma".to_owned(), "auto", String::new()),
            Self::Served => (
                format!("vfio-user:{}", socket.display()),
                "auto",
                String::new(),
            ),
            Self::Staged => ("emulated:xdma".to_owned(), "staged", String::new()),
            Self::Direct => ("emulated:xdma".to_owned(), "direct", String::new()),
            Self::Copied => {
                let bits = (pace * 8.0).round();
                // `base` is the address of the DMA writer in the device's csr.csv.
                let more = format!("base = 0x3800\nemulated = {{ rate = \"{bits} bit/s\" }}");
                ("emulated:litepcie".to_owned(), "direct", more)
            }
        };
        let engine = if self == Self::Copied {
            "litepcie"
        } else {
            "xdma"
        };
        let memory = match self {
            Self::Host | Self::Served => "host".to_owned(),
            Self::Staged | Self::Direct | Self::Copied => format!("cuda:{gpu}"),
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

/// Results of one method, with one value per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates {
    /// Transferred bytes per second.
    pub(super) bytes: Vec<f64>,
    /// Numbers of busy cores: first of daq, then of the device.
    pub(super) cores: [Vec<f64>; 2],
    /// Number of lost frames and number of expected frames, over all rounds.
    pub(super) frames: [u64; 2],
}

impl Rates {
    pub(super) fn add(&mut self, (bytes, [daq, card], frames): (f64, [f64; 2], [u64; 2])) {
        self.bytes.push(bytes);
        self.cores[0].push(daq);
        self.cores[1].push(card);
        self.frames = [self.frames[0] + frames[0], self.frames[1] + frames[1]];
    }

    /// Describes the lost frames in the same form as a ledger. The text is empty if no frames were expected.
    pub(super) fn loss(&self) -> String {
        let [lost, expected] = self.frames;
        match (lost, expected) {
            (_, 0) => String::new(),
            (0, _) => format!("no loss in {}", counted(expected, "frame")),
            _ => format!("lost {lost} of {}", counted(expected, "frame")),
        }
    }

    /// Returns the median; NaN if there are no values.
    pub(super) fn of(figures: &[f64]) -> f64 {
        if figures.is_empty() {
            return f64::NAN;
        }
        median(figures)
    }
}

impl Bench {
    /// Runs one method for `window`. Returns the bytes per second and the numbers of busy cores, lost frames and
    /// expected frames.
    pub(super) fn rate(
        &self,
        method: Method,
        frame: usize,
        (gpu, pace): (u32, f64),
        window: Duration,
    ) -> Result<(f64, [f64; 2], [u64; 2]), BenchError> {
        let served = match method {
            Method::Served => Some(DeviceProcess::start(
                &self.scratch.path().join("card.sock"),
            )?),
            _ => None,
        };
        let process = served.as_ref().map(DeviceProcess::process);
        let fixture = self.start(&method.text(self, frame, gpu, pace), None)?;
        let warm = slots(frame) as u64;
        let measured = fixture.await_frames("raw", warm).and_then(|()| {
            let count = || (Spent::now(process.as_deref()), fixture.published("raw"));
            let before = count();
            std::thread::sleep(window);
            // Linux may not have scheduled the emulated device yet, so wait for a frame.
            fixture.await_frames("raw", before.1 + 1)?;
            let after = count();
            let bytes = (after.1 - before.1) as f64 * frame as f64;
            let rate = bytes / after.0.seconds(&before.0);
            Ok((rate, after.0.since(&before.0)))
        });
        let ((bytes, cores), source) = fixture.end(measured)?;
        let lost = source.lost_total();
        if lost > 0 && method != Method::Copied {
            return Err(BenchError::Thread(format!(
                "{lost} frames of {} were lost although the engine applies backpressure; this is a defect in daq",
                ByteSize(frame as u64)
            )));
        }
        Ok((bytes, cores, [lost, source.expected]))
    }
}

/// Measures the baseline: one thread copies frames into memory of the size of a ring. Returns the bytes per second and
/// the fraction of a core that the thread used.
pub(super) fn floor(frame: usize, window: Duration) -> Result<(f64, f64), BenchError> {
    let from = vec![1_u8; frame];
    let mut to = vec![0_u8; slots(frame) * frame];
    let mut slot = 0;
    let before = Spent::now(None);
    let copied = rate(
        window,
        || {
            to[slot * frame..][..frame].copy_from_slice(&from);
            slot = (slot + 1) % slots(frame);
            std::hint::black_box(&mut to);
            Ok(frame)
        },
        || Ok(()),
    )?;
    Ok((copied, Spent::now(None).alone(&before)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::bench;
    use super::*;

    #[test]
    fn host_ring_bench_loses_no_frame() {
        let bench = bench();
        let window = Duration::from_millis(5);
        let figures = bench
            .rate(Method::Host, 64 << 10, (0, 0.0), window)
            .unwrap();
        let (bytes, _, [lost, expected]) = figures;
        assert!(bytes > 0.0 && lost == 0 && expected > 0, "{figures:?}");
        let mut rates = Rates::default();
        assert_eq!(rates.loss(), "");
        rates.add(figures);
        assert_eq!(
            rates.loss(),
            format!("no loss in {}", counted(expected, "frame"))
        );
        rates.add((1.0, [1.0; 2], [2, 4]));
        let expected = expected + 4;
        assert_eq!(rates.loss(), format!("lost 2 of {expected} frames"));
        let (copied, _) = floor(64 << 10, window).unwrap();
        assert!(copied > 0.0, "{copied}");
    }

    #[test]
    fn impossible_method_is_reported() {
        let bench = bench();
        let error = bench.rate(Method::Direct, 64 << 10, (7, 0.0), Duration::ZERO);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("cuda:7"), "{error}");
    }
}
