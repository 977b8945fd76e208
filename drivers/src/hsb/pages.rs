//! Where a write belongs: from its address to a page, and to a packet of the frame in it.
//!
//! ```text
//!   base │ frame 0 … │ pad │ metadata │ … base + stride │ frame 1 … │ pad │ metadata │ …
//!        └ packet 0 ┆ packet 1 ┆ … ┘  └ 128 bytes, behind the frame rounded up to 128
//! ```
//! A sensor goes round over its pages. Over a socket they are numbers only: what is written to page p goes to the slot of
//! whichever frame is in page p now. Nothing is believed before its address and its length are those of a packet.

use super::metadata;
use super::roce::Write;

/// The unit in which sensors count packets and pages.
pub const GRAIN: usize = 128;

/// The pages of a sensor, and who may write to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Address of page 0.
    pub base: u64,
    /// Bytes from one page to the next.
    pub stride: u64,
    /// Pages, 1 to 4096.
    pub count: u32,
    /// Payload bytes of a frame, at least 1.
    pub frame: usize,
    /// Payload bytes of each of its packets but the last, at least 1.
    pub packet: usize,
    /// The queue pair.
    pub queue_pair: u32,
    /// The key.
    pub rkey: u32,
}

/// Where a write belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The page.
    pub page: u32,
    /// The packet of the frame in that page, counted from 0; metadata that come by themselves are behind the last.
    pub index: u32,
    /// Bytes of the frame, the first of the payload; 0 in metadata that come by themselves.
    pub bytes: usize,
    /// Where in the payload the frame's metadata begin, if they are in it.
    pub metadata: Option<usize>,
}

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is for another queue pair.
    #[error("it is for queue pair {found}, not {expected}")]
    QueuePair {
        /// What it says.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// It has another key.
    #[error("its key is {found:#010x}, not {expected:#010x}: of an arming before, or forged")]
    Key {
        /// What it says.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// It writes where no packet of a frame belongs.
    #[error(
        "it writes {bytes} bytes to {address:#x}, where no packet of a frame is: check `frame`, `packet` and `pages`"
    )]
    Place {
        /// Where.
        address: u64,
        /// How much.
        bytes: usize,
    },
    /// It ends another frame than the one that it writes to, or one in its midst.
    #[error("it writes to page {page} and says that it ends the frame in page {said}")]
    Immediate {
        /// Where it writes.
        page: u32,
        /// What its immediate says.
        said: u32,
    },
}

impl Pages {
    /// Packets of a frame that carry some of it.
    pub const fn packets(&self) -> usize {
        self.frame.div_ceil(self.packet)
    }

    /// Where metadata begin in a page.
    pub const fn metadata_at(frame: usize) -> usize {
        frame.next_multiple_of(GRAIN)
    }

    /// Bytes of a page, at least.
    pub const fn page_bytes(frame: usize) -> usize {
        Self::metadata_at(frame) + metadata::BYTES
    }

    /// Where `write` belongs, if it may be written at all.
    #[inline]
    pub fn find(&self, write: &Write) -> Result<Spot, Refused> {
        if write.queue_pair != self.queue_pair {
            return Err(Refused::QueuePair {
                found: write.queue_pair,
                expected: self.queue_pair,
            });
        }
        if write.rkey != self.rkey {
            return Err(Refused::Key {
                found: write.rkey,
                expected: self.rkey,
            });
        }
        let bytes = write.payload.len();
        let spot = self.spot(write.address, bytes).ok_or(Refused::Place {
            address: write.address,
            bytes,
        })?;
        let is_last = spot.index as usize + 1 >= self.packets();
        match write.immediate {
            Some(immediate) if immediate & 0xfff != spot.page || !is_last => {
                Err(Refused::Immediate {
                    page: spot.page,
                    said: immediate & 0xfff,
                })
            }
            // Only the packet that ends a frame brings metadata.
            None if spot.metadata.is_some() => Err(Refused::Place {
                address: write.address,
                bytes,
            }),
            _ => Ok(spot),
        }
    }

