//! CRC-32 as in Ethernet (IEEE 802.3, reflected, polynomial 0x04c11db7). RoCE v2 uses this CRC as the invariant
//! checksum.

/// Number of bytes per step.
const STEP: usize = 16;

static TABLES: [[u32; 256]; STEP] = tables();

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "the value is below 256")]
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (0xedb8_8320 & (value & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut step = 1;
    while step < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[step - 1][byte];
            tables[step][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        step += 1;
    }
    tables
}

/// An unfinished checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc(u32);

impl Crc {
    /// Returns the initial state, before any bytes were appended.
    pub(super) const fn new() -> Self {
        Self(!0)
    }

    /// Returns the state after `bytes` were appended.
    #[must_use]
    pub(super) fn with(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        let (blocks, rest) = bytes.as_chunks::<STEP>();
        for block in blocks {
            let mut block = *block;
            for (byte, of_crc) in block.iter_mut().zip(crc.to_le_bytes()) {
                *byte ^= of_crc;
            }
            crc = 0;
            for (byte, table) in block.iter().zip(TABLES.iter().rev()) {
                crc ^= table[usize::from(*byte)];
            }
        }
        for byte in rest {
            let [low, ..] = crc.to_le_bytes();
            crc = (crc >> 8) ^ TABLES[0][usize::from(low ^ byte)];
        }
        Self(crc)
    }

    /// Returns the checksum of all bytes so far.
    pub(super) const fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_in_any_pieces_equals_known_value() {
        // The standard check value of CRC-32/ISO-HDLC.
        assert_eq!(Crc::new().with(b"123456789").value(), 0xcbf4_3926);
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let whole = Crc::new().with(&bytes).value();
        for cut in [0, 1, 15, 16, 17, 500, 999, 1000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(Crc::new().with(first).with(second).value(), whole, "{cut}");
        }
        let slow = bytes.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
            })
        });
        assert_eq!(whole, !slow);
    }
}
