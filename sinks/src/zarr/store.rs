//! The store on disk. Files become visible only when they are complete, and the last file of a commit completes the
//! commit.

use super::ZarrKeys;
use super::batch::Batch;
use super::columns::{Column, FRAMES, FRAMES_NAME, TIMESTAMP, UNITS, UTC_UNITS};
use crate::directory::{failure, no_space, remedy};
use crate::lock::StemLock;
use daq_core::frame::Clock;
use daq_core::sink::{SinkContext, SinkError};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::File;
use std::fs::rename;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Metadata file of an array or a group.
pub(super) const META: &str = "zarr.json";
/// Suffix of a store's name.
pub(super) const SUFFIX: &str = ".zarr";
/// Suffix of incomplete files and stores.
pub(super) const PARTIAL: &str = ".partial";

/// A file with reserved space for a chunk of frames.
pub(super) struct Room {
    file: File,
    path: PathBuf,
    reserved: u64,
}

/// Creates files with reserved space. The value is shared with the thread that fills the files.
#[derive(Clone)]
pub(super) struct Rooms {
    dir: PathBuf,
    /// Number of bytes of a chunk of frames.
    chunk: u64,
    /// Number of bytes reserved for all other files that are written with the chunk.
    slack: u64,
    made: u64,
}

/// A store that is being written.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    columns: Vec<Column>,
    /// Whether all times so far are UTC; `None` before the first time.
    is_utc: Option<bool>,
}

impl Store {
    /// Creates the store with the first number from `next` on that does not exist yet, for the locked stem. The store's
    /// name ends with [`PARTIAL`] until the store is complete.
    pub(super) fn create(
        lock: &StemLock,
        next: u64,
        columns: Vec<Column>,
        keys: &ZarrKeys,
        context: &SinkContext,
    ) -> Result<Self, SinkError> {
        let (parent, stem) = (lock.dir(), lock.stem());
        let mut number = next;
        let (dir, partial) = loop {
            let name = crate::file::segment::segment_name(stem, number);
            let dir = parent.join(format!("{name}{SUFFIX}"));
            let partial = parent.join(format!("{name}{SUFFIX}{PARTIAL}"));
            if dir.symlink_metadata().is_ok() {
                number += 1;
                continue;
            }
            match std::fs::create_dir(&partial) {
                Ok(()) => break (dir, partial),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(failed("create", &partial, error)),
            }
        };
        let mut store = Self {
            dir: partial,
            columns,
            is_utc: None,
        };
        let made = store.make(keys, context).and_then(|()| {
            rename(&store.dir, &dir).map_err(|error| failed("rename", &store.dir, error))
        });
        if let Err(error) = made {
            // The store contains no frames. If removing it fails, the next start removes it.
            let _ = std::fs::remove_dir_all(&store.dir);
            return Err(error);
        }
        store.dir = dir;
        sync_directory(parent)?;
        Ok(store)
    }

    /// Creates the arrays, then the group.
    fn make(&self, keys: &ZarrKeys, context: &SinkContext) -> Result<(), SinkError> {
        for column in &self.columns {
            let dir = self.dir.join(&column.name);
            std::fs::create_dir(&dir).map_err(|error| failed("create", &dir, error))?;
            replace(&dir, META, &json_text(&column.metadata)?)?;
            sync_directory(&dir)?;
        }
        let mut attributes = json!({
            "state": "writing",
            "recorder": concat!("daq ", env!("CARGO_PKG_VERSION")),
            "pipeline": context.pipeline,
            "source": context.ring,
        });
        if let Some(description) = &keys.description {
            attributes["description"] = json!(description);
        }
        let group = json!({ "zarr_format": 3, "node_type": "group", "attributes": attributes });
        replace(&self.dir, META, &json_text(&group)?)?;
        sync_directory(&self.dir)
    }

    /// Returns the directories of the store.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let arrays = self
            .columns
            .iter()
            .map(|column| self.dir.join(&column.name));
        arrays.chain([self.dir.clone()]).collect()
    }

    /// Returns an object that reserves space for chunks of frames.
    pub(super) fn rooms(&self) -> Rooms {
        // The old and the new file of each small array exist at the same time. Each file has a partly used block and a
        // directory entry.
        let small = self
            .columns
            .iter()
            .skip(FRAMES + 1)
            .map(|column| column.chunk_bytes() as u64 * 2 + (16 << 10));
        let chunk = self.columns[FRAMES].chunk_bytes() as u64;
        Rooms {
            dir: self.dir.join(&self.columns[FRAMES].name),
            chunk,
            slack: small.sum::<u64>() + (64 << 10),
            made: 0,
        }
    }

    /// Commits all frames up to the end of `batch`. After an error, the call can be repeated with the same batch. An
    /// error after the commit is stored in the batch.
    pub(super) fn commit(&mut self, batch: &mut Batch) -> Result<(), SinkError> {
        for clock in batch.clocks().filter(|clock| *clock != Clock::None) {
            self.is_utc = Some(self.is_utc.unwrap_or(true) && clock.is_utc());
        }
        let is_utc = self.is_utc == Some(true);
        let units = if is_utc { UTC_UNITS } else { UNITS };
        self.columns[TIMESTAMP].metadata["attributes"]["units"] = json!(units);
        let Batch {
            columns: buffers,
            room,
            first,
            ..
        } = &mut *batch;
        for (column, buffer) in self.columns.iter().zip(buffers) {
            let room = if column.name == FRAMES_NAME {
                room.take()
            } else {
                None
            };
            store_chunk(&self.dir, column, *first / column.rows, &buffer.bytes, room)?;
        }
        let end = batch.end();
        let (frames, others) = self.columns.split_at_mut(FRAMES + 1);
        for column in others.iter_mut().chain(frames) {
            let dir = self.dir.join(&column.name);
            column.set_rows(end);
            // The name of the chunk must be durable before the shape that depends on the chunk, even after a power
            // failure.
            sync_directory(&dir)?;
            replace(&dir, META, &json_text(&column.metadata)?)?;
            let synced = sync_directory(&dir);
            if column.name == FRAMES_NAME {
                batch.unsynced = synced.err();
                break;
            }
            synced?;
        }
        Ok(())
    }

    /// Sets the state of the store to complete in the group's attributes.
    pub(super) fn complete(dir: &Path) -> Result<(), SinkError> {
        set_state(dir, "complete", None)
    }
}

