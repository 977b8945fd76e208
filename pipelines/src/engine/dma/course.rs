//! How the frames of an engine count: their numbers, epochs, and what is missing between them.

use daq_core::dma::{FrameSequence, Origin, Step};
use daq_core::frame::{Flags, FrameMeta};
use daq_core::ledger::{Cause, SourceLedger};

/// The numbers of an engine's frames: those that their sender tells with them, those inside of them where the design has
/// some, else a count of transfers.
#[derive(Debug)]
pub(super) struct Course {
    numbers: Option<FrameSequence>,
    /// The next frame's number.
    next: u64,
    epoch: u32,
    /// Whether the next frame opens an epoch.
    opens: bool,
    /// Whether no frame of the epoch has said yet that it opens it.
    flags: Flags,
    /// Frames that were lost here since the last one that carried a number, by cause: the next number says how many are
    /// missing, and these say why.
    owed: [u64; Cause::ALL.len()],
    /// What the sender of the last frame that had one called its epoch.
    origin: Option<u64>,
}

impl Course {
    pub(super) const fn new(numbers: Option<FrameSequence>) -> Self {
        Self {
            numbers,
            next: 0,
            epoch: 0,
            opens: true,
            flags: Flags(0),
            owed: [0; Cause::ALL.len()],
            origin: None,
        }
    }

    /// What the numbers are read by; `None` where transfers are counted.
    pub(super) const fn numbers(&self) -> Option<&FrameSequence> {
        self.numbers.as_ref()
    }

    /// The stream was interrupted: what comes is not known to go on where it was.
    pub(super) const fn interrupt(&mut self) {
        if self.numbers.is_none() {
            self.opens = true;
        }
    }

    /// Counts `transfers` of which nothing can be known any more, lost to `cause`.
    ///
    /// Where frames carry numbers the next one shows how many are missing; they are counted then.
    pub(super) fn lose(&mut self, transfers: u64, cause: Cause, ledger: &SourceLedger) {
        if self.numbers.is_some() {
            self.owed[cause as usize] += transfers;
            return;
        }
        self.begin(ledger);
        self.next += transfers;
        ledger.expected.add(transfers);
        ledger.lost(cause).add(transfers);
    }

    /// Counts `missing` frames as lost to what is known to have been lost here, and the rest to `gap`.
    fn miss(&mut self, missing: u64, gap: Cause, ledger: &SourceLedger) {
        ledger.expected.add(missing);
        let mut left = missing;
        for cause in Cause::ALL {
            let here = self.owed[cause as usize].min(left);
            ledger.lost(cause).add(here);
            left -= here;
        }
        ledger.lost(gap).add(left);
    }

    fn begin(&mut self, ledger: &SourceLedger) {
        if !std::mem::take(&mut self.opens) {
            return;
        }
        let epochs = ledger.epochs.get();
        ledger.epochs.set(epochs + 1);
        self.epoch = u32::try_from(epochs).unwrap_or(u32::MAX);
        self.flags = Flags::EPOCH;
    }

    /// The record of the next frame, which stands at `next`.
    fn meta(&mut self) -> FrameMeta {
        FrameMeta {
            sequence: self.next,
            epoch: self.epoch,
            flags: std::mem::take(&mut self.flags),
            places: 1,
            arrived: 1,
            ..FrameMeta::default()
        }
    }

    /// The next frame, which carries `raw` where frames carry numbers: counts it as expected, and what is missing before
    /// it as lost to what was lost here, else to `gap`.
    pub(super) fn frame(
        &mut self,
        raw: Option<u64>,
        gap: Cause,
        ledger: &SourceLedger,
    ) -> FrameMeta {
        if let (Some(numbers), Some(raw)) = (&mut self.numbers, raw) {
            match numbers.next(raw) {
                Step::Next => {}
                Step::Gap(missing) => self.miss(missing, gap, ledger),
                // So many were lost here: it is no count that began anew.
                Step::Restart { jumped } if jumped > 0 && jumped <= self.owed.iter().sum() => {
                    self.miss(jumped, gap, ledger);
                }
                Step::Restart { jumped } => {
                    self.settle(ledger);
                    ledger.jumped.add(jumped);
                    self.opens = true;
                }
            }
            self.owed = [0; Cause::ALL.len()];
            self.next = self.numbers.as_ref().map_or(0, FrameSequence::position);
        }
        self.begin(ledger);
        ledger.expected.add(1);
        let meta = self.meta();
        self.next += 1;
        meta
    }

    /// The next frame, of which its sender tells `origin`: counts it as expected, and `missing` ones before it as lost on
    /// the way.
    pub(super) fn told(
        &mut self,
        origin: Origin,
        missing: u64,
        ledger: &SourceLedger,
    ) -> FrameMeta {
        self.opens |= self.origin.replace(origin.epoch) != Some(origin.epoch);
        self.begin(ledger);
        ledger.expected.add(1 + missing);
        ledger.lost(Cause::WireGap).add(missing);
        self.next = origin.sequence;
        let meta = self.meta();
        self.next = origin.sequence.wrapping_add(1);
        FrameMeta {
            flags: Flags(origin.flags.0 & !Flags::EPOCH.0).with(meta.flags),
            places: origin.places,
            arrived: origin.arrived,
            ..meta
        }
    }

