//! Decides which bytes of a frame are written if samples outside of the stream are trimmed.

use super::{MetaBuilder, Record};
use std::ops::Range;

impl MetaBuilder {
    /// Returns the bytes of a frame from the first to the last sample of the stream, for a frame in which the stream began or
    /// ended. `record.bytes` is the size of the frame, and `missing` contains its missing packets, as for
    /// [`frame`](Self::frame). Packets that are missing between others are inside of the range.
    ///
    /// The range is the whole frame if its samples are not in the order of time, or if the sizes of its packets are unknown.
    pub fn inside(
        &self,
        record: &Record,
        missing: impl IntoIterator<Item = (u32, u32)>,
    ) -> Range<u64> {
        let (sizes, group) = (self.packet_sizes(record), self.group);
        let (mut start, mut end, mut begins) = (0, record.bytes, false);
        if self.recording.table.is_some() || sizes.parts > 1 || sizes.rest == 0 {
            return start..end;
        }
        let byte = |packet: u32| sizes.offset(packet, record.packets_per_frame, record.bytes);
        for (first, count) in missing {
            if !record.truncates(first, count, begins) {
                continue;
            }
            begins = first == 0;
            if begins {
                start = byte(count).div_ceil(group) * group;
            } else {
                end = byte(first) / group * group;
            }
        }
        start.min(end)..end
    }
}
