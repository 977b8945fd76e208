//! Sharing a ring with readers in other processes.

use super::Ring;
use super::state::RECORDS;
use crate::region::{ShareError, SharedMemory};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Descriptors and sizes with which another process reads a ring. `docs/src/reference/attach.md` describes the layout.
#[derive(Debug)]
pub struct SharedRing {
    /// The positions and records, which can only be read.
    pub state: OwnedFd,
    /// The slots.
    pub memory: SharedMemory,
    /// Offset of the first record in bytes.
    pub records: usize,
    /// Distance between the starts of neighbouring records in bytes.
    pub record_stride: usize,
    /// Number of words of 8 bytes in the bitmap of present packets.
    pub bitmap_words: usize,
}

impl Ring {
    /// Returns descriptors with which another process can read the ring.
    ///
    /// # Errors
    /// If the memory of the ring cannot be shared.
    pub fn share(&self) -> Result<SharedRing, ShareError> {
        let state = &self.shared.state;
        let SharedMemory::Host(file) = state.memory().share()? else {
            return Err(ShareError::Private);
        };
        Ok(SharedRing {
            state: file,
            memory: self.shared.region.share()?,
            records: RECORDS,
            record_stride: state.slots.stride_bytes(),
            bitmap_words: state.slots.bitmap_len(),
        })
    }

    /// Wakes the readers in other processes that wait on the futex word of the state.
    pub fn wake_processes(&self) {
        let word = &self.shared.state.wake;
        word.fetch_add(1, Ordering::Release);
        // Fails only for an invalid address.
        let _ =
            rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Waits as a reader does until more than `published` frames are published, the ring is closed, or about `limit` has
    /// passed. Returns the number of published frames.
    pub fn wait(&self, published: u64, limit: std::time::Duration) -> u64 {
        let ready = || self.published() > published || self.is_closed();
        self.shared
            .filled
            .wait(crate::notify::Wait::Event, limit, ready);
        self.published()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Clock, Flags, FrameMeta, KeptFields, Timestamp};
    use crate::ledger::RingLedger;
    use crate::region::{HostOptions, Region};
    use crate::ring::{Producer, RingOptions};
    use std::time::Duration;

    fn ring(shared: bool) -> (Ring, Producer) {
        let options = RingOptions {
            packets_per_frame: 65,
            kept: vec!["antenna".to_owned()],
            ..RingOptions::new("raw", 4, 8)
        };
        let memory = HostOptions {
            shared,
            ..HostOptions::default()
        };
        let region = Region::host(options.region_bytes(), memory).unwrap();
        Ring::new(region, options, RingLedger::default()).unwrap()
    }

    fn word(file: &OwnedFd, at: usize) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::pread(file, &mut bytes, at as u64), Ok(8));
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn shared_ring_has_documented_layout() {
        let (ring, mut producer) = ring(true);
        let shared = ring.share().unwrap();
        let SharedMemory::Host(memory) = &shared.memory else {
            panic!("the ring is in host memory");
        };
        for sequence in 0..6_u8 {
            let mut slots = producer.reserve(1);
            slots.bytes_mut().unwrap().fill(b'0' + sequence);
            let meta = FrameMeta {
                sequence: sequence.into(),
                epoch: 2,
                flags: Flags::INCOMPLETE,
                timestamp: Timestamp {
                    ns: 5,
                    clock: Clock::Kernel,
                },
                length: 8,
                packets_per_frame: 65,
                arrived: 64,
                kept: KeptFields::default().with(0, 42),
                ..FrameMeta::default()
            };
            slots.finish_with(meta, &[u64::MAX, 0]);
            slots.publish();
        }
        let at = |offset| word(&shared.state, offset);
        assert_eq!(&at(0).to_le_bytes(), b"daqring1");
        // The futex word has four bytes, and padding after it.
        let wake = || at(256) & u64::from(u32::MAX);
        assert_eq!((at(8), at(64), at(128), at(192), wake()), (1, 6, 6, 0, 0));
        let record = shared.records + shared.record_stride;
        let words: Vec<_> = (0..11).map(|i| at(record + i * 8)).collect();
        let head = [5, 2 | 1 << 32, 5, 2, 8, 0x40_0000_0041, 0];
        assert_eq!(words, [&head[..], &[u64::MAX, 0, 1, 42]].concat());
        assert_eq!(shared.bitmap_words, 2);
        assert_eq!(word(memory, 64), u64::from_le_bytes([b'5'; 8]));
        assert_eq!(ring.wait(5, Duration::from_mins(1)), 6);
        ring.wake_processes();
        drop(producer);
        assert_eq!((at(192), wake()), (1, 1));
        assert_eq!(ring.wait(6, Duration::from_mins(1)), 6);
    }

    #[test]
    fn private_ring_is_not_shared() {
        let (ring, _producer) = ring(false);
        assert!(matches!(ring.share(), Err(ShareError::Private)));
    }
}
