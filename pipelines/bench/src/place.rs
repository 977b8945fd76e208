//! Allocates memory for ring copies. The memory is filled with a pattern that shows which bytes were copied, and to
//! which address.

use super::BenchError;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::Device;
use daq_core::gpu::{Backend, Writer};
use daq_core::ledger::RingLedger;
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Ring, RingOptions};
use daq_core::staging::Direction;
use daq_core::units::ByteSize;
use std::sync::Arc;

/// Number of bytes that are written or compared per step.
pub(super) const PIECE: usize = 1 << 20;

/// One host region and one GPU region, used by one ring copy after another.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) host: Arc<Region>,
    pub(super) gpu: Arc<Region>,
}

impl Place {
    /// Creates two regions of `bytes` bytes. The host region is pinned and filled with a pattern.
    pub(super) fn new(device: &'static Device, bytes: usize) -> Result<Self, BenchError> {
        let options = HostOptions {
            huge: true,
            ..HostOptions::default()
        };
        let host = Region::host(bytes, options)?;
        host.pin(device)?;
        let gpu = Region::cuda(device, bytes)?;
        let place = Self { host, gpu };
        place.prepare(Direction::In, 0)?;
        Ok(place)
    }

    /// Returns the same host region, combined with a new region of CPU-mapped GPU memory.
    pub(super) fn mapped(&self, device: &'static Device) -> Result<Self, BenchError> {
        let gpu = Region::mapped(device, self.gpu.bytes(), Writer::Cpu, &Backend::ALL)?;
        Ok(Self {
            host: self.host.clone(),
            gpu,
        })
    }

    /// Returns the source and the target region of a ring copy.
    pub(super) const fn ends(&self, direction: Direction) -> Ends<'_> {
        let (from, to) = match direction {
            Direction::In => (&self.host, &self.gpu),
            Direction::Out => (&self.gpu, &self.host),
        };
        Ends { from, to }
    }

    /// Fills the source region with the pattern of `seed`. Stale bytes in the target have the pattern of another seed,
    /// so they are not mistaken for copied bytes.
    pub(super) fn prepare(&self, direction: Direction, seed: u64) -> Result<(), BenchError> {
        self.ends(direction).prepare(seed)
    }

    /// Compares the target with the pattern of `seed`, see [`Ends::verify`].
    pub(super) fn verify(
        &self,
        direction: Direction,
        seed: u64,
        frame: usize,
        frames: u64,
    ) -> Result<u64, BenchError> {
        self.ends(direction).verify(seed, frame, frames)
    }
}

/// The source and the target region of a ring copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<'a> {
    pub(super) from: &'a Arc<Region>,
    pub(super) to: &'a Arc<Region>,
}

impl Ends<'_> {
    /// Fills the source region with the pattern of `seed`. Stale bytes in the target have the pattern of another seed,
    /// so they are not mistaken for copied bytes.
    pub(super) fn prepare(&self, seed: u64) -> Result<(), BenchError> {
        write(self.from, seed)
    }

    /// Compares the target with the pattern of `seed`, for a ring copy of `frames` frames of `frame` bytes. Skips slots
    /// to which no frame was copied. Returns the number of verified bytes, or an error if any byte differs.
    pub(super) fn verify(&self, seed: u64, frame: usize, frames: u64) -> Result<u64, BenchError> {
        let Self { from, to } = *self;
        let options = slots(to, frame);
        // Both rings have as many slots as fit into the smaller region.
        let have = options.slots.min(slots(from, frame).slots);
        let used = usize::try_from(frames).map_or(have, |frames| frames.min(have));
        let mut wanted = vec![0; PIECE];
        let mut right = 0;
        let mut compare = |at: usize, bytes: &[u8]| {
            let wanted = &mut wanted[..bytes.len()];
            fill(wanted, at, seed);
            let stride = options.stride();
            // The slots that overlap the bytes of this step.
            for slot in at / stride..(at + bytes.len()).div_ceil(stride).min(used) {
                let start = (slot * stride).max(at) - at;
                let end = (slot * stride + frame).min(at + bytes.len()).max(at) - at;
                let Some(range) = (start < end).then_some(start..end) else {
                    continue;
                };
                if bytes[range.clone()] != wanted[range] {
                    return Err(BenchError::Thread(format!(
                        "wrong bytes in slot {slot} of {used} after copies from {} to {} in frames of {}; this is a defect in daq",
                        from.placement(),
                        to.placement(),
                        ByteSize(frame as u64),
                    )));
                }
                right += (end - start) as u64;
            }
            Ok(())
        };
        // Bytes after the last used slot are not compared, because loads over the bus are slow.
        let end = to.bytes().min(used * options.stride());
        let mut bytes = vec![0; PIECE];
        for at in (0..end).step_by(PIECE) {
            let bytes = &mut bytes[..PIECE.min(end - at)];
            match (to.memory(), to.mapping()) {
                (Some(memory), _) => memory.read(at, bytes)?,
                (None, Some(mapped)) => mapped.copy_from(at, bytes)?,
                (None, None) => {
                    each_piece(to, |at, bytes| compare(at, bytes))?;
                    break;
                }
            }
            compare(at, bytes)?;
        }
        Ok(right)
    }
}

