//! Frame metadata: 128 bytes that a sensor sends after each frame.
//!
//! ```text
//!    0  flags (4) │ PSN (4) │ CRC (4) │ frame started: s (8), ns (4) │ bytes written (8)
//!   32  unused (2) │ frame number (2) │ metadata made: s (8), ns (4) │ unused
//! ```
//! Big-endian on the wire.

use daq_core::frame::{Clock, Timestamp};

/// Size in bytes of a frame's metadata.
pub(super) const BYTES: usize = 128;

/// A frame's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Flags that the sensor sets; daq does not interpret them.
    pub flags: u32,
    /// Packet sequence number at the end of the frame.
    pub psn: u32,
    /// CRC of the frame that the sensor computed; daq does not check it.
    pub crc: u32,
    /// Start of the frame: seconds of the sensor's clock.
    pub seconds: u64,
    /// Start of the frame: nanoseconds within the second.
    pub nanoseconds: u32,
    /// Number of bytes of the frame that the sensor has written.
    pub bytes_written: u64,
    /// Number of the frame in the sensor's count.
    pub frame: u16,
    /// Creation time of the metadata: seconds of the sensor's clock.
    pub made_seconds: u64,
    /// Creation time of the metadata: nanoseconds within the second.
    pub made_nanoseconds: u32,
}

impl Metadata {
    /// Parses the metadata.
    pub(super) fn parse(bytes: &[u8; BYTES]) -> Self {
        fn at<const N: usize>(bytes: &[u8; BYTES], from: usize) -> [u8; N] {
            std::array::from_fn(|i| bytes[from + i])
        }
        Self {
            flags: u32::from_be_bytes(at(bytes, 0)),
            psn: u32::from_be_bytes(at(bytes, 4)),
            crc: u32::from_be_bytes(at(bytes, 8)),
            seconds: u64::from_be_bytes(at(bytes, 12)),
            nanoseconds: u32::from_be_bytes(at(bytes, 20)),
            bytes_written: u64::from_be_bytes(at(bytes, 24)),
            frame: u16::from_be_bytes(at(bytes, 34)),
            made_seconds: u64::from_be_bytes(at(bytes, 36)),
            made_nanoseconds: u32::from_be_bytes(at(bytes, 44)),
        }
    }

    /// Returns the start of the frame in the sensor's clock, or no timestamp if the values are out of range.
    ///
    /// The clock follows PTP if the network has a grandmaster; otherwise it counts from power-on. The packet does not show
    /// which, nor the offset from UTC, so the timestamp is marked as sensor time.
    pub(super) fn time(&self) -> Timestamp {
        let whole = self.seconds.checked_mul(1_000_000_000);
        let ns = whole.and_then(|ns| ns.checked_add(u64::from(self.nanoseconds)));
        match ns {
            Some(ns) if self.nanoseconds < 1_000_000_000 => Timestamp {
                ns,
                clock: Clock::Sensor,
            },
            _ => Timestamp::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_bytes_are_parsed() {
        let mut bytes: [u8; BYTES] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        bytes[12..24].copy_from_slice(&[0, 0, 0, 0, 0x65, 0, 0, 1, 0x3b, 0x9a, 0xc9, 0xff]);
        let metadata = Metadata::parse(&bytes);
        let expected = Metadata {
            flags: 0x0001_0203,
            psn: 0x0405_0607,
            crc: 0x0809_0a0b,
            seconds: 0x6500_0001,
            nanoseconds: 999_999_999,
            bytes_written: 0x1819_1a1b_1c1d_1e1f,
            frame: 0x2223,
            made_seconds: 0x2425_2627_2829_2a2b,
            made_nanoseconds: 0x2c2d_2e2f,
        };
        assert_eq!(metadata, expected);
        let time = metadata.time();
        assert_eq!(
            (time.ns, time.clock),
            (0x6500_0001 * 1_000_000_000 + 999_999_999, Clock::Sensor)
        );
    }

    #[test]
    fn invalid_time_is_none() {
        let metadata = Metadata::parse(&[0; BYTES]);
        let none = [
            (0, 1_000_000_000),
            (u64::MAX, 0),
            (18_446_744_073, 709_551_616),
        ];
        for (seconds, nanoseconds) in none {
            let time = Metadata {
                seconds,
                nanoseconds,
                ..metadata
            }
            .time();
            assert_eq!(time, Timestamp::default());
        }
        let last = Metadata {
            seconds: 18_446_744_073,
            nanoseconds: 709_551_615,
            ..metadata
        };
        assert_eq!(last.time().ns, u64::MAX);
    }
}
