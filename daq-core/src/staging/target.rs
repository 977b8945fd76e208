//! CPU stores of frames to a ring on a GPU, without the copy engine.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::ledger::CopyLedger;
use crate::region::Placement;
use crate::ring::{Lease, Producer, Reader, Slice};
use std::sync::Arc;

/// Size in bytes of a line, whose bytes leave the CPU together. The last line of a frame is stored completely, because
/// storing a partial line is slower.
const LINE: usize = 64;

/// The memory of a ring on a GPU, to which the CPU can store.
#[derive(Debug)]
pub(super) enum Target {
    BarMapping(Arc<BarMapping>),
    /// Host memory that simulates GPU memory in tests.
    #[cfg(test)]
    Fake(super::tests::Memory),
}

impl Target {
    /// Returns the memory of `producer`'s ring; `None` if the CPU cannot write it or cannot read `reader`'s frames.
    pub(super) fn of(reader: &Reader, producer: &Producer) -> Option<Self> {
        let is_readable = reader.region().placement() == Placement::Host;
        let mapping = producer.region().mapping();
        mapping
            .filter(|_| is_readable)
            .map(|mapping| Self::BarMapping(mapping.clone()))
    }

    /// Logs a warning if the GPU is on a remote NUMA node, see [`super::warn_if_remote_numa`].
    pub(super) fn warn_if_remote_numa(&self, remedy: &str) {
        match self {
            Self::BarMapping(mapped) => super::warn_if_remote_numa(mapped.device(), remedy),
            #[cfg(test)]
            Self::Fake(_) => {}
        }
    }

    /// Stores the frames of `lease` to the slots `to`. With `fenced`, waits until the bytes have left the CPU. Returns
    /// the number of bytes.
    fn store(&self, lease: &Lease<'_>, to: Slice, fenced: bool) -> Result<u64, BarMappingError> {
        let Some(from) = lease.slice() else {
            unreachable!("the reader of a RingCopy leases slots of the ring, not copies of them");
        };
        match self {
            Self::BarMapping(mapped) => {
                let mut stores = mapped.stores()?;
                let put = |offset, bytes: &[u8]| stores.copy(offset, bytes);
                let bytes = each_stretch(lease, from, to, put)?;
                if !fenced {
                    stores.unfenced();
                }
                Ok(bytes)
            }
            #[cfg(test)]
            Self::Fake(memory) => {
                each_stretch(lease, from, to, |offset, bytes| memory.copy(offset, bytes))
            }
        }
    }
}

/// Stores the frames of `lease` to the first open slots of `producer`, with or without a [fence](Target::store), and
/// publishes them. Enough slots must be open, and none of the open slots may be finished already.
///
/// # Errors
/// If the memory can no longer be used. The frames are counted as failed, and none is published.
pub(super) fn store(
    target: &Target,
    lease: Lease<'_>,
    producer: &mut Producer,
    ledger: &CopyLedger,
    fenced: bool,
) -> Result<(), BarMappingError> {
    let len = lease.len();
    let frames = len as u64;
    ledger.started.add(frames);
    let mut slots = producer.reserve(len);
    let bytes = target
        .store(&lease, slots.slice(), fenced)
        .inspect_err(|_| {
            ledger.failed.add(frames);
        })?;
    slots.finish_as(&lease, len);
    slots.publish();
    drop(lease);
    ledger.frames.add(frames);
    ledger.stored.add(frames);
    ledger.count_copy(bytes);
    Ok(())
}

/// Passes the payload of the frames of `lease` to `put` in contiguous pieces, each with its offset in the target.
/// Returns the number of bytes. A frame that fills its slot is combined with the next frame into one piece.
fn each_stretch(
    lease: &Lease<'_>,
    from: Slice,
    to: Slice,
    mut put: impl FnMut(usize, &[u8]) -> Result<(), BarMappingError>,
) -> Result<u64, BarMappingError> {
    let mut lengths = lease.lengths();
    let (mut done, mut total) = (0, 0);
    while done < lease.len() {
        let (source, target) = (from.after(done), to.after(done));
        let count = source.contiguous().min(target.contiguous());
        let address = usize::try_from(source.address(0)).unwrap_or(usize::MAX);
        let address = std::ptr::with_exposed_provenance::<u8>(address);
        let offset = target.first * target.stride;
        let mut send = |begin: usize, bytes: usize| {
            if bytes == 0 {
                return Ok(());
            }
            total += bytes as u64;
            // SAFETY:
            // - The lease's slots are contiguous from `address` on, in host memory that was zeroed at allocation and
            //   lives as long as the reader.
            // - The piece does not exceed the last slot, because a slot's stride is a multiple of the line size.
            // - Nothing writes leased slots, and nothing ever writes the gaps between frames.
            let bytes = unsafe { std::slice::from_raw_parts(address.add(begin), bytes) };
            put(offset + begin, bytes)
        };
        let (mut begin, mut bytes) = (0, 0);
        for (i, length) in (1..).zip(lengths.by_ref().take(count)) {
            let lines = length.next_multiple_of(LINE);
            bytes += lines;
            if lines < source.stride {
                send(begin, bytes)?;
                (begin, bytes) = (i * source.stride, 0);
            }
        }
        send(begin, bytes)?;
        done += count;
    }
    Ok(total)
}
