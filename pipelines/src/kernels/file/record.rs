//! Encodes the metadata of an input frame for device code as a record of words, as defined in daq.cuh.

use super::super::defect;
use daq_core::frame::FrameMeta;
use daq_core::kernel::KernelError;
use daq_core::ring::Frame;

/// Number of words of a record before its packet bitmap.
const HEAD: usize = 5;

/// Returns the number of words of a record for a frame of up to `packets_per_frame` packets with `kept` fields.
pub(super) const fn words(packets_per_frame: u32, kept: usize) -> usize {
    HEAD + (packets_per_frame as usize).div_ceil(64) + kept
}

/// Writes the metadata of `frame` to `record`, which must have room for the declared number of packets.
pub(super) fn describe(frame: &Frame<'_>, record: &mut [u64]) -> Result<(), KernelError> {
    let meta = frame.meta();
    let packets_per_frame = meta.packets_per_frame;
    let mask = meta.kept.mask();
    let fields = (u8::BITS - mask.leading_zeros()) as usize;
    let at = record.len().saturating_sub(fields).max(HEAD);
    let (record, kept) = record.split_at_mut(at);
    kept.copy_from_slice(&meta.kept.values()[..kept.len()]);
    let (head, bitmap) = record.split_at_mut(HEAD);
    write(meta, head);
    // The high half of the word of the clock contains the mask of present fields, and the word at which they begin.
    head[4] |= (u64::from(mask) | (at as u64) << 8) << 32;
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

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::KeptFields;
    use daq_core::ring::RingOptions;
    use daq_testkit::ring::RingFixture;

    #[test]
    fn record_ends_with_kept_fields() {
        let options = RingOptions {
            packets_per_frame: 70,
            kept: ["a", "b", "c"].map(str::to_owned).to_vec(),
            ..RingOptions::new("raw", 2, 64)
        };
        let mut ring = RingFixture::new(options);
        let meta = FrameMeta {
            packets_per_frame: 70,
            kept: KeptFields::default().with(1, 11),
            ..FrameMeta::whole(5, 64)
        };
        let mut slots = ring.producer.reserve(1);
        slots.finish_with(meta, &[u64::MAX, 0x3f]);
        slots.publish();
        let lease = ring.reader.poll(1).unwrap();
        // A persistent kernel has records that are longer than necessary.
        for extra in [0, 6] {
            let mut record = vec![99; words(70, 3) + extra];
            describe(&lease.frame(0), &mut record).unwrap();
            assert_eq!(record[HEAD..HEAD + 2], [u64::MAX, 0x3f]);
            assert_eq!(record[4] >> 32 & 0xff, 0b10);
            let at = usize::try_from(record[4] >> 40).unwrap();
            assert!(at >= HEAD + 2, "{at}");
            assert_eq!(record[at + 1], 11);
        }
    }
}
