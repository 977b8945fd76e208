//! Unpacks numbers of 4, 10 and 12 bits on the CPU.

use daq_core::layout::Packing;

/// Unpacks numbers into little-endian 16-bit integers, which hold every value of signed and of unsigned types.
pub(crate) struct Unpacker {
    packing: Packing,
    unpack: fn(&[u8], &mut [[u8; 2]], u16),
    numbers: Box<[[u8; 2]]>,
}

impl Unpacker {
    /// Creates an unpacker that unpacks at most `numbers` numbers at a time, rounded up to a whole group.
    pub(crate) fn new(packing: Packing, numbers: usize) -> Self {
        let (group, _) = packing.group();
        Self {
            packing,
            unpack: match (packing.bits, packing.msb_first) {
                (4, false) => unpack::<4, 2, 1, false>,
                (4, true) => unpack::<4, 2, 1, true>,
                (10, false) => unpack::<10, 4, 5, false>,
                (10, true) => unpack::<10, 4, 5, true>,
                (_, false) => unpack::<12, 2, 3, false>,
                (_, true) => unpack::<12, 2, 3, true>,
            },
            numbers: vec![[0; 2]; numbers.next_multiple_of(group)].into(),
        }
    }

    /// Returns the number of bytes that the unpacker allocates.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.numbers)
    }

    /// Unpacks as many numbers as there is space for, and returns their bytes.
    pub(crate) fn unpack(&mut self, bytes: &[u8]) -> &[u8] {
        let (group, packed) = self.packing.group();
        let count = (bytes.len() / packed * group).min(self.numbers.len());
        let sign = if self.packing.signed {
            1 << (self.packing.bits - 1)
        } else {
            0
        };
        let numbers = self.numbers.get_mut(..count).unwrap_or_default();
        (self.unpack)(bytes, numbers, sign);
        numbers.as_flattened()
    }

    /// Unpacks all numbers in pieces. Calls `piece` with the index of the first number and the bytes of the numbers.
    pub(crate) fn each_piece(&mut self, bytes: &[u8], mut piece: impl FnMut(usize, &[u8])) {
        let (group, packed) = self.packing.group();
        let at_once = self.numbers.len();
        let pieces = bytes.chunks(at_once / group * packed);
        for (i, bytes) in pieces.enumerate() {
            piece(i * at_once, self.unpack(bytes));
        }
    }
}

/// Unpacks groups of `NUMBERS` numbers of `BITS` bits from `BYTES` bytes. `sign` is the sign bit of signed numbers,
/// otherwise 0.
fn unpack<const BITS: usize, const NUMBERS: usize, const BYTES: usize, const MSB: bool>(
    bytes: &[u8],
    numbers: &mut [[u8; 2]],
    sign: u16,
) {
    let groups = bytes.as_chunks::<BYTES>().0.iter();
    for (group, numbers) in groups.zip(numbers.as_chunks_mut::<NUMBERS>().0) {
        let mut word = [0; 8];
        if MSB {
            word[8 - BYTES..].copy_from_slice(group);
        } else {
            word[..BYTES].copy_from_slice(group);
        }
        let word = if MSB {
            u64::from_be_bytes(word)
        } else {
            u64::from_le_bytes(word)
        };
        for (k, number) in numbers.iter_mut().enumerate() {
            let place = if MSB { NUMBERS - 1 - k } else { k } * BITS;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the mask leaves at most 12 bits"
            )]
            let bits = (word >> place & ((1 << BITS) - 1)) as u16;
            *number = (bits ^ sign).wrapping_sub(sign).to_le_bytes();
        }
    }
}
