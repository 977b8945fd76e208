//! What a sensor tells of a frame: 128 bytes behind it.
//!
//! ```text
//!    0  flags (4) │ PSN (4) │ CRC (4) │ frame started: s (8), ns (4) │ bytes written (8)
//!   32  unused (2) │ frame number (2) │ metadata made: s (8), ns (4) │ unused
//! ```
//! Big-endian on the wire.

use daq_core::frame::{Clock, Timestamp};

/// Bytes of a frame's metadata.
pub const BYTES: usize = 128;

/// A frame's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The sensor's flags, as they are.
    pub flags: u32,
    /// Packet sequence number when the frame ended.
    pub psn: u32,
    /// The sensor's CRC of the frame, as it is.
    pub crc: u32,
    /// When the frame began: seconds of the sensor's clock.
    pub seconds: u64,
    /// When the frame began: nanoseconds in that second.
    pub nanoseconds: u32,
    /// Bytes of the frame that the sensor has written.
    pub bytes_written: u64,
    /// The sensor's number of the frame.
    pub frame: u16,
    /// When the metadata was made: seconds of the sensor's clock.
    pub made_seconds: u64,
    /// When the metadata was made: nanoseconds in that second.
    pub made_nanoseconds: u32,
}

impl Metadata {
    /// Reads it.
    pub fn parse(bytes: &[u8; BYTES]) -> Self {
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

    /// When the frame began, by the sensor's clock.
    ///
    /// The clock follows PTP where the network has a grandmaster, and counts from power-on else. Nothing in the packet
    /// says which, nor how far it is from UTC, so it is the sensor's clock and no other. None where the numbers are no time.
    pub fn time(&self) -> Timestamp {
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
    fn metadata_written_by_hand_is_parsed() {
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