    /// The next frame, whose payload is damaged, or has no room for its number: counted as lost, at once or, where frames
    /// carry numbers, with the next number.
    pub(super) fn damaged(&mut self, ledger: &SourceLedger) -> FrameMeta {
        if self.numbers.is_some() {
            self.owed[Cause::BadPacket as usize] += 1;
            self.begin(ledger);
            return FrameMeta {
                sequence: self.next + self.owed.iter().sum::<u64>() - 1,
                ..self.meta()
            };
        }
        let meta = self.frame(None, Cause::WireGap, ledger);
        ledger.lost(Cause::BadPacket).add(1);
        meta
    }

    /// The end, of the stream or of its count: no number will tell of what was lost here.
    pub(super) fn settle(&mut self, ledger: &SourceLedger) {
        for (owed, cause) in self.owed.iter_mut().zip(Cause::ALL) {
            let owed = std::mem::take(owed);
            ledger.expected.add(owed);
            ledger.lost(cause).add(owed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::SourceReport;

    fn numbered() -> Course {
        let mut numbers = FrameSequence::new(0, 4);
        numbers.max_gap = 10;
        Course::new(Some(numbers))
    }

    fn report(ledger: &SourceLedger, delivered: u64) -> SourceReport {
        ledger.delivered.set(delivered);
        let report = SourceReport::of(ledger);
        assert_eq!(report.expected, report.delivered + report.lost_total());
        report
    }

    #[test]
    fn losses_are_told_with_the_number_that_shows_them() {
        let (mut course, ledger) = (numbered(), SourceLedger::default());
        let frame = |course: &mut Course, raw| course.frame(Some(raw), Cause::WireGap, &ledger);
        assert_eq!(frame(&mut course, 7).sequence, 7);
        course.lose(3, Cause::Overrun, &ledger);
        let damaged = course.damaged(&ledger);
        assert_eq!(damaged.sequence, 11);
        // 8, 9, 10 overrun, 11 damaged, 12 never came.
        assert_eq!(frame(&mut course, 13).sequence, 13);
        let found = report(&ledger, 2);
        assert_eq!(found.expected, 7);
        assert_eq!(
            found.lost,
            [("overrun", 3), ("bad_packet", 1), ("wire_gap", 1)].into()
        );
        // More than could be a gap, but lost here.
        course.lose(100, Cause::RingFull, &ledger);
        assert_eq!(frame(&mut course, 114).flags, Flags::default());
        assert_eq!(report(&ledger, 3).lost["ring_full"], 100);
        course.lose(2, Cause::Overrun, &ledger);
        course.settle(&ledger);
        assert_eq!(report(&ledger, 3).lost["overrun"], 5);
    }

    #[test]
    fn what_a_sender_tells_is_kept_and_its_epochs_become_ours() {
        let (mut course, ledger) = (Course::new(None), SourceLedger::default());
        let origin = |sequence, epoch, flags| Origin {
            sequence,
            epoch,
            flags,
            places: 3,
            arrived: 2,
        };
        let both = Flags::EPOCH.with(Flags::INCOMPLETE);
        let first = course.told(origin(40, 7, Flags::INCOMPLETE), 0, &ledger);
        assert_eq!((first.sequence, first.epoch, first.flags), (40, 0, both));
        assert_eq!((first.places, first.arrived), (3, 2));
        let next = course.told(origin(43, 7, both), 2, &ledger);
        assert_eq!((next.sequence, next.flags), (43, Flags::INCOMPLETE));
        let anew = course.told(origin(0, 9, Flags(0)), 0, &ledger);
        assert_eq!(
            (anew.sequence, anew.epoch, anew.flags),
            (0, 1, Flags::EPOCH)
        );
        let found = report(&ledger, 3);
        assert_eq!((found.expected, found.lost["wire_gap"]), (5, 2));
    }

    #[test]
    fn an_epoch_that_begins_with_a_loss_is_flagged_at_its_first_frame() {
        let (mut course, ledger) = (Course::new(None), SourceLedger::default());
        course.lose(2, Cause::Overrun, &ledger);
        let first = course.frame(None, Cause::WireGap, &ledger);
        assert_eq!((first.sequence, first.flags), (2, Flags::EPOCH));
        let next = course.frame(None, Cause::WireGap, &ledger);
        assert_eq!((next.sequence, next.flags), (3, Flags::default()));
        course.interrupt();
        assert_eq!(course.damaged(&ledger).flags, Flags::EPOCH);
        assert_eq!(
            report(&ledger, 2).lost,
            [("overrun", 2), ("bad_packet", 1)].into()
        );
        assert_eq!(ledger.epochs.get(), 2);
    }
}
