//! Encodes the metadata of an input frame for device code as a record of words, as defined in daq.cuh.

use super::super::defect;
use daq_core::frame::FrameMeta;
use daq_core::kernel::KernelError;
use daq_core::ring::Frame;

/// Number of words of a record before its packet bitmap.
const HEAD: usize = 5;

/// Returns the number of words of a record for a frame of up to `packets_per_frame` packets.
pub(super) const fn words(packets_per_frame: u32) -> usize {
    HEAD + (packets_per_frame as usize).div_ceil(64)
}

/// Writes the metadata of `frame` to `record`, which must have room for the declared number of packets.
pub(super) fn describe(frame: &Frame<'_>, record: &mut [u64]) -> Result<(), KernelError> {
    let meta = frame.meta();
    let packets_per_frame = meta.packets_per_frame;
    let (head, bitmap) = record.split_at_mut(HEAD);
    write(meta, head);
    let words = frame.present().words();
    let words = words
        .get(..(packets_per_frame as usize).div_ceil(64))
        .unwrap_or(words);
    let Some(bitmap) = bitmap.get_mut(..words.len()) else {
        return Err(defect(format!(
            "a frame has {packets_per_frame} packet slots, more than the announced maximum of {}",
            64 * bitmap.len()
        )));
    };
    bitmap.copy_from_slice(words);
    Ok(())
}

/// Writes the metadata of a single-packet frame that a device has not written yet: its sequence number and epoch.
pub(super) fn prepublish(sequence: u64, epoch: u32, record: &mut [u64]) {
    let (head, bitmap) = record.split_at_mut(HEAD);
    let meta = FrameMeta {
        sequence,
        epoch,
        packets_per_frame: 1,
        arrived: 1,
        ..FrameMeta::default()
    };
    write(&meta, head);
    if let Some(first) = bitmap.first_mut() {
        *first = 1;
    }
}

fn write(meta: &FrameMeta, head: &mut [u64]) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    head.copy_from_slice(&[
        meta.sequence,
        meta.timestamp.ns,
        pair(meta.epoch, meta.flags.0),
        pair(meta.packets_per_frame, meta.arrived),
        meta.timestamp.clock as u64,
    ]);
}
