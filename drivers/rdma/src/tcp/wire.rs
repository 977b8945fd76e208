//! The messages of two queue pairs over a TCP stream. All numbers are little-endian.
//!
//! ```text
//!   batch    head      magic u32 │ check u32 │ done u64 │ count u16 │ refusal u16 │ 0 u32
//!            messages  count × (address u64 │ bytes u64 │ rkey u32 │ immediate u32 │ flags u32 │ 0 u32)
//!            payloads  of all messages, in order, without padding
//! ```
//! `done` is the number of messages of the other side that have completed; a batch without messages is only this
//! acknowledgement. The destinations of all payloads of a batch come first, so that the receiver can read the payloads
//! with one call, each into its place. Bit 0 of `flags` means that the message has immediate data, bit 1 that it must be
//! acknowledged at once. `check` covers head and messages. Payloads are covered by TCP's checksum, and by those
//! of the frame protocol if they are enabled.

use crate::verbs::Status;

/// The magic number of a batch: `daqT`.
const MAGIC: u32 = 0x5471_6164;
/// Size of a head in bytes.
pub(super) const HEAD: usize = 24;
/// Size of a message without its payload in bytes.
pub(super) const MESSAGE: usize = 32;
/// Maximum number of messages per batch.
pub(super) const MAX_MESSAGES: usize = 128;
/// Maximum size of head and messages in bytes.
pub(super) const MAX_BLOCK: usize = HEAD + MAX_MESSAGES * MESSAGE;
/// Maximum payload of a message in bytes.
pub(super) const MAX_PAYLOAD: u64 = 1 << 40;

/// The head of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of messages of the other side that have completed.
    pub done: u64,
    /// Number of messages in this batch.
    pub count: usize,
    /// The status with which message `done` of the other side was rejected; `None` if no message was rejected.
    pub refusal: Option<Status>,
}

/// A write to registered memory of the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// Remote address of the first byte.
    pub address: u64,
    /// Length of the payload in bytes.
    pub bytes: u64,
    /// Remote key of the memory.
    pub rkey: u32,
    /// Immediate data; with it, the message uses a posted receive.
    pub immediate: Option<u32>,
    /// True if the message must be acknowledged at once. Other messages may be acknowledged later, together.
    pub is_urgent: bool,
}

/// Error: the bytes are not a batch of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidBatch;

impl Head {
    /// Appends head and `messages` to the empty `block`.
    pub(super) fn encode(self, messages: impl Iterator<Item = Message>, block: &mut Vec<u8>) {
        block.extend(MAGIC.to_le_bytes());
        block.extend([0; 4]);
        block.extend(self.done.to_le_bytes());
        block.extend(u16::try_from(self.count).unwrap_or(u16::MAX).to_le_bytes());
        let refusal: u16 = match self.refusal {
            None => 0,
            Some(Status::RemoteAccess) => 1,
            Some(Status::NotReady) => 2,
            Some(_) => 3,
        };
        block.extend(refusal.to_le_bytes());
        block.extend([0; 4]);
        for message in messages {
            block.extend(message.address.to_le_bytes());
            block.extend(message.bytes.to_le_bytes());
            block.extend(message.rkey.to_le_bytes());
            block.extend(message.immediate.unwrap_or(0).to_le_bytes());
            let flags = u32::from(message.immediate.is_some()) | u32::from(message.is_urgent) << 1;
            block.extend(flags.to_le_bytes());
            block.extend([0; 4]);
        }
        debug_assert_eq!(block.len(), HEAD + self.count * MESSAGE);
        let check = checksum(block);
        block[4..8].copy_from_slice(&check.to_le_bytes());
    }

    /// Returns the size in bytes of the block of head and messages that starts with `bytes`, at least [`HEAD`] of them.
    pub(super) fn block_bytes(bytes: &[u8]) -> Result<usize, InvalidBatch> {
        let count = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        if word(bytes, 0) != MAGIC || count > MAX_MESSAGES {
            return Err(InvalidBatch);
        }
        Ok(HEAD + count * MESSAGE)
    }

