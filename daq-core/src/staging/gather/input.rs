//! One share of a gather: a ring, and the copies from it.

use crate::ring::{Completion, Lease, Reader, Slice, WorkInFlight};
use crate::staging::methods::CopyMethod;
use crate::staging::selection::{Every, Overlap};
use crate::staging::{StagingError, Tile};
use std::fmt;

/// One of the rings that a [`Gather`](super::Gather) joins.
#[derive(Debug)]
pub struct Share {
    /// A guaranteed reader of the ring.
    pub reader: Reader,
    /// The copies from the ring to the target. No other ring copy uses them.
    pub method: Box<dyn CopyMethod>,
    /// The rectangle of the whole frame that the ring's frames contain; `None` if the ring has whole frames.
    pub tile: Option<Tile>,
}

/// Frames of one share that belong to the batch that starts next: the frame `i` of them becomes frame `first + i * step` of
/// the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Take {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
}

impl Take {
    /// Returns the first `count` frames of a batch.
    pub(super) const fn consecutive(count: usize) -> Self {
        Self {
            first: 0,
            step: 1,
            count,
        }
    }

    /// Returns which of the frames becomes frame `at` of the batch.
    pub(super) const fn index_of(&self, at: usize) -> Option<u64> {
        if self.count == 0 || at < self.first || !(at - self.first).is_multiple_of(self.step) {
            return None;
        }
        let index = (at - self.first) / self.step;
        if index < self.count {
            Some(index as u64)
        } else {
            None
        }
    }

    /// Adds a frame that becomes frame `at` of the batch. Returns false if the distances between the frames would not be
    /// equal.
    pub(super) const fn add(&mut self, at: usize) -> bool {
        match self.count {
            0 => (self.first, self.step) = (at, 1),
            1 => self.step = at - self.first,
            count if at != self.first + count * self.step => return false,
            _ => {}
        }
        self.count += 1;
        true
    }
}

/// A share and its copies in flight.
pub(super) struct Input {
    pub(super) reader: Reader,
    pub(super) method: Box<dyn CopyMethod>,
    /// The bytes of each frame to copy; `None` for whole frames.
    pub(super) overlap: Option<Overlap>,
    /// Size of the share of a frame in bytes; 0 for whole frames.
    pub(super) bytes: usize,
    /// The number of the batch that each copy in flight belongs to; `None` for frames that are discarded.
    pub(super) work: WorkInFlight<Option<u64>>,
    pub(super) take: Take,
    /// Whether the device of the share has failed, so that its frames are discarded.
    pub(super) is_lost: bool,
}

/// The part of a batch that one share contributes.
pub(super) struct Started {
    pub(super) bytes: u64,
    /// Whether the copy is in flight.
    pub(super) in_flight: bool,
    /// Error that prevented the copy.
    pub(super) error: Option<StagingError>,
}

impl Share {
    /// Returns the input of a gather whose target contains `target`; of whole frames if that is `None`.
    pub(super) fn into_input(self, target: Option<&Tile>) -> Input {
        let overlap = self.tile.as_ref().zip(target).and_then(|(tile, target)| {
            let common = tile.intersection(target)?;
            Some(Overlap::of(tile, target, &common))
        });
        Input {
            work: WorkInFlight::new(self.reader.options().slots),
            reader: self.reader,
            method: self.method,
            bytes: self.tile.as_ref().map_or(0, Tile::bytes),
            overlap,
            take: Take::default(),
            is_lost: false,
        }
    }
}

impl Input {
    /// Returns the number of the frame after the next `after` frames; `None` if it is not ready.
    pub(super) fn head(&self, after: usize) -> Option<(u32, u64)> {
        self.reader.number(after as u64).filter(|_| !self.is_lost)
    }

    /// Whether no frame will follow the next `after` frames.
    pub(super) fn is_over(&self, after: usize) -> bool {
        // Read first whether the ring is closed, so that all its frames are visible afterwards.
        self.is_lost || self.reader.is_closed() && self.reader.pending() <= after as u64
    }

    /// Whether the frames that are ready fill half of the ring.
    pub(super) fn is_flooded(&self) -> bool {
        self.reader.pending() * 2 >= self.reader.options().slots as u64
    }

    /// Whether the ring is closed and all its frames are retired.
    pub(super) fn is_finished(&self) -> bool {
        self.work.is_empty() && self.reader.is_finished()
    }

    /// Passes `frames` frames, which count as discarded.
    pub(super) fn discard(&mut self, frames: u64) {
        let end = self.reader.position() + frames;
        while self.reader.position() < end {
            let left = usize::try_from(end - self.reader.position()).unwrap_or(usize::MAX);
            let Some(lease) = self.reader.poll(left) else {
                return;
            };
            self.work.push_discarded(lease, 0, None);
        }
    }

    /// Starts the copy of the frames of `take` to slots of `to`, the slots of the batch `batch`.
    ///
    /// # Safety
    /// The slots of `to` must stay reserved, and the memory of both rings allocated, until the copy has ended. All slots
    /// must contain the overlap.
    pub(super) unsafe fn start(&mut self, to: Slice, batch: u64) -> Started {
        let Take { first, step, count } = self.take;
        let Some(lease) = self.reader.poll(count) else {
            unreachable!("the frames of a take are ready");
        };
        let overlap = self.overlap.unwrap_or_else(|| whole(&lease));
        let Some(from) = lease.slice() else {
            unreachable!("a guaranteed reader leases slots");
        };
        let to = Every {
            slots: to.after(first),
            step,
        };
        // SAFETY: the caller guarantees the requirements. The frames stay leased until the event below is done.
        let copied = unsafe { overlap.copy(&*self.method, Every::slot(from), to, lease.len()) };
        let ended = copied.and_then(|bytes| Ok((bytes, self.method.record_event()?)));
        match ended {
            Ok((bytes, Completion::Immediate)) if self.work.is_empty() => {
                drop(lease);
                Started {
                    bytes,
                    in_flight: false,
                    error: None,
                }
            }
            Ok((bytes, done)) => {
                self.work.push(lease, done, Some(batch));
                Started {
                    bytes,
                    in_flight: true,
                    error: None,
                }
            }
            Err(error) => {
                self.work.fail();
                // A part of the copy may be in flight, so the lease must end after it.
                let in_flight = match self.method.record_event() {
                    Ok(Completion::Immediate) => false,
                    Ok(done) => {
                        self.work.push(lease, done, Some(batch));
                        true
                    }
                    Err(_) => {
                        self.method.settle();
                        false
                    }
                };
                Started {
                    bytes: 0,
                    in_flight,
                    error: Some(error),
                }
            }
        }
    }
}

/// Returns the bytes to copy of whole frames: up to the end of the longest.
fn whole(lease: &Lease<'_>) -> Overlap {
    Overlap::of_frames(lease.lengths(0).max().unwrap_or(0))
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("ring", &self.reader.options().name)
            .field("work", &self.work)
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}
