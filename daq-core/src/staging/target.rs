//! CPU stores of frames to a ring on a GPU, without the copy engine.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::ledger::CopyLedger;
use crate::region::Placement;
use crate::ring::{Lease, Producer, Reader, Slice};
use std::sync::Arc;

/// Bytes that leave the CPU together. A frame's last line is stored whole, because a partial line is slower.
const LINE: usize = 64;

/// A ring's memory on a GPU, as the CPU stores to it.
#[derive(Debug)]
pub(super) enum Target {
    BarMapping(Arc<BarMapping>),
    /// Host memory that simulates it.
    #[cfg(test)]
    Fake(super::tests::Memory),
}

impl Target {
    /// The memory of `producer`'s ring; `None` if the CPU cannot write it or cannot read `reader`'s frames.
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

    /// Stores the frames of `lease` to the slots `to`; with `fenced`, waits until they have left the CPU. Returns the
    /// number of bytes.
    fn store(&self, lease: &Lease<'_>, to: Slice, fenced: bool) -> Result<u64, BarMappingError> {
        let Some(from) = lease.slice() else {
            unreachable!("the reader of a ring_copy leases slots, not copies");
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

/// Stores `lease` to the first free slots of `producer`, [fenced](Target::store) or not, and publishes it. There must
/// be enough slots, and none may be finished before them.
///
/// # Errors
/// Why the memory can no longer be used. The frames are counted as failed and none is published.
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

/// Passes the payload of the frames of `lease` to `put`, in contiguous pieces, each with its offset in the target;
/// returns the number of bytes. Frames that fill their slots are combined with the next one; others are passed by
/// their length.
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
            // SAFETY: the lease's slots are contiguous from `address` on, in host memory that was zeroed at
            // allocation and lives as long as the reader. The piece ends before the end of the last slot, because
            // whole lines divide a slot's stride. Leased slots are not written, and the gaps between frames never
            // are.
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