    /// Decodes a block of the size that [`block_bytes`](Self::block_bytes) returns.
    pub(super) fn decode(block: &[u8]) -> Result<Self, InvalidBatch> {
        if Self::block_bytes(block)? != block.len() || word(block, 4) != checksum(block) {
            return Err(InvalidBatch);
        }
        let refusal = match u16::from_le_bytes([block[18], block[19]]) {
            0 => None,
            1 => Some(Status::RemoteAccess),
            2 => Some(Status::NotReady),
            3 => Some(Status::RemoteOperation),
            _ => return Err(InvalidBatch),
        };
        Ok(Self {
            done: long(block, 8),
            count: (block.len() - HEAD) / MESSAGE,
            refusal,
        })
    }
}

impl Message {
    /// Decodes message `i` of a block.
    pub(super) fn decode(block: &[u8], i: usize) -> Result<Self, InvalidBatch> {
        let at = HEAD + i * MESSAGE;
        let flags = word(block, at + 24);
        if flags > 3 {
            return Err(InvalidBatch);
        }
        let bytes = long(block, at + 8);
        if bytes > MAX_PAYLOAD {
            return Err(InvalidBatch);
        }
        Ok(Self {
            address: long(block, at),
            bytes,
            rkey: word(block, at + 16),
            immediate: (flags & 1 == 1).then(|| word(block, at + 20)),
            is_urgent: flags & 2 == 2,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Returns a checksum of a block, whose size is a multiple of 8. The field of the checksum itself counts as 0.
fn checksum(block: &[u8]) -> u32 {
    // Each word is mixed into the state by a multiplication with an odd number and a rotation, both of which are
    // invertible, so that two blocks that differ in one word never have the same state.
    let mix = |state: u64, at: usize| {
        let value = long(block, at)
            & if at == 0 {
                u64::from(u32::MAX)
            } else {
                u64::MAX
            };
        (state ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    let state = (0..block.len() / 8).fold(block.len() as u64, |state, i| mix(state, i * 8));
    let folded = (state ^ state >> 32) & u64::from(u32::MAX);
    u32::try_from(folded).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let numbers = (any::<u64>(), 0..=MAX_PAYLOAD, any::<u32>());
        let flags = (any::<Option<u32>>(), any::<bool>());
        (numbers, flags).prop_map(|((address, bytes, rkey), (immediate, is_urgent))| Message {
            address,
            bytes,
            rkey,
            immediate,
            is_urgent,
        })
    }

    fn block(done: u64, refusal: Option<Status>, messages: &[Message]) -> Vec<u8> {
        let (mut block, count) = (Vec::new(), messages.len());
        let head = Head {
            done,
            count,
            refusal,
        };
        head.encode(messages.iter().copied(), &mut block);
        block
    }

    proptest! {
        #[test]
        fn batches_round_trip(done: u64, refused in 0..4_usize, messages in prop::collection::vec(message(), 0..=MAX_MESSAGES)) {
            let refusal = [None, Some(Status::RemoteAccess), Some(Status::NotReady), Some(Status::RemoteOperation)][refused];
            let block = block(done, refusal, &messages);
            prop_assert!(block.len() <= MAX_BLOCK);
            prop_assert_eq!(Head::block_bytes(&block[..HEAD]), Ok(block.len()));
            prop_assert_eq!(Head::decode(&block), Ok(Head { done, count: messages.len(), refusal }));
            for (i, message) in messages.iter().enumerate() {
                prop_assert_eq!(Message::decode(&block, i), Ok(*message));
            }
        }

        /// A damaged block must not direct a payload to another place.
        #[test]
        fn changed_bits_are_detected(messages in prop::collection::vec(message(), 0..4), at: prop::sample::Index, bit in 0..8_u32) {
            let mut block = block(7, None, &messages);
            let at = at.index(block.len());
            block[at] ^= 1 << bit;
            prop_assert_eq!(Head::decode(&block), Err(InvalidBatch));
        }

        #[test]
        fn foreign_bytes_are_rejected(bytes in prop::collection::vec(any::<u8>(), HEAD..HEAD + 3 * MESSAGE)) {
            prop_assert_eq!(Head::decode(&bytes), Err(InvalidBatch));
        }
    }
}
