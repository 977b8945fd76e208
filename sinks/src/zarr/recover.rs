//! Recovers stores that a killed run left with arrays of different lengths.

use super::store::{META, PARTIAL, SUFFIX, failed, replace, set_state, sync_directory};
use crate::file::segment::segment_index;
use crate::lock::StemLock;
use daq_core::sink::SinkError;
use daq_core::units::counted;
use serde_json::{Value, json};
use std::path::Path;

/// Recovers and logs the stores of the locked stem that were not closed. Returns the number of the next store.
pub(super) fn recover(lock: &StemLock, sink: &str) -> Result<u64, SinkError> {
    let (dir, stem) = (lock.dir(), lock.stem());
    let mut next = 0;
    let entries = std::fs::read_dir(dir).map_err(|error| failed("list", dir, error))?;
    for entry in entries {
        let path = entry.map_err(|error| failed("list", dir, error))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name else { continue };
        let made = name.strip_suffix(PARTIAL);
        let name = made.unwrap_or(name).strip_suffix(SUFFIX);
        let Some(index) = name.and_then(|name| segment_index(stem, name)) else {
            continue;
        };
        next = next.max(index + 1);
        if made.is_some() {
            // The run was killed while it created this store, which contains no frames. If removing it fails, the next
            // start tries again.
            let _ = std::fs::remove_dir_all(&path);
            continue;
        }
        match settle(&path) {
            Ok(None) => {}
            Ok(Some(frames)) => tracing::warn!(
                "sink {sink}: an earlier run ended before it closed the store {}; recovered: {}",
                path.display(),
                counted(frames, "frame")
            ),
            // A damaged store of an earlier run must not prevent a new recording.
            Err(error) => {
                tracing::warn!("sink {sink}: cannot check the files of an earlier run: {error}");
            }
        }
    }
    Ok(next)
}

/// Truncates the arrays of an unclosed store to the same length. Returns this length, or `None` if the store needs no
/// recovery.
fn settle(dir: &Path) -> Result<Option<u64>, SinkError> {
    if !dir.join(META).exists() {
        // The run was killed while it created the store, before any frame was accepted, so nothing is lost.
        return Ok(None);
    }
    let group = read(&dir.join(META))?;
    if group["attributes"]["state"] != "writing" {
        return Ok(None);
    }
    let frames = read(&dir.join("frames").join(META))?["shape"][0]
        .as_u64()
        .unwrap_or(0);
    for entry in std::fs::read_dir(dir).map_err(|error| failed("list", dir, error))? {
        let array = entry.map_err(|error| failed("list", dir, error))?.path();
        if !array.is_dir() {
            continue;
        }
        let path = array.join(META);
        let mut meta = read(&path)?;
        if meta["shape"][0].as_u64().is_some_and(|rows| rows > frames) {
            meta["shape"][0] = json!(frames);
            let text = serde_json::to_vec_pretty(&meta)
                .map_err(|e| failed("write", &path, std::io::Error::other(e)))?;
            replace(&array, META, &text)?;
        }
        remove_partials(&array);
        sync_directory(&array)?;
    }
    remove_partials(dir);
    set_state(dir, "recovered", Some(frames))?;
    Ok(Some(frames))
}

fn read(path: &Path) -> Result<Value, SinkError> {
    let text = daq_core::file::read(path).map_err(|error| failed("read", path, error))?;
    serde_json::from_slice(&text)
        .map_err(|error| failed("read", path, std::io::Error::other(error)))
}

/// Removes incomplete files, which releases their reserved space.
pub(super) fn remove_partials(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.to_str().is_some_and(|name| name.ends_with(PARTIAL)) {
            // The file is never read, so a file that cannot be removed only occupies space.
            let _ = std::fs::remove_file(path);
        }
    }
}
