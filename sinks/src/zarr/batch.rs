//! One chunk of frames in memory, with the corresponding rows of the other arrays.

use super::columns::{
    CLOCK, Column, EPOCH, FLAGS, FRAMES, KEPT_NAME, LENGTH, PRESENT, SEQUENCE, TIMESTAMP,
};
use super::store::Room;
use daq_core::frame::Clock;
use daq_core::ring::Frame;
use daq_core::sink::SinkError;

/// One chunk of each array. The chunks of arrays other than `frames` may have more rows. Such chunks then also contain
/// rows of earlier batches.
pub(super) struct Batch {
    /// Row of the batch's first frame in the store.
    pub(super) first: u64,
    /// Number of frames accepted so far.
    pub(super) rows: usize,
    /// File with reserved space for the frames.
    pub(super) room: Option<Room>,
    /// The error of a sync that failed after the commit.
    pub(super) unsynced: Option<SinkError>,
    pub(super) columns: Vec<Buffer>,
    /// Index of the first array of kept fields, which is the number of arrays if there are none.
    kept: usize,
}

/// The chunk of one array.
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    /// Number of bytes per row.
    width: usize,
    /// Number of rows per chunk.
    rows: u64,
}

impl Buffer {
    /// Returns the offset in the chunk, in bytes, of row `row` of the store.
    fn at(&self, row: u64) -> usize {
        usize::try_from(row % self.rows).unwrap_or(usize::MAX) * self.width
    }

    fn put(&mut self, row: u64, value: &[u8]) {
        let at = self.at(row);
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }
}

impl Batch {
    pub(super) fn new(columns: &[Column]) -> Self {
        let buffer = |column: &Column| {
            let mut bytes = vec![0; column.chunk_bytes()];
            // Linux maps a zeroed allocation only when it is first written, so write to all of it.
            bytes.fill(0xA5);
            Buffer {
                bytes,
                width: column.width,
                rows: column.rows,
            }
        };
        Self {
            first: 0,
            rows: 0,
            room: None,
            unsynced: None,
            columns: columns.iter().map(buffer).collect(),
            kept: columns
                .iter()
                .position(|column| column.name == KEPT_NAME)
                .unwrap_or(columns.len()),
        }
    }

    /// Returns the maximum number of frames.
    pub(super) fn capacity(&self) -> usize {
        usize::try_from(self.columns[FRAMES].rows).unwrap_or(usize::MAX)
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows == self.capacity()
    }

    /// Returns the number of rows of the store up to and including the batch's last frame.
    pub(super) fn end(&self) -> u64 {
        self.first + self.rows as u64
    }

    /// Returns the clocks of the batch's frames.
    pub(super) fn clocks(&self) -> impl Iterator<Item = Clock> {
        let clocks = &self.columns[CLOCK];
        let at = clocks.at(self.first);
        let clocks = &clocks.bytes[at..at + self.rows];
        clocks.iter().map(|clock| Clock::from_u8(*clock))
    }

    /// Adds `frame` with the payload `bytes`. Returns the number of payload bytes that fit. Must not be called if the
    /// batch is full.
    pub(super) fn push(&mut self, frame: &Frame<'_>, bytes: &[u8]) -> usize {
        let row = self.end();
        let meta = frame.meta();
        let frames = &mut self.columns[FRAMES];
        let length = bytes.len().min(frames.width);
        let at = frames.at(row);
        let (payload, rest) = frames.bytes[at..at + frames.width].split_at_mut(length);
        payload.copy_from_slice(&bytes[..length]);
        rest.fill(0);
        self.columns[SEQUENCE].put(row, &meta.sequence.to_le_bytes());
        self.columns[EPOCH].put(row, &meta.epoch.to_le_bytes());
        self.columns[TIMESTAMP].put(row, &meta.timestamp.ns.to_le_bytes());
        self.columns[CLOCK].put(row, &[meta.timestamp.clock as u8]);
        self.columns[LENGTH].put(row, &(length as u64).to_le_bytes());
        self.columns[FLAGS].put(row, &meta.flags.0.to_le_bytes());
        let (plain, kept) = self.columns.split_at_mut(self.kept);
        if let Some(present) = plain.get_mut(PRESENT) {
            let at = present.at(row);
            let present = &mut present.bytes[at..at + present.width];
            // Entries beyond the number of packets of this frame must not count as missing.
            present.fill(1);
            for (first, count) in frame.present().missing() {
                let end = present.len().min(first as usize + count as usize);
                if let Some(missing) = present.get_mut(first as usize..end) {
                    missing.fill(0);
                }
            }
        }
        let sizes = &meta.packet_sizes;
        let sizes = [meta.packets_per_frame, sizes.first, sizes.rest];
        for (column, size) in plain.iter_mut().skip(PRESENT + 1).zip(sizes) {
            column.put(row, &size.to_le_bytes());
        }
        if let [mask, values @ ..] = kept {
            mask.put(row, &[meta.kept.mask()]);
            for (column, value) in values.iter_mut().zip(meta.kept.values()) {
                column.put(row, &value.to_le_bytes());
            }
        }
        self.rows += 1;
        length
    }

    /// Prepares this batch for the rows after those of `other`. Copies the earlier rows of shared chunks.
    pub(super) fn follow(&mut self, other: &Self) {
        (self.first, self.rows) = (other.end(), 0);
        for (mine, theirs) in self.columns.iter_mut().zip(&other.columns) {
            let before = mine.at(self.first);
            mine.bytes[..before].copy_from_slice(&theirs.bytes[..before]);
        }
    }

    /// Turns this batch into a copy of `other`, and takes the reserved file from `other`.
    pub(super) fn copy(&mut self, other: &mut Self) {
        (self.first, self.rows) = (other.first, other.rows);
        self.room = other.room.take();
        if self.rows == 0 {
            return;
        }
        for (mine, theirs) in self.columns.iter_mut().zip(&other.columns) {
            let end = theirs.at(other.end() - 1) + theirs.width;
            mine.bytes[..end].copy_from_slice(&theirs.bytes[..end]);
        }
    }

    /// Clears the rows after the last frame, because they contain stale data.
    pub(super) fn clear_tail(&mut self) {
        if self.rows == 0 {
            return;
        }
        let last = self.end() - 1;
        for column in &mut self.columns {
            let end = column.at(last) + column.width;
            column.bytes[end..].fill(0);
        }
    }
}