/// Returns the options of a ring with as many slots of `frame` bytes as fit into the region.
pub(super) fn slots(region: &Region, frame: usize) -> RingOptions {
    let one = RingOptions::new("slots", 1, frame);
    RingOptions {
        slots: region.bytes() / one.stride(),
        ..one
    }
}

/// Fills a region with the pattern of `seed`.
pub(super) fn write(region: &Arc<Region>, seed: u64) -> Result<(), BenchError> {
    let mut bytes = vec![0; PIECE];
    match region.memory() {
        Some(memory) => {
            for at in (0..memory.bytes()).step_by(PIECE) {
                let bytes = &mut bytes[..PIECE.min(memory.bytes() - at)];
                fill(bytes, at, seed);
                memory.write(at, bytes)?;
            }
            Ok(())
        }
        None => each_piece(region, |at, bytes| {
            fill(bytes, at, seed);
            Ok(())
        }),
    }
}

/// Fills the bytes at offset `at` of a region with the pattern of `seed`. All words of a region differ.
pub(super) fn fill(bytes: &mut [u8], at: usize, seed: u64) {
    let start = (at / 8) as u64;
    for (i, word) in (start..).zip(bytes.as_chunks_mut::<8>().0) {
        // Multiplication by an odd factor is a permutation of the words, so all words differ.
        let value = (i ^ (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *word = value.to_le_bytes();
    }
}

/// Passes all bytes of a host region to `each`, one piece at a time with its offset, through a ring over the region.
fn each_piece(
    region: &Arc<Region>,
    mut each: impl FnMut(usize, &mut [u8]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let options = slots(region, PIECE);
    let (_, mut producer) = Ring::new(region.clone(), options, RingLedger::default())?;
    let mut slots = producer.reserve(usize::MAX);
    let mut at = 0;
    while let Some(bytes) = slots.bytes_mut() {
        each(at, bytes)?;
        at += PIECE;
        slots.finish(FrameMeta::whole(0, PIECE));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies the first `bytes` bytes of one region to the other, in the same order as a ring copy.
    fn copy(place: &Place, bytes: usize) {
        let mut all = Vec::new();
        each_piece(&place.host, |_, piece| {
            all.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        each_piece(&place.gpu, |at, piece| {
            let end = bytes.clamp(at, at + piece.len());
            piece[..end - at].copy_from_slice(&all[at..end]);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn bytes_of_earlier_run_are_rejected() {
        let region = || Region::host(4 * PIECE, HostOptions::default()).unwrap();
        // A host region replaces the GPU region, so that the test needs no GPU.
        let place = Place {
            host: region(),
            gpu: region(),
        };
        // The slot size is not a divisor of the piece size, and the slots have gaps that are not copied.
        let frame = 1000;
        let stride = 1024;
        for seed in 1..3 {
            place.prepare(Direction::In, seed).unwrap();
            let verify = |frames| place.verify(Direction::In, seed, frame, frames);
            assert_eq!(verify(0).unwrap(), 0);
            assert!(
                verify(1).is_err(),
                "verification must fail, because no bytes of this seed were copied"
            );
            copy(&place, 1500 * stride);
            assert_eq!(verify(1500).unwrap(), 1500 * 1000);
            assert!(
                verify(1501).is_err(),
                "verification must fail for one slot more than was copied"
            );
            copy(&place, 4 * PIECE);
            assert_eq!(verify(u64::MAX).unwrap(), 4096 * 1000);
        }
        each_piece(&place.gpu, |at, piece| {
            if at == 2 * PIECE {
                piece[5 * stride + 999] ^= 1;
            }
            Ok(())
        })
        .unwrap();
        let failure = place.verify(Direction::In, 2, frame, u64::MAX).unwrap_err();
        assert!(failure.to_string().contains("slot 2053"), "{failure}");
    }

    #[test]
    fn pattern_words_are_distinct() {
        let mut words = std::collections::HashSet::new();
        for seed in 0..4 {
            let mut bytes = vec![0; 1 << 16];
            fill(&mut bytes, 3 << 16, seed);
            words.extend(bytes.as_chunks::<8>().0.iter().copied());
        }
        assert_eq!(words.len(), 4 << 13);
    }
}
