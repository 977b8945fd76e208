//! The times of frames. A frame without packets has the time that follows from its neighbours.

use super::super::record::Record;
use super::super::shared::Shared;
use super::Sequencer;
use crate::frame::{Clock, Flags, Timestamp};
use crate::sync::Ordering;

impl Sequencer {
    /// Returns the time of `frame`, of which `arrived` packets arrived, when it is published with `flags`.
    pub(super) fn time_of(
        &mut self,
        shared: &Shared,
        frame: u64,
        arrived: u64,
        flags: Flags,
    ) -> Timestamp {
        if flags.contains(Flags::EPOCH) {
            // The times of another epoch need not continue.
            self.last_time = None;
        }
        if let Some(time) = known_time(shared.record(frame)) {
            self.last_time = Some((frame, time));
            return time;
        }
        let is_empty = arrived == 0;
        let predicted = is_empty.then(|| self.predicted_time(shared, frame));
        predicted.flatten().unwrap_or_default()
    }

    /// Returns the time that `frame` has if the times between its neighbours are equally spaced.
    fn predicted_time(&self, shared: &Shared, frame: u64) -> Option<Timestamp> {
        let (before, time) = self.last_time?;
        let since = match shared.geometry.frame_ns {
            0 => {
                let next = frame + 1;
                let mut later = next..next + shared.geometry.window as u64;
                let (after, end) = later.find_map(|later| {
                    let known = known_time(shared.record(later))?;
                    (known.clock == time.clock).then_some((later, known.ns))
                })?;
                let between = u128::from(end.checked_sub(time.ns)?);
                between * u128::from(frame - before) / u128::from(after - before)
            }
            frame_ns => u128::from(frame_ns) * u128::from(frame - before),
        };
        Some(Timestamp {
            ns: time.ns.checked_add(u64::try_from(since).ok()?)?,
            ..time
        })
    }
}

/// Returns the time of a frame, if a packet with a time has arrived.
fn known_time(record: &Record) -> Option<Timestamp> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value was stored from a Clock"
    )]
    let clock = Clock::from_u8(record.time_clock.load(Ordering::Acquire) as u8);
    (clock != Clock::None).then(|| Timestamp {
        ns: record.time_ns.load(Ordering::Relaxed),
        clock,
    })
}
