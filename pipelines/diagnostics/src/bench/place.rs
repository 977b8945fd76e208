//! Memory for a lane, filled with bytes that tell whether they were copied, and where to.

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

/// Bytes that are written or compared at a time.
const PIECE: usize = 1 << 20;

/// The regions of one ring in host memory and one on a GPU, used by one lane after another.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) host: Arc<Region>,
    pub(super) gpu: Arc<Region>,
}

impl Place {
    /// Two regions of `bytes`; the host's is pinned and filled with bytes that are not alike.
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

    /// The same host memory beside memory of the GPU that the CPU can store to.
    pub(super) fn mapped(&self, device: &'static Device) -> Result<Self, BenchError> {
        let gpu = Region::mapped(device, self.gpu.bytes(), Writer::Cpu, &Backend::ALL)?;
        Ok(Self {
            host: self.host.clone(),
            gpu,
        })
    }

    /// The regions that a lane copies from and to.
    pub(super) const fn ends(&self, direction: Direction) -> (&Arc<Region>, &Arc<Region>) {
        match direction {
            Direction::In => (&self.host, &self.gpu),
            Direction::Out => (&self.gpu, &self.host),
        }
    }

    /// Fills the source's region with the bytes of `seed`. What lies in the target, of another seed or none, can then
    /// not be taken for a copy of it.
    pub(super) fn prepare(&self, direction: Direction, seed: u64) -> Result<(), BenchError> {
        let (from, _) = self.ends(direction);
        let mut bytes = vec![0; PIECE];
        match from.memory() {
            Some(memory) => {
                for at in (0..memory.bytes()).step_by(PIECE) {
                    let bytes = &mut bytes[..PIECE.min(memory.bytes() - at)];
                    fill(bytes, at, seed);
                    memory.write(at, bytes)?;
                }
                Ok(())
            }
            None => each_piece(from, |at, bytes| {
                fill(bytes, at, seed);
                Ok(())
            }),
        }
    }

    /// Compares what a lane of frames of `frame` bytes made of the target with the bytes of `seed`, where at least one
    /// of its `frames` frames lay, and gives the number of bytes that are right: all, or it is an error.
    pub(super) fn verify(
        &self,
        direction: Direction,
        seed: u64,
        frame: usize,
        frames: u64,
    ) -> Result<u64, BenchError> {
        let (from, to) = self.ends(direction);
        let options = slots(to, frame);
        // A lane's rings have as many slots as the smaller of them has room for.
        let have = options.slots.min(slots(from, frame).slots);
        let used = usize::try_from(frames).map_or(have, |frames| frames.min(have));
        let mut wanted = vec![0; PIECE];
        let mut right = 0;
        let mut compare = |at: usize, bytes: &[u8]| {
            let wanted = &mut wanted[..bytes.len()];
            fill(wanted, at, seed);
            let stride = options.stride();
            // The slots that reach into the piece.
            for slot in at / stride..(at + bytes.len()).div_ceil(stride).min(used) {
                let start = (slot * stride).max(at) - at;
                let end = (slot * stride + frame).min(at + bytes.len()).max(at) - at;
                let Some(range) = (start < end).then_some(start..end) else {
                    continue;
                };
                if bytes[range.clone()] != wanted[range] {
                    return Err(BenchError::Thread(format!(
                        "slot {slot} of {used}, copied {} in frames of {}: bytes differ from those sent; this is a defect in daq",
                        if direction == Direction::In {
                            "in"
                        } else {
                            "out"
                        },
                        ByteSize(frame as u64),
                    )));
                }
                right += (end - start) as u64;
            }
            Ok(())
        };
        // What lies behind the last slot that was used does not matter, and loads through the bus take their time.
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

/// As many slots for frames of `frame` bytes as a region has room for.
pub(super) fn slots(region: &Region, frame: usize) -> RingOptions {
    let one = RingOptions::new("slots", 1, frame);
    RingOptions {
        slots: region.bytes() / one.stride(),
        ..one
    }
}

/// Fills the bytes that lie at `at` of a region by `seed`: no two words of a region are alike.
fn fill(bytes: &mut [u8], at: usize, seed: u64) {
    let start = (at / 8) as u64;
    for (i, word) in (start..).zip(bytes.as_chunks_mut::<8>().0) {
        // Odd factors: a permutation of the words.
        let value = (i ^ (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *word = value.to_le_bytes();
    }
}

/// Gives `each` all bytes of a host region, a piece at a time with its offset, through a ring over it.
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

    /// Copies the first `bytes` of one region to the other as a lane would.
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
        // A region of the host in place of the GPU's, so that no GPU is needed.
        let place = Place {
            host: region(),
            gpu: region(),
        };
        // Slots of a size that divides no piece, with bytes between them that are not copied.
        let frame = 1000;
        let stride = 1024;
        for seed in 1..3 {
            place.prepare(Direction::In, seed).unwrap();
            let verify = |frames| place.verify(Direction::In, seed, frame, frames);
            assert_eq!(verify(0).unwrap(), 0);
            assert!(verify(1).is_err(), "nothing was copied of this seed");
            copy(&place, 1500 * stride);
            assert_eq!(verify(1500).unwrap(), 1500 * 1000);
            assert!(verify(1501).is_err(), "one more than was copied");
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
