//! The newest frames of rings for browsers: `/rings/NAME/scope` and `/rings/NAME/frame.npy`.
//!
//! ```text
//!   ring ── tap ──▶ thread `daq-scope` (low priority) ──▶ newest message of each view ──▶ browsers
//! ```
//! While at least one browser shows a ring, one thread copies the newest frame of the ring at most [`MAX_RATE`] times a
//! second, reduces the copy to curves for each [`View`], and ends when the last browser has disconnected. All browsers with the
//! same view share a message. A tap is invisible to the producer, so that browsers cause no loss. Only the newest message waits
//! for a browser: a stalled browser misses messages, and its connection is closed after some seconds.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "reduced values are float32, and indices are computed from fractions"
)]

mod decode;
mod frames;
mod hub;
mod memory;
mod npy;
mod pixels;
mod points;
mod reduce;
mod spectrum;
mod stream;
mod threads;
mod view;

pub(super) use hub::Hub;
pub use memory::max_memory;
pub(super) use stream::{Stream, forward};
pub(crate) use threads::{TapCalls, mark_hung};
pub(super) use view::{View, index_of};

use daq_core::gpu::driver::CudaError;
use daq_core::layout::{Layout, Order};
use daq_core::ring::Ring;
use daq_core::units::ByteSize;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Maximum number of frames per second that a scope copies from a ring.
pub(crate) const MAX_RATE: f64 = 10.0;
/// Maximum number of bytes per second that a scope copies from a ring, if one frame is not larger.
pub(crate) const MAX_BYTES_PER_SECOND: f64 = 100e6;
/// The thread of a scope works for at most this share of the time.
const MAX_LOAD: f64 = 0.2;

/// A ring whose frames browsers can show.
#[derive(Clone, Debug)]
pub struct ScopedRing {
    /// The ring.
    pub ring: Ring,
    /// The layout of the ring's frames.
    pub layout: Layout,
    /// Names of the parts of frames; empty if frames have one part.
    pub parts: Vec<String>,
}

impl ScopedRing {
    /// Returns the names of the parts if each part is a range of points of a frame; otherwise no name.
    fn parts(&self) -> &[String] {
        let is_contiguous = self.layout.channels <= 1 || self.layout.order == Order::Interleaved;
        if self.parts.len() > 1 && is_contiguous {
            &self.parts
        } else {
            &[]
        }
    }

    /// Returns the points of `part`, or of all parts, in a frame of `points` points.
    fn range(&self, part: Option<usize>, points: usize) -> Range<usize> {
        match part {
            Some(part) => column(part, self.parts().len().max(1), points),
            None => 0..points,
        }
    }
}

/// Returns the values of column `i` if `len` values are divided into `columns` columns.
fn column(i: usize, columns: usize, len: usize) -> Range<usize> {
    i * len / columns..(i + 1) * len / columns
}

/// The most that the scope of a ring reads while a browser shows the ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TapBudget {
    /// Frames per second.
    pub frames_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

impl TapBudget {
    /// Returns the budget of a ring with slots of `slot_bytes` bytes.
    pub fn of(slot_bytes: usize) -> Self {
        let bytes = slot_bytes.max(1) as f64;
        let frames_per_second = (MAX_BYTES_PER_SECOND / bytes).min(MAX_RATE);
        Self {
            frames_per_second,
            bytes_per_second: frames_per_second * bytes,
        }
    }

    /// Returns the minimum time between two frames.
    pub fn period(self) -> Duration {
        Duration::from_secs_f64(1.0 / self.frames_per_second)
    }
}

impl fmt::Display for TapBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = ByteSize(self.bytes_per_second as u64).rounded();
        write!(
            f,
            "at most {} frames/s, {bytes}/s",
            Rounded(self.frames_per_second)
        )
    }
}

/// A number without trailing zeros.
struct Rounded(f64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.*}", f.precision().unwrap_or(3), self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The reason why a ring cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScopeError {
    /// The query has an unknown key or an invalid value.
    #[error("{0}")]
    Query(String),
    /// The pipeline has no ring of this name.
    #[error("there is no ring `{name}`; the pipeline has the rings {}", rings.join(", "))]
    UnknownRing {
        /// The requested name.
        name: String,
        /// The names of all rings.
        rings: Vec<String>,
    },
    /// Browsers already show too many different views.
    #[error(
        "browsers already show {0} different views of rings, which is the maximum; close one of these pages"
    )]
    Views(usize),
    /// Too many browsers show rings.
    #[error("{0} pages already show rings, which is the maximum; close one of these pages")]
    Streams(usize),
    /// Too many downloads at the same time.
    #[error(
        "{0} downloads are in progress, which is the maximum; try again when one of them has ended"
    )]
    Downloads(usize),
    /// The ring cannot be tapped.
    #[error(transparent)]
    Tap(#[from] CudaError),
    /// The requested frame is not in memory.
    #[error(
        "frame {index} of ring `{ring}` is not in memory; daq keeps the frames that browsers have shown for a short time, and \
         the last frames that browsers show frozen as long as their pages are open; leave out `index` to request the newest frame"
    )]
    Gone {
        /// The name of the ring.
        ring: String,
        /// The number of the frame.
        index: u64,
    },
    /// No frame was published.
    #[error("ring `{0}` has no frame yet; try again when its source sends data")]
    NoFrame(String),
    /// The producer overwrites frames while they are copied.
    #[error(
        "frames of ring `{0}` are overwritten before they can be copied; increase `slots` in [ring.{0}]"
    )]
    Overwritten(String),
    /// The thread could not start.
    #[error(
        "cannot start the scope's thread: {0}; raise the limit on threads (ulimit -u, TasksMax=)"
    )]
    Thread(#[from] std::io::Error),
    /// The server stops.
    #[error("the server stops")]
    Stopped,
}

#[cfg(test)]
mod tests;