    fn spot(&self, address: u64, bytes: usize) -> Option<Spot> {
        let from_base = address.checked_sub(self.base)?;
        let page = u32::try_from(from_base / self.stride).ok()?;
        if page >= self.count {
            return None;
        }
        let offset = usize::try_from(from_base % self.stride).ok()?;
        let metadata_at = Self::metadata_at(self.frame);
        let packets = u32::try_from(self.packets()).ok()?;
        if offset == metadata_at {
            return (bytes == metadata::BYTES).then_some(Spot {
                page,
                index: packets,
                bytes: 0,
                metadata: Some(0),
            });
        }
        if offset >= self.frame || !offset.is_multiple_of(self.packet) {
            return None;
        }
        let index = u32::try_from(offset / self.packet).ok()?;
        let belongs = self.packet.min(self.frame - offset);
        let metadata = if bytes == belongs {
            None
        } else if index + 1 == packets && bytes == metadata_at - offset + metadata::BYTES {
            Some(metadata_at - offset)
        } else {
            return None;
        };
        Some(Spot {
            page,
            index,
            bytes: belongs,
            metadata,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: Pages = Pages {
        base: 0x1000,
        stride: 1024,
        count: 4,
        frame: 700,
        packet: 256,
        queue_pair: 5,
        rkey: 9,
    };

    fn write(address: u64, bytes: usize, immediate: Option<u32>) -> Write {
        Write {
            queue_pair: 5,
            psn: 0,
            address,
            rkey: 9,
            immediate,
            payload: 28..28 + bytes,
        }
    }

    #[test]
    fn page_packets_and_metadata_have_offsets() {
        let spot = |page, index, bytes, metadata| {
            Ok(Spot {
                page,
                index,
                bytes,
                metadata,
            })
        };
        assert_eq!(PAGES.find(&write(0x1000, 256, None)), spot(0, 0, 256, None));
        assert_eq!(PAGES.find(&write(0x1900, 256, None)), spot(2, 1, 256, None));
        assert_eq!(PAGES.find(&write(0x1200, 188, None)), spot(0, 2, 188, None));
        // The end of a frame: alone, with metadata, and metadata alone. 700 rounded up is 768.
        assert_eq!(
            PAGES.find(&write(0x1600, 188, Some(0x7001))),
            spot(1, 2, 188, None)
        );
        assert_eq!(
            PAGES.find(&write(0x1600, 256 + 128, Some(1))),
            spot(1, 2, 188, Some(256))
        );
        assert_eq!(
            PAGES.find(&write(0x1700, 128, Some(1))),
            spot(1, 3, 0, Some(0))
        );
    }

    #[test]
    fn page_other_addresses_are_rejected() {
        let mut other = write(0x1000, 256, None);
        other.rkey = 8;
        assert!(matches!(
            PAGES.find(&other),
            Err(Refused::Key { found: 8, .. })
        ));
        let mut other = write(0x1000, 256, None);
        other.queue_pair = 4;
        assert!(matches!(
            PAGES.find(&other),
            Err(Refused::QueuePair { found: 4, .. })
        ));
        for (address, bytes) in [
            (0xfff, 256),
            (0, 256),
            (u64::MAX, 256),
            (0x2000, 256),
            (0x1001, 256),
            (0x1080, 256),
            (0x1000, 255),
            (0x1000, 257),
            (0x1000, 0),
            (0x1200, 256),
            (0x1200, 189),
            (0x1300, 256),
            (0x1380, 128),
        ] {
            let refused = PAGES.find(&write(address, bytes, None));
            assert!(
                matches!(refused, Err(Refused::Place { .. })),
                "{address:#x} {bytes}"
            );
        }
        // Metadata without an end, ends in the midst of a frame, and of another page.
        assert!(PAGES.find(&write(0x1300, 128, None)).is_err());
        assert!(PAGES.find(&write(0x1200, 384, None)).is_err());
        assert!(PAGES.find(&write(0x1000, 256, Some(0))).is_err());
        assert!(PAGES.find(&write(0x1300, 128, Some(1))).is_err());
    }

    proptest! {
        #[test]
        fn page_offsets_stay_inside_frame(
            frame in 1_usize..5000,
            packet in 1_usize..20,
            count in 1_u32..4097,
            base: u64,
            address: u64,
            near: bool,
            bytes in 0_usize..6000,
            immediate: Option<u32>,
        ) {
            let packet = packet * GRAIN;
            let stride = Pages::page_bytes(frame) as u64;
            let pages = Pages { base, stride, count, frame, packet, ..PAGES };
            let address = if near { base.wrapping_add(address % (stride * u64::from(count) + 1000)) } else { address };
            if let Ok(spot) = pages.find(&write(address, bytes, immediate)) {
                prop_assert!(spot.page < count && spot.index as usize <= pages.packets());
                prop_assert!(spot.index as usize * packet + spot.bytes <= frame || spot.bytes == 0);
                prop_assert!(spot.bytes <= bytes);
                prop_assert!(spot.metadata.is_none_or(|at| at + metadata::BYTES == bytes));
            }
        }
    }
}
