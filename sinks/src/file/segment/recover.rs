//! Recovers the files that a killed run left in a directory.

use super::commit::{SegmentPaths, rename, sync_directory};
use super::error::SegmentError;
use crate::lock::StemLock;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The metadata key that contains the size of the data file. [`recover`] trusts a metadata file only if both sizes are
/// equal.
const BYTES_KEY: &str = "daq:bytes";

/// Returns the name of segment `index` of `stem`, in the form `STEM-000042`.
pub fn segment_name(stem: &str, index: u64) -> String {
    format!("{stem}-{index:06}")
}

/// Returns the index in a name that [`segment_name`] created with `stem`; returns `None` for any other name.
///
/// ```
/// use daq_sinks::file::segment::segment_index;
/// assert_eq!(segment_index("adc", "adc-000042"), Some(42));
/// assert_eq!(segment_index("adc", "adc-raw-000042"), None);
/// ```
pub fn segment_index(stem: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(stem)?.strip_prefix('-')?;
    let plain = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    // Accept only the form that `segment_name` creates, because "0000042" would be a different file with the same
    // index.
    let index = digits.parse().ok().filter(|_| plain)?;
    (digits.len() == 6 || !digits.starts_with('0')).then_some(index)
}

/// Data of a segment that was never committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The file, which has the suffix `.partial`.
    pub path: PathBuf,
    /// Size in bytes. The content is a prefix of the segment's data.
    pub bytes: u64,
}

/// Result of [`recover`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments whose commit was finished by [`recover`]. These segments are complete and valid.
    pub completed: Vec<PathBuf>,
    /// Segments that remain partial.
    pub partial: Vec<Leftover>,
    /// Files that match no step of a close, because a user moved or copied them. [`recover`] does not change these
    /// files.
    pub unclear: Vec<PathBuf>,
    /// Number of complete segments, including those whose commit was finished.
    pub whole: u64,
    /// The first index above the indices of all files of the stem.
    pub next_index: u64,
}

/// The existing files of one segment.
#[derive(Default)]
// The four files are independent; each may be present or absent.
#[allow(clippy::struct_excessive_bools)]
struct Found {
    data: bool,
    partial: bool,
    meta: bool,
    meta_tmp: bool,
}

/// Examines the segments of the lock's stem after a kill. Finishes their commits, or gives partial data the suffix
/// `.partial`. Deletes no data.
///
/// Examines only names created by [`segment_name`]. The lock excludes other writers.
pub fn recover(lock: &StemLock) -> Result<Recovered, SegmentError> {
    let (dir, stem) = (lock.dir(), lock.stem());
    let mut found: BTreeMap<u64, Found> = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(|e| SegmentError::io("list", dir, e))? {
        let entry = entry.map_err(|e| SegmentError::io("list", dir, e))?;
        let name = entry.file_name();
        let Some((base, suffix)) = name.to_str().and_then(|name| name.split_once(".sigmf-")) else {
            continue;
        };
        let Some(index) = segment_index(stem, base) else {
            continue;
        };
        let found = found.entry(index).or_default();
        match suffix {
            "data" => found.data = true,
            "data.partial" => found.partial = true,
            "meta" => found.meta = true,
            "meta.tmp" => found.meta_tmp = true,
            _ => {}
        }
    }
    let mut report = Recovered {
        next_index: found.keys().last().map_or(0, |last| last + 1),
        ..Recovered::default()
    };
    for (index, found) in found {
        let paths = SegmentPaths::new(dir, &segment_name(stem, index));
        settle(dir, &paths, &found, &mut report)?;
    }
    Ok(report)
}

fn settle(
    dir: &Path,
    paths: &SegmentPaths,
    found: &Found,
    report: &mut Recovered,
) -> Result<(), SegmentError> {
    let is_closed = found.data && found.meta;
    let is_commit = (found.data != found.partial) && !found.meta;
    report.whole += u64::from(is_closed);
    if !is_commit {
        // The committed pair is clear. All other files match no step of a close, except that a metadata file with the
        // temporary name says nothing beside files that are unclear themselves.
        let is_alone = !found.data && !found.partial && !found.meta;
        let unclear = [
            (found.data && !is_closed, &paths.data),
            (found.meta && !is_closed, &paths.meta),
            (found.partial, &paths.partial),
            (found.meta_tmp && (is_closed || is_alone), &paths.meta_tmp),
        ];
        let unclear = unclear.into_iter().filter(|(is_unclear, _)| *is_unclear);
        report.unclear.extend(unclear.map(|(_, path)| path.clone()));
        return Ok(());
    }
    let path = if found.data {
        &paths.data
    } else {
        &paths.partial
    };
    let inspected = path
        .metadata()
        .map_err(|e| SegmentError::io("inspect", path, e))?;
    let bytes = inspected.len();
    let proof = if found.meta_tmp {
        Proof::read(&paths.meta_tmp, bytes)
    } else {
        Proof::Torn
    };
    if proof == Proof::Whole {
        if found.partial {
            rename(&paths.partial, &paths.data)?;
        }
        sync_directory(dir)?;
        rename(&paths.meta_tmp, &paths.meta)?;
        sync_directory(dir)?;
        report.whole += 1;
        report.completed.push(paths.data.clone());
        return Ok(());
    }
    if found.data {
        rename(&paths.data, &paths.partial)?;
        sync_directory(dir)?;
    }
    if proof == Proof::Other {
        report.unclear.push(paths.meta_tmp.clone());
    } else if found.meta_tmp {
        // This incomplete metadata describes data that still exists. If the file cannot be removed, the next start tries
        // again.
        let _ = std::fs::remove_file(&paths.meta_tmp);
    }
    report.partial.push(Leftover {
        path: paths.partial.clone(),
        bytes,
    });
    Ok(())
}

/// State of a metadata file with the temporary name. This file is written only after the data was synced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The metadata is complete and matches the size of the data.
    Whole,
    /// The metadata is complete but does not match the size of the data.
    Other,
    /// The metadata is incomplete.
    Torn,
}

impl Proof {
    fn read(path: &Path, bytes: u64) -> Self {
        let Ok(text) = daq_core::file::read(path) else {
            return Self::Torn;
        };
        match serde_json::from_slice::<serde_json::Value>(&text) {
            Ok(meta) if meta["global"][BYTES_KEY].as_u64() == Some(bytes) => Self::Whole,
            Ok(_) => Self::Other,
            Err(_) => Self::Torn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_and_indices_round_trip() {
        for index in [0, 7, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(
                segment_index("a-000001", &segment_name("a-000001", index)),
                Some(index)
            );
        }
        for other in [
            "a-00001",
            "a-0000001",
            "a-+00001",
            "b-000001",
            "a000001",
            "a-000001-x",
        ] {
            assert_eq!(segment_index("a", other), None, "{other}");
        }
    }
}
