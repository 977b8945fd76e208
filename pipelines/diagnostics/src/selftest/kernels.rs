//! Checks that a kernel reads the bytes that the CPU has stored.

use super::bytes::{random, same};
use super::target::Target;
use super::{Verdict, expect};
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{Argument, Memory};
use std::sync::Arc;

/// Offset of the first frame in bytes. The doorbell is stored before the first frame.
const FRAMES: usize = 4096;

/// Frames that a kernel reads from slots in mapped memory and copies to an output buffer.
struct FrameSeries {
    /// Offset of the first slot, counted from [`FRAMES`].
    offset: usize,
    bytes: usize,
    stride: usize,
    slots: usize,
    frames: usize,
}

impl FrameSeries {
    /// Stores the frames as slots become free, then compares the kernel's copies.
    fn run(&self, target: &Target, mapped: &Arc<BarMapping>) -> Result<(), Verdict> {
        let device = target.method.device;
        let taken = Arc::new(Memory::new(device, self.frames * self.stride)?);
        let input = mapped.address() + (FRAMES + self.offset) as u64;
        let arguments = [
            Argument::U64(input),
            Argument::U64(self.stride as u64),
            Argument::U64(self.slots as u64),
            Argument::U64(self.bytes as u64),
            Argument::U64(taken.address()),
        ];
        let echo = &target.echo;
        let output = Some(taken.clone());
        let mut kernel = echo.start("daq_echo_frames", 128, mapped, &arguments, output)?;
        for frame in 0..self.frames {
            // Wait until the credit for the previous frame in this slot has been received.
            if let Some(before) = (frame + 1).checked_sub(self.slots) {
                kernel.wait(before as u64)?;
            }
            let at = FRAMES + self.offset + frame % self.slots * self.stride;
            kernel.post([at].into_iter(), &random(frame as u64, self.bytes))?;
        }
        kernel.wait(self.frames as u64)?;
        kernel.stop()?;
        let mut all = vec![0; self.frames * self.stride];
        taken.read(0, &mut all)?;
        for (frame, found) in all.chunks(self.stride).enumerate() {
            let sent = random(frame as u64, self.bytes);
            same(&sent, &found[..self.bytes], || {
                format!(
                    "frame {frame} of {} ({} bytes at offset {}), read by a kernel",
                    self.frames, self.bytes, self.offset
                )
            })?;
        }
        Ok(())
    }
}

pub(super) fn kernel_sees(target: &Target) -> Result<(), Verdict> {
    let mapped = target.method.map(FRAMES + 8 * 8192)?;
    for offset in [0, 1, 3, 129] {
        for bytes in [1, 64, 4097] {
            let series = FrameSeries {
                offset,
                bytes,
                stride: 4099,
                slots: 8,
                frames: 8,
            };
            series.run(target, &mapped)?;
        }
    }
    Ok(())
}

pub(super) fn staging(target: &Target) -> Result<(), Verdict> {
    let mapped = target.method.map(FRAMES + 16 * 4224)?;
    for (bytes, stride) in [(64, 64), (1000, 1024), (4097, 4224)] {
        let series = FrameSeries {
            offset: 0,
            bytes,
            stride,
            slots: 16,
            frames: 1000,
        };
        series.run(target, &mapped)?;
    }
    Ok(())
}

pub(super) fn word_order(target: &Target) -> Result<(), Verdict> {
    const TIMES: u64 = 20_000;
    /// Number of words stored before the doorbell. These words do not fit into the CPU's write-combining buffer.
    const WORDS: u64 = 96;
    let mapped = target.method.map(FRAMES + 4096)?;
    let wrong = Arc::new(Memory::new(target.method.device, 8)?);
    let arguments = [
        Argument::U64(mapped.address() + FRAMES as u64),
        Argument::U64(WORDS),
        Argument::U64(wrong.address()),
    ];
    let echo = &target.echo;
    let output = Some(wrong.clone());
    let mut kernel = echo.start("daq_echo_order", 96, &mapped, &arguments, output)?;
    for n in 1..=TIMES {
        // The pattern that daq_echo_order expects.
        let first = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..WORDS).map(|i| first.wrapping_add(i));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let at = kernel.post([FRAMES].into_iter(), &bytes)?;
        kernel.wait(at)?;
    }
    kernel.stop()?;
    let mut count = [0; 8];
    wrong.read(0, &mut count)?;
    let count = u64::from_le_bytes(count);
    expect(count == 0, || {
        format!(
            "expected all {WORDS} words to be visible at each of {TIMES} doorbells, got {count} that were not visible"
        )
    })
}

pub(super) fn persistent_stop(target: &Target) -> Result<(), Verdict> {
    let mapped = target.method.map(4096)?;
    for rings in [0, 1, 100] {
        let mut kernel = target
            .echo
            .start("daq_echo_ordered", 1, &mapped, &[], None)?;
        for _ in 0..rings {
            let at = kernel.ring()?;
            kernel.wait(at)?;
        }
        let took = kernel.stop()?;
        expect(took <= target.limit, || {
            format!(
                "expected a kernel to stop within {:?}, got {took:?}, after {rings} doorbells",
                target.limit
            )
        })?;
    }
    Ok(())
}
