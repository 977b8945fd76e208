//! Measures the latency from the last byte of a payload until a persistent kernel on the GPU has read the frame.
//!
//! ```text
//!   card: payload, ◀time▶ result ─▶ … ─▶ doorbell ─▶ kernel reads the frame ─▶ credit ─▶ this thread ◀time▶
//! ```

use super::card::{reserve_marks, take_marks};
use super::fixture::end;
use crate::BenchError;
use crate::cpu::Spent;
use daq_core::units::{BitRate, ByteSize};
use daq_diagnostics::fixture::Environment;
use std::time::{Duration, Instant};

/// Number of warm-up frames, which are not measured.
const WARM_UP: u64 = 20;
/// Source code of the kernel.
pub(super) const CODE: &str = include_str!("see.cu");
/// File name of the kernel.
pub(super) const FILE: &str = "see.cu";

/// What writes frames to the GPU, and what rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundTrip {
    /// Frames are staged in host memory, and the CPU rings the doorbell.
    Staged,
    /// The device writes frames to the GPU, and the CPU rings the doorbell.
    Direct,
    /// The device writes frames to the GPU and also rings the doorbell.
    DeviceDoorbell,
}

impl RoundTrip {
    pub(super) const ALL: [Self; 3] = [Self::Staged, Self::Direct, Self::DeviceDoorbell];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged, the CPU rings the doorbell",
            Self::Direct => "direct, the CPU rings the doorbell",
            Self::DeviceDoorbell => "direct, the card rings the doorbell",
        }
    }

    pub(super) fn text(self, frame: usize, gpu: u32) -> String {
        let (path, bell) = match self {
            Self::Staged => ("staged", "cpu"),
            Self::Direct => ("direct", "cpu"),
            Self::DeviceDoorbell => ("direct", "device"),
        };
        let rate = BitRate(frame as f64 * 8.0 / pause(frame).as_secs_f64());
        format!(
            r#"
[source.adc]
driver  = "fpga"
device  = "emulated:timed"
engine  = "xdma"
ring    = "raw"
path    = "{path}"
wait    = "busy"
samples = {{ type = "int32" }}
emulated    = {{ rate = "{rate} bit/s", packet = "{packet}", pattern = "sequence" }}
[ring.raw]
memory = "cuda:{gpu}"
slot   = "{frame} B"
slots  = 16
[kernel.see]
file     = "{FILE}"
input    = "raw"
output   = "seen"
dispatch = "persistent"
doorbell = "{bell}"
wait     = "busy"
threads  = 32
blocks   = 1
frame    = {{ points = 1 }}
[ring.seen]
memory = "cuda:{gpu}"
slots  = 64
[sink.nothing]
driver = "null"
input  = "seen"
"#,
            rate = rate.0.round(),
            packet = ByteSize(frame as u64),
        )
    }
}

/// Returns the time between two frames. This time is long enough to process each frame before the next frame is
/// written.
fn pause(frame: usize) -> Duration {
    Duration::from_micros(250) + Duration::from_nanos(frame as u64)
}

impl RoundTrip {
    /// Sends `round_trips` frames of `frame` bytes one after another. Returns the latency of each frame in
    /// microseconds, and the numbers of busy cores of daq and of the device.
    pub(super) fn measure(
        self,
        environment: &Environment,
        frame: usize,
        gpu: u32,
        round_trips: usize,
    ) -> Result<(Vec<f64>, [f64; 2]), BenchError> {
        reserve_marks(2 * round_trips + 64);
        let pipeline = environment.start(&self.text(frame, gpu))?;
        let mut seen = Vec::with_capacity(round_trips);
        let measured = (|| {
            let (mut last, mut since, mut polls) = (0, Instant::now(), 0_u32);
            let mut before = Spent::now(None);
            while seen.len() < round_trips {
                let now = pipeline.published("seen");
                if now > last {
                    since = Instant::now();
                    if last < WARM_UP {
                        before = Spent::now(None);
                    } else if let Ok(place) = usize::try_from(now - 1) {
                        // If several frames are detected together, the times of the earlier ones are unknown, so only
                        // the last one counts.
                        seen.push((place, since));
                    }
                    last = now;
                    continue;
                }
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(1 << 16) {
                    pipeline.check("seen", since)?;
                }
            }
            Ok(Spent::now(None).since(&before))
        })();
        let (cores, _) = end(pipeline, measured)?;
        let written = take_marks();
        let times = seen.into_iter().filter_map(|(place, seen)| {
            let took = seen.saturating_duration_since(*written.get(place)?);
            Some(took.as_secs_f64() * 1e6)
        });
        Ok((times.collect(), cores))
    }
}
