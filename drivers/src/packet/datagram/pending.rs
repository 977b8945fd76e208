//! A queue of datagrams that cannot be placed yet, because their format is not detected or their epoch is not confirmed.

use daq_core::frame::{Clock, Timestamp};

/// Number of bytes stored before each datagram, for its length, its timestamp, the clock of the timestamp, and its tag.
pub(crate) const HEAD: usize = 4 + 8 + 1 + 2;

/// A queue of datagrams in a buffer that is allocated once.
#[derive(Debug, Default)]
pub(crate) struct PendingDatagrams {
    bytes: Vec<u8>,
    /// Offset of the oldest datagram.
    read: usize,
    packets: u64,
}

impl PendingDatagrams {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
            read: 0,
            packets: 0,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Appends a datagram with a `tag` of the caller. Returns false if the buffer is full.
    pub(crate) fn push(&mut self, datagram: &[u8], time: Timestamp, tag: u16) -> bool {
        let Ok(length) = u32::try_from(datagram.len()) else {
            return false;
        };
        if self.bytes.capacity() - self.bytes.len() < HEAD + datagram.len() {
            return false;
        }
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&time.ns.to_ne_bytes());
        self.bytes.push(time.clock as u8);
        self.bytes.extend_from_slice(&tag.to_ne_bytes());
        self.bytes.extend_from_slice(datagram);
        self.packets += 1;
        true
    }

    /// Returns the oldest datagram with its tag.
    pub(crate) fn front(&self) -> Option<(&[u8], Timestamp, u16)> {
        let rest = &self.bytes[self.read..];
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (ns, rest) = rest.split_first_chunk::<8>()?;
        let (clock, rest) = rest.split_first()?;
        let (tag, rest) = rest.split_first_chunk::<2>()?;
        let time = Timestamp {
            ns: u64::from_ne_bytes(*ns),
            clock: Clock::from_u8(*clock),
        };
        let datagram = rest.get(..u32::from_ne_bytes(*length) as usize)?;
        Some((datagram, time, u16::from_ne_bytes(*tag)))
    }

    /// Removes the oldest datagram.
    pub(crate) fn pop(&mut self) {
        let Some((datagram, ..)) = self.front() else {
            return;
        };
        self.read += HEAD + datagram.len();
        self.packets -= 1;
        if self.packets == 0 {
            self.bytes.clear();
            self.read = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_returned_in_order_until_memory_is_full() {
        let mut held = PendingDatagrams::new(2 * HEAD + 10);
        let time = |ns| Timestamp {
            ns,
            clock: Clock::Kernel,
        };
        assert!(held.push(b"first", time(1), 7) && held.push(b"other", time(2), 0));
        assert!(!held.push(b"", time(3), 0));
        assert_eq!(held.front(), Some((&b"first"[..], time(1), 7)));
        held.pop();
        assert_eq!(held.front(), Some((&b"other"[..], time(2), 0)));
        held.pop();
        held.pop();
        assert!(held.front().is_none() && held.push(b"again", time(4), 0));
    }
}
