//! Copies of the newest frames, for the request `tap`.

use super::OfferedRing;
use super::protocol;
use crate::http::TapBudget;
use daq_core::plan::PlannedRing;
use daq_core::ring::Tap;
use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Shortest time between two copies of frames of a ring. Requests in between get the last copy.
const COPY_INTERVAL: Duration = Duration::from_millis(100);
/// Time without requests after which the copy of a ring is freed.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// The newest copies, by ring.
#[derive(Debug, Default)]
pub(super) struct Taps(BTreeMap<String, Tapped>);

/// A ring of which clients request frames.
#[derive(Debug)]
struct Tapped {
    tap: Tap,
    newest: Option<Copied>,
    copied: Option<Instant>,
    requested: Instant,
}

/// A copy of a frame.
#[derive(Debug)]
pub(super) struct Copied {
    index: u64,
    /// The description of the frame.
    pub(super) frame: Value,
    /// A sealed file with the bytes of the frame.
    pub(super) file: OwnedFd,
}

impl Taps {
    /// Returns a copy of the newest frame of a ring, at most about [`COPY_INTERVAL`] old; `None` if no frame after the frame
    /// `after` was published. The error names what failed.
    pub(super) fn newest(
        &mut self,
        offered: &OfferedRing,
        after: Option<u64>,
    ) -> Result<Option<&Copied>, String> {
        let name = &offered.planned.name;
        if !self.0.contains_key(name) {
            let tap = offered
                .ring
                .tap()
                .map_err(|error| format!("cannot tap ring `{name}`: {error}"))?;
            let tapped = Tapped {
                tap,
                newest: None,
                copied: None,
                requested: Instant::now(),
            };
            self.0.insert(name.clone(), tapped);
        }
        let Some(tapped) = self.0.get_mut(name) else {
            return Ok(None);
        };
        tapped.requested = Instant::now();
        tapped
            .copy(&offered.planned)
            .map_err(|why| format!("cannot copy a frame of ring `{name}`: {why}"))?;
        let newest = tapped.newest.as_ref();
        Ok(newest.filter(|copied| after.is_none_or(|after| copied.index > after)))
    }

    /// Returns whether there is a copy that may become idle.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Frees copies that no client requests.
    pub(super) fn free_idle(&mut self) {
        self.0
            .retain(|_, tapped| tapped.requested.elapsed() < IDLE_TIME);
    }
}

impl Tapped {
    /// Copies the newest frame unless the last copy is recent.
    fn copy(&mut self, planned: &PlannedRing) -> Result<(), String> {
        // Large frames are copied less often, because the thread also serves clients with a guarantee.
        let interval = COPY_INTERVAL.max(TapBudget::of(planned.slot_bytes).period());
        if self
            .copied
            .is_some_and(|copied| copied.elapsed() < interval)
        {
            return Ok(());
        }
        let newest = self.tap.newest().map_err(|error| error.to_string())?;
        if let Some(frame) = newest {
            self.newest = Some(Copied {
                index: frame.index(),
                frame: protocol::frame(frame.index(), frame.meta(), frame.present(), &planned.kept),
                file: sealed(frame.bytes()).map_err(|error| {
                    format!("{error}; raise the limits on memory and open files")
                })?,
            });
            self.copied = Some(Instant::now());
        }
        Ok(())
    }
}

impl Copied {
    /// Returns the reply that describes the frame.
    pub(super) fn reply(&self, layout: &Value) -> Value {
        json!({ "ok": true, "frame": self.frame, "layout": layout })
    }
}

/// Returns a file in memory with the given content, which no process can change.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("daq-frame", flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn sealed_file_cannot_be_changed() {
        let file = File::from(sealed(b"frame").unwrap());
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"frame");
        let error = file.write_at(b"x", 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(file.set_len(4).is_err());
    }
}