impl Rooms {
    /// Reserves space for the next chunk.
    pub(super) fn make(&mut self) -> Result<Room, SinkError> {
        // At most two such files exist at a time: one for the chunk being filled, and one for the chunk being written.
        let path = self.dir.join(format!("room-{}{PARTIAL}", self.made % 2));
        let file = daq_core::file::create(&path).map_err(|error| failed("create", &path, error))?;
        let reserved = self.chunk + self.slack;
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, reserved) {
            // If space cannot be reserved, a full disk is detected by the write itself.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => {
                drop(file);
                let _ = std::fs::remove_file(&path);
                return Err(failed("reserve space in", &path, errno));
            }
        }
        self.made += 1;
        Ok(Room {
            file,
            path,
            reserved,
        })
    }
}

impl Room {
    /// Writes `bytes`, releases the reserved space after them, and renames the file to `to`.
    fn fill(&mut self, bytes: &[u8], to: &Path) -> Result<(), SinkError> {
        let length = bytes.len() as u64;
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, 0)
            .map_err(|error| failed("write", &self.path, error))?;
        // Some filesystems release the space after the end only if the file's length changes.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(
            &self.file,
            punch,
            length,
            self.reserved.saturating_sub(length),
        );
        self.file
            .set_len(length)
            .map_err(|error| failed("truncate", &self.path, error))?;
        self.file
            .sync_data()
            .map_err(|error| failed("sync", &self.path, error))?;
        std::fs::rename(&self.path, to).map_err(|error| failed("rename", &self.path, error))
    }
}

fn store_chunk(
    store: &Path,
    column: &Column,
    chunk: u64,
    bytes: &[u8],
    room: Option<Room>,
) -> Result<(), SinkError> {
    let dir = store.join(&column.name);
    let name = column.chunk_name(chunk);
    if let Some(mut room) = room {
        return room.fill(bytes, &dir.join(name)).inspect_err(|_| {
            // The next attempt creates a new file and needs the space of this one.
            let _ = std::fs::remove_file(&room.path);
        });
    }
    replace(&dir, &name, bytes)
}

fn json_text(value: &Value) -> Result<Vec<u8>, SinkError> {
    serde_json::to_vec_pretty(value).map_err(|error| SinkError::Failed {
        what: "create the store's metadata".to_owned(),
        why: error.to_string(),
    })
}

/// Replaces the file `name` with a complete, synced file.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), SinkError> {
    let partial = dir.join(format!("{name}{PARTIAL}"));
    let write = || {
        let mut file = daq_core::file::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_data()
    };
    write().map_err(|error| failed("write", &partial, error))?;
    std::fs::rename(&partial, dir.join(name)).map_err(|error| failed("rename", &partial, error))
}

/// Sets the attribute `state` of the group in `dir`. Also sets the attribute `frames` if a value is given.
pub(super) fn set_state(dir: &Path, state: &str, frames: Option<u64>) -> Result<(), SinkError> {
    let path = dir.join(META);
    let text = daq_core::file::read(&path).map_err(|error| failed("read", &path, error))?;
    let mut group: Value = serde_json::from_slice(&text)
        .map_err(|error| failed("read", &path, std::io::Error::other(error)))?;
    group["attributes"]["state"] = json!(state);
    if let Some(frames) = frames {
        group["attributes"]["frames"] = json!(frames);
    }
    replace(dir, META, &json_text(&group)?)?;
    sync_directory(dir)
}

pub(super) fn sync_directory(dir: &Path) -> Result<(), SinkError> {
    crate::directory::sync_directory(dir).map_err(|errno| failed("sync", dir, errno))
}

/// Converts a failed file operation into an error of the sink.
pub(super) fn failed(action: &str, path: &Path, error: impl Into<std::io::Error>) -> SinkError {
    let error = error.into();
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    if matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)) {
        return no_space(path);
    }
    let why = format!("cannot {action} this path: {error}; {}", remedy(&error));
    failure(path.display().to_string(), why, &error)
}
