//! How much of its recording a source has replayed.

use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The position of a source in its recording. The source writes it, any thread reads it; no lock is used.
#[derive(Clone, Debug, Default)]
pub struct Playback(Arc<Position>);

#[derive(Debug, Default)]
struct Position {
    bytes: AtomicU64,
    /// 0 for a source without a recording.
    total_bytes: AtomicU64,
    repeats: AtomicBool,
}

/// A snapshot of a [`Playback`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaybackReport {
    /// Number of bytes of the recording that the source has read; less than before if it begins again.
    pub bytes: u64,
    /// Size of the recording in bytes.
    pub total_bytes: u64,
    /// Whether the source repeats the recording until the run is stopped.
    #[serde(rename = "loop")]
    pub repeats: bool,
}

impl Playback {
    /// Sets the size of the recording in bytes, and whether it is repeated without an end.
    pub fn set_recording(&self, bytes: u64, repeats: bool) {
        self.0.repeats.store(repeats, Ordering::Relaxed);
        self.0.total_bytes.store(bytes, Ordering::Release);
    }

    /// Sets the number of bytes that the source has read since the start of the recording.
    pub fn set_bytes(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the position; `None` for a source without a recording, or if its size is unknown.
    pub fn read(&self) -> Option<PlaybackReport> {
        let total_bytes = self.0.total_bytes.load(Ordering::Acquire);
        (total_bytes > 0).then(|| PlaybackReport {
            bytes: self.0.bytes.load(Ordering::Relaxed).min(total_bytes),
            total_bytes,
            repeats: self.0.repeats.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playback_is_reported_once_the_recording_is_known() {
        let playback = Playback::default();
        playback.set_bytes(7);
        assert_eq!(playback.read(), None);
        playback.set_recording(100, true);
        let report = playback.clone().read().unwrap();
        assert_eq!(
            (report.bytes, report.total_bytes, report.repeats),
            (7, 100, true)
        );
        playback.set_recording(100, false);
        // A file can grow while it is read.
        playback.set_bytes(200);
        let report = playback.read().unwrap();
        assert_eq!((report.bytes, report.repeats), (100, false));
    }
}
