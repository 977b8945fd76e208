//! Assigns the address of a write to a page and to a packet of the frame in that page.
//!
//! ```text
//!   base │ frame 0 … │ pad │ metadata │ … base + stride │ frame 1 … │ pad │ metadata │ …
//!        └ packet 0 ┆ packet 1 ┆ … ┘  └ 128 bytes, behind the frame rounded up to 128
//! ```
//! A sensor reuses its pages in cyclic order. In socket mode pages are numbers only: a write to page p goes to the slot of the
//! frame that is currently in page p. A write is accepted only if its address and its length match a packet of a frame.

use super::metadata;
use super::roce::Write;

/// The unit of the sensor's packet and page sizes, in bytes.
pub const ALIGNMENT: usize = 128;

/// The page layout of a sensor, and the queue pair and key that its packets must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Address of page 0.
    pub base: u64,
    /// Distance in bytes from one page to the next.
    pub stride: u64,
    /// Number of pages, 1 to 4096.
    pub count: u32,
    /// Number of payload bytes in a frame, at least 1.
    pub frame: usize,
    /// Number of payload bytes in each packet except the last of a frame, at least 1.
    pub packet: usize,
    /// Queue pair number that packets must carry.
    pub queue_pair: u32,
    /// Key that packets must carry.
    pub rkey: u32,
}

/// The position of a write in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPosition {
    /// Page index.
    pub page: u32,
    /// Index of the packet in the frame, from 0. A separate metadata packet has the index after the last.
    pub index: u32,
    /// Number of payload bytes that belong to the frame, from the start of the payload; 0 in a separate metadata packet.
    pub bytes: usize,
    /// Offset of the frame's metadata in the payload, if the packet contains them.
    pub metadata: Option<usize>,
}

/// Reason why a write is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Wrong queue pair.
    #[error("the packet is for queue pair {found}, not {expected}")]
    QueuePair {
        /// Queue pair in the packet.
        found: u32,
        /// Queue pair of this source.
        expected: u32,
    },
    /// Wrong key.
    #[error(
        "the packet has key {found:#010x}, not {expected:#010x}: the key is from an earlier arming, or forged"
    )]
    Key {
        /// Key in the packet.
        found: u32,
        /// Key of this source.
        expected: u32,
    },
    /// Wrong address or length.
    #[error(
        "the packet writes {bytes} bytes to {address:#x}, which is not the position of a packet of a frame: check `frame`, `packet` and `pages`"
    )]
    Position {
        /// Destination address.
        address: u64,
        /// Payload bytes.
        bytes: usize,
    },
    /// The immediate names another page, or the packet is not the last of its frame.
    #[error(
        "the packet writes to page {page}, but its immediate data ends the frame in page {stated}"
    )]
    Immediate {
        /// Page of the address.
        page: u32,
        /// Page in the immediate.
        stated: u32,
    },
}

impl Pages {
    /// Returns the number of data packets per frame.
    pub const fn packets(&self) -> usize {
        self.frame.div_ceil(self.packet)
    }

    /// Returns the offset of the metadata in a page.
    pub const fn metadata_at(frame: usize) -> usize {
        frame.next_multiple_of(ALIGNMENT)
    }

    /// Returns the minimum size of a page in bytes.
    pub const fn page_bytes(frame: usize) -> usize {
        Self::metadata_at(frame) + metadata::BYTES
    }

    /// Returns the position of `write`, or why it is rejected.
    #[inline]
    pub fn find(&self, write: &Write) -> Result<PacketPosition, Refused> {
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
        let position = self
            .position(write.address, bytes)
            .ok_or(Refused::Position {
                address: write.address,
                bytes,
            })?;
        let is_last = position.index as usize + 1 >= self.packets();
        match write.immediate {
            Some(immediate) if immediate & 0xfff != position.page || !is_last => {
                Err(Refused::Immediate {
                    page: position.page,
                    stated: immediate & 0xfff,
                })
            }
            // Only the packet that ends a frame contains metadata.
            None if position.metadata.is_some() => Err(Refused::Position {
                address: write.address,
                bytes,
            }),
            _ => Ok(position),
        }
    }

    fn position(&self, address: u64, bytes: usize) -> Option<PacketPosition> {
        let from_base = address.checked_sub(self.base)?;
        let page = u32::try_from(from_base / self.stride).ok()?;
        if page >= self.count {
            return None;
        }
        let offset = usize::try_from(from_base % self.stride).ok()?;
        let metadata_at = Self::metadata_at(self.frame);
        let packets = u32::try_from(self.packets()).ok()?;
        if offset == metadata_at {
            return (bytes == metadata::BYTES).then_some(PacketPosition {
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
        Some(PacketPosition {
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
    fn packets_and_metadata_have_positions() {
        let position = |page, index, bytes, metadata| {
            Ok(PacketPosition {
                page,
                index,
                bytes,
                metadata,
            })
        };
        assert_eq!(
            PAGES.find(&write(0x1000, 256, None)),
            position(0, 0, 256, None)
        );
        assert_eq!(
            PAGES.find(&write(0x1900, 256, None)),
            position(2, 1, 256, None)
        );
        assert_eq!(
            PAGES.find(&write(0x1200, 188, None)),
            position(0, 2, 188, None)
        );
        // Three frame ends: data only, data with metadata, and metadata only. The metadata begin at 768, which is 700
        // rounded up to a multiple of 128.
        assert_eq!(
            PAGES.find(&write(0x1600, 188, Some(0x7001))),
            position(1, 2, 188, None)
        );
        assert_eq!(
            PAGES.find(&write(0x1600, 256 + 128, Some(1))),
            position(1, 2, 188, Some(256))
        );
        assert_eq!(
            PAGES.find(&write(0x1700, 128, Some(1))),
            position(1, 3, 0, Some(0))
        );
    }

    #[test]
    fn other_writes_are_rejected() {
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
                matches!(refused, Err(Refused::Position { .. })),
                "{address:#x} {bytes}"
            );
        }
        // These writes are invalid: metadata without a frame end, a frame end within the frame, and a frame end of
        // another page.
        assert!(PAGES.find(&write(0x1300, 128, None)).is_err());
        assert!(PAGES.find(&write(0x1200, 384, None)).is_err());
        assert!(PAGES.find(&write(0x1000, 256, Some(0))).is_err());
        assert!(PAGES.find(&write(0x1300, 128, Some(1))).is_err());
    }

    proptest! {
        #[test]
        fn positions_stay_inside_a_frame(
            frame in 1_usize..5000,
            packet in 1_usize..20,
            count in 1_u32..4097,
            base: u64,
            address: u64,
            near: bool,
            bytes in 0_usize..6000,
            immediate: Option<u32>,
        ) {
            let packet = packet * ALIGNMENT;
            let stride = Pages::page_bytes(frame) as u64;
            let pages = Pages { base, stride, count, frame, packet, ..PAGES };
            let address = if near { base.wrapping_add(address % (stride * u64::from(count) + 1000)) } else { address };
            if let Ok(position) = pages.find(&write(address, bytes, immediate)) {
                prop_assert!(position.page < count && position.index as usize <= pages.packets());
                prop_assert!(position.index as usize * packet + position.bytes <= frame || position.bytes == 0);
                prop_assert!(position.bytes <= bytes);
                prop_assert!(position.metadata.is_none_or(|at| at + metadata::BYTES == bytes));
            }
        }
    }
}
