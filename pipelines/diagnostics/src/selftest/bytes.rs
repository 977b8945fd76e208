//! Checks that copied bytes arrive and that the bytes next to them do not change.

use super::target::Target;
use super::{Verdict, expect};

/// Offsets in bytes at which copies begin.
const OFFSETS: [usize; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 11, 129, 1023];
/// Lengths of the copies in bytes.
const SIZES: [usize; 21] = [
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4095, 4097, 70_001,
];

/// Returns pseudo-random bytes (xorshift) that differ between seeds.
pub(super) fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(bytes).collect()
}

/// Returns an error unless `found` equals `expected`. `what` describes the copy in the error.
pub(super) fn same(
    expected: &[u8],
    found: &[u8],
    what: impl FnOnce() -> String,
) -> Result<(), Verdict> {
    let differs = || expected.iter().zip(found).position(|(a, b)| a != b);
    expect(expected == found, || {
        let at = differs().unwrap_or_else(|| expected.len().min(found.len()));
        format!(
            "{}: byte {at} of {}: expected {:?}, got {:?}",
            what(),
            expected.len(),
            expected.get(at),
            found.get(at)
        )
    })
}

pub(super) fn data(target: &Target) -> Result<(), Verdict> {
    let room = 1023 + SIZES[SIZES.len() - 1];
    let mapped = target.method.map(room)?;
    let mut seed = 0;
    for offset in OFFSETS {
        for bytes in SIZES {
            let at = || format!("{bytes} bytes at offset {offset}");
            seed += 1;
            let sent = random(seed, bytes);
            mapped.copy_to(offset, &sent)?;
            let read = target.read(&mapped, offset, bytes)?;
            same(&sent, &read, || {
                format!("{}, stored by the CPU, read by CUDA", at())
            })?;
            let mut read = vec![0; bytes];
            mapped.copy_from(offset, &mut read)?;
            same(&sent, &read, || {
                format!("{}, stored and read by the CPU", at())
            })?;
            seed += 1;
            let sent = random(seed, bytes);
            target.transfer.write(&mapped, offset, &sent)?;
            mapped.copy_from(offset, &mut read)?;
            same(&sent, &read, || {
                format!("{}, written by CUDA, read by the CPU", at())
            })?;
        }
    }
    Ok(())
}

pub(super) fn edges(target: &Target) -> Result<(), Verdict> {
    const ROOM: usize = 16 << 10;
    let mapped = target.method.map(ROOM)?;
    let mut all = random(0, ROOM);
    target.transfer.write(&mapped, 0, &all)?;
    let mut seed = 0;
    // Copies in the middle, at the start and at the end of the memory.
    let ends = |bytes: usize| [4096, 0, ROOM - 1023 - bytes];
    for offset in OFFSETS {
        for bytes in SIZES.into_iter().filter(|bytes| *bytes < ROOM / 2) {
            for at in ends(bytes).map(|start| start + offset) {
                seed += 1;
                let sent = random(seed, bytes);
                mapped.copy_to(at, &sent)?;
                all[at..at + bytes].copy_from_slice(&sent);
                let read = target.read(&mapped, 0, ROOM)?;
                same(&all, &read, || {
                    format!("whole memory after {bytes} bytes were stored at offset {at}")
                })?;
            }
        }
    }
    Ok(())
}

pub(super) fn small_buffers(target: &Target) -> Result<(), Verdict> {
    let mut buffers = Vec::new();
    for (seed, bytes) in (0..).zip([1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 1000, 4095, 4096].repeat(4))
    {
        let mapped = target.method.map(bytes)?;
        expect(mapped.bytes() >= bytes, || {
            format!("expected at least {bytes} bytes, got {}", mapped.bytes())
        })?;
        let sent = random(seed, bytes);
        mapped.copy_to(0, &sent)?;
        buffers.push((mapped, sent));
    }
    for (i, (mapped, sent)) in buffers.iter().enumerate() {
        let read = target.read(mapped, 0, sent.len())?;
        same(sent, &read, || {
            format!("buffer {i} of {}, {} bytes", buffers.len(), sent.len())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_bytes_are_reported_with_offset() {
        let sent = random(7, 100);
        assert_ne!(sent, random(8, 100));
        let what = || "stored".to_owned();
        assert_eq!(same(&sent, &sent, what), Ok(()));
        let mut found = sent.clone();
        found[41] ^= 1;
        let message = format!(
            "stored: byte 41 of 100: expected Some({}), got Some({})",
            sent[41], found[41]
        );
        assert_eq!(same(&sent, &found, what), Err(Verdict::Failed(message)));
        assert!(same(&sent, &sent[..99], what).is_err());
    }
}
