//! Assigns numbers and epochs to an engine's frames, and counts missing frames.

use daq_core::dma::{FrameSequence, Origin, Step};
use daq_core::frame::{Flags, FrameMeta};
use daq_core::ledger::{Cause, SourceLedger};

/// Assigns numbers to frames. If the sender reports a number, that number is used. Otherwise the number is read from
/// the frame, if the design writes a number there. Otherwise transfers are counted.
#[derive(Debug)]
pub(super) struct FrameNumbering {
    numbers: Option<FrameSequence>,
    /// Number of the next frame.
    next: u64,
    epoch: u32,
    /// Whether the next frame starts a new epoch.
    opens: bool,
    /// Flags that the first frame of the current epoch must carry. Cleared once a frame carries them.
    flags: Flags,
    /// Number of frames lost in this process since the last frame that carried a number, by cause. The next frame
    /// number shows the total number of missing frames; the counts in this array assign causes to these frames.
    unassigned: [u64; Cause::ALL.len()],
    /// The last epoch that the sender reported; `None` before the first report.
    origin: Option<u64>,
    /// Number of frames lost before the last frame with a doubtful number, including that frame, by cause. These losses
    /// precede the losses in `unassigned`.
    doubtful_losses: [u64; Cause::ALL.len()],
    /// Number of consecutive frames with doubtful numbers.
    doubtful_frames: u32,
    is_logged: bool,
}

/// Number of consecutive frames with doubtful numbers after which a warning is logged.
const MAX_DOUBTFUL_FRAMES: u32 = 8;

impl FrameNumbering {
    pub(super) const fn new(numbers: Option<FrameSequence>) -> Self {
        Self {
            numbers,
            next: 0,
            epoch: 0,
            opens: true,
            flags: Flags(0),
            unassigned: [0; Cause::ALL.len()],
            origin: None,
            doubtful_losses: [0; Cause::ALL.len()],
            doubtful_frames: 0,
            is_logged: false,
        }
    }

    /// Returns the description of the numbers that frames contain; `None` if frames contain no numbers and transfers
    /// are counted.
    pub(super) const fn numbers(&self) -> Option<&FrameSequence> {
        self.numbers.as_ref()
    }

    /// Records an interruption of the stream. After an interruption, the next frame may have any number.
    pub(super) const fn interrupt(&mut self) {
        match &mut self.numbers {
            Some(numbers) => numbers.interrupt(),
            None => self.opens = true,
        }
    }

    /// Returns whether to log that frame numbers do not continue a sequence. A possible cause is a design that writes
    /// no numbers, or writes them only to some frames.
    ///
    /// Returns true at most once.
    pub(super) const fn has_lost_sync(&mut self) -> bool {
        self.doubtful_frames >= MAX_DOUBTFUL_FRAMES && !std::mem::replace(&mut self.is_logged, true)
    }

    /// Counts `transfers` transfers with unknown content as lost to `cause`.
    ///
    /// If frames carry numbers, this loss is counted when the next number shows how many frames are missing.
    pub(super) fn lose(&mut self, transfers: u64, cause: Cause, ledger: &SourceLedger) {
        if self.numbers.is_some() {
            self.unassigned[cause as usize] += transfers;
            return;
        }
        self.begin(ledger);
        self.next += transfers;
        ledger.expected.add(transfers);
        ledger.lost(cause).add(transfers);
    }

    /// Counts `frames` frames that the sender reports as lost to `cause`, and the `missing` frames before them as
    /// `wire_gap`.
    pub(super) fn lose_reported(frames: u64, missing: u64, cause: Cause, ledger: &SourceLedger) {
        ledger.expected.add(frames + missing);
        ledger.lost(cause).add(frames);
        ledger.lost(Cause::WireGap).add(missing);
    }

    /// Counts `missing` frames as lost, but at least the frames that are known to be lost in this process. These frames
    /// keep their causes; the other frames have the cause `gap`.
    fn miss(&mut self, missing: u64, gap: Cause, ledger: &SourceLedger) {
        let known: u64 = self.unassigned.iter().sum();
        settle(&mut self.unassigned, ledger);
        let unknown = missing.saturating_sub(known);
        ledger.expected.add(unknown);
        ledger.lost(gap).add(unknown);
    }

    fn begin(&mut self, ledger: &SourceLedger) {
        if !std::mem::take(&mut self.opens) {
            return;
        }
        let epochs = ledger.epochs.get() + 1;
        ledger.epochs.set(epochs);
        self.epoch = u32::try_from(epochs).unwrap_or(u32::MAX);
        self.flags = Flags::EPOCH;
    }

    /// Returns the metadata of the next frame.
    fn meta(&mut self) -> FrameMeta {
        FrameMeta {
            sequence: self.next,
            epoch: self.epoch,
            flags: std::mem::take(&mut self.flags),
            packets_per_frame: 1,
            arrived: 1,
            ..FrameMeta::default()
        }
    }

    /// Counts the next frame as expected. `raw` is the number in its bytes, if frames carry numbers. Frames that are
    /// missing before this frame and known to be lost in this process keep their causes; other missing frames have the
    /// cause `gap`. A frame whose number continues no sequence is [damaged](Self::damaged).
    pub(super) fn frame(
        &mut self,
        raw: Option<u64>,
        gap: Cause,
        ledger: &SourceLedger,
    ) -> FrameMeta {
        if let (Some(numbers), Some(raw)) = (&mut self.numbers, raw) {
            let doubtful: u64 = self.doubtful_losses.iter().sum();
            let lost = doubtful + self.unassigned.iter().sum::<u64>();
            let step = numbers.next(raw, lost);
            let position = numbers.position();
            if step == Step::Doubtful {
                self.doubtful_frames = self.doubtful_frames.saturating_add(1);
                let meta = self.damaged(ledger);
                self.join();
                self.doubtful_losses = std::mem::take(&mut self.unassigned);
                return meta;
            }
            self.doubtful_frames = 0;
            settle(&mut self.doubtful_losses, ledger);
            match step {
                Step::Next | Step::Doubtful => self.miss(0, gap, ledger),
                Step::Gap(missing) => self.miss(missing.saturating_sub(doubtful), gap, ledger),
                Step::Restart { skipped, missing } => {
                    ledger.skipped.add(skipped);
                    self.opens = true;
                    self.miss(missing, gap, ledger);
                }
            }
            self.next = position;
        }
        self.begin(ledger);
        ledger.expected.add(1);
        let meta = self.meta();
        self.next += 1;
        meta
    }

    /// Returns the metadata of the next frame, for which the sender reports `origin`. Counts the frame as expected, and
    /// the `missing` frames before the frame as `wire_gap`.
    pub(super) fn reported(
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
            packets_per_frame: origin.packets_per_frame,
            arrived: origin.arrived,
            packet_sizes: origin.packet_sizes,
            kept: origin.kept,
            ..meta
        }
    }

    /// Adds the losses before the last doubtful frame to the losses after it.
    fn join(&mut self) {
        for (unassigned, doubtful_losses) in
            self.unassigned.iter_mut().zip(&mut self.doubtful_losses)
        {
            *unassigned += std::mem::take(doubtful_losses);
        }
    }

    /// Does the same as [`reported`](Self::reported) for a frame with a damaged payload. The frame counts as lost, and
    /// the returned metadata marks all packets as missing.
    pub(super) fn reported_damaged(
        &mut self,
        origin: Origin,
        missing: u64,
        ledger: &SourceLedger,
    ) -> FrameMeta {
        let meta = self.reported(origin, missing, ledger);
        ledger.lost(Cause::BadPacket).add(1);
        FrameMeta {
            flags: meta.flags.with(Flags::INCOMPLETE),
            arrived: 0,
            ..meta
        }
    }

    /// Handles a frame whose payload is damaged or too short to contain its number. The frame counts as lost:
    /// immediately, or together with the next number if frames carry numbers. Its metadata marks all packets as
    /// missing.
    pub(super) fn damaged(&mut self, ledger: &SourceLedger) -> FrameMeta {
        let meta = if self.numbers.is_some() {
            self.unassigned[Cause::BadPacket as usize] += 1;
            self.begin(ledger);
            let unassigned: u64 = self.unassigned.iter().chain(&self.doubtful_losses).sum();
            FrameMeta {
                sequence: self.next + unassigned - 1,
                ..self.meta()
            }
        } else {
            let meta = self.frame(None, Cause::WireGap, ledger);
            ledger.lost(Cause::BadPacket).add(1);
            meta
        };
        FrameMeta {
            flags: meta.flags.with(Flags::INCOMPLETE),
            arrived: 0,
            ..meta
        }
    }

    /// Counts the losses that are not in the ledger yet. Called when the stream or its numbering ends, because no later
    /// number can show how many frames are missing.
    pub(super) fn settle(&mut self, ledger: &SourceLedger) {
        settle(&mut self.doubtful_losses, ledger);
        settle(&mut self.unassigned, ledger);
    }
}

/// Adds `losses` to the ledger by cause, then sets `losses` to zero.
fn settle(losses: &mut [u64; Cause::ALL.len()], ledger: &SourceLedger) {
    for (lost, cause) in losses.iter_mut().zip(Cause::ALL) {
        let lost = std::mem::take(lost);
        ledger.expected.add(lost);
        ledger.lost(cause).add(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::{KeptFields, PacketSizes};
    use daq_core::ledger::SourceReport;

    fn numbered() -> FrameNumbering {
        let mut numbers = FrameSequence::new(0, 4);
        numbers.max_gap = 10;
        FrameNumbering::new(Some(numbers))
    }

    fn report(ledger: &SourceLedger, delivered: u64) -> SourceReport {
        ledger.delivered.set(delivered);
        let report = SourceReport::of(ledger);
        assert_eq!(report.expected, report.delivered + report.lost_total());
        report
    }

    #[test]
    fn loss_is_reported_with_next_frame_number() {
        let (mut numbering, ledger) = (numbered(), SourceLedger::default());
        let frame = |numbering: &mut FrameNumbering, raw| {
            numbering.frame(Some(raw), Cause::WireGap, &ledger)
        };
        assert_eq!(frame(&mut numbering, 7).sequence, 7);
        numbering.lose(3, Cause::Overrun, &ledger);
        let damaged = numbering.damaged(&ledger);
        assert_eq!(damaged.sequence, 11);
        // Frames 8, 9 and 10 were overrun, 11 was damaged, and 12 never arrived.
        assert_eq!(frame(&mut numbering, 13).sequence, 13);
        let found = report(&ledger, 2);
        assert_eq!(found.expected, 7);
        assert_eq!(
            found.lost,
            [("overrun", 3), ("bad_packet", 1), ("wire_gap", 1)].into()
        );
        // A gap this large would be rejected, but these frames were lost in this process.
        numbering.lose(100, Cause::RingFull, &ledger);
        assert_eq!(frame(&mut numbering, 114).flags, Flags::default());
        assert_eq!(report(&ledger, 3).lost["ring_full"], 100);
        numbering.lose(2, Cause::Overrun, &ledger);
        numbering.settle(&ledger);
        assert_eq!(report(&ledger, 3).lost["overrun"], 5);
    }

    #[test]
    fn reported_frame_numbers_and_epochs_are_adopted() {
        let (mut numbering, ledger) = (FrameNumbering::new(None), SourceLedger::default());
        let origin = |sequence, epoch, flags| Origin {
            sequence,
            epoch,
            flags,
            packets_per_frame: 3,
            arrived: 2,
            packet_sizes: PacketSizes::equal(8),
            kept: KeptFields::default().with(0, sequence),
        };
        let both = Flags::EPOCH.with(Flags::INCOMPLETE);
        let first = numbering.reported(origin(40, 7, Flags::INCOMPLETE), 0, &ledger);
        assert_eq!((first.sequence, first.epoch, first.flags), (40, 1, both));
        assert_eq!(first.kept.get(0), Some(40));
        assert_eq!((first.packets_per_frame, first.arrived), (3, 2));
        assert_eq!(first.packet_sizes, PacketSizes::equal(8));
        let next = numbering.reported(origin(43, 7, both), 2, &ledger);
        assert_eq!((next.sequence, next.flags), (43, Flags::INCOMPLETE));
        let restarted = numbering.reported(origin(0, 9, Flags(0)), 0, &ledger);
        assert_eq!(
            (restarted.sequence, restarted.epoch, restarted.flags),
            (0, 2, Flags::EPOCH)
        );
        let found = report(&ledger, 3);
        assert_eq!((found.expected, found.lost["wire_gap"]), (5, 2));
    }

    #[test]
    fn epoch_starting_with_loss_is_flagged_at_first_frame() {
        let (mut numbering, ledger) = (FrameNumbering::new(None), SourceLedger::default());
        numbering.lose(2, Cause::Overrun, &ledger);
        let first = numbering.frame(None, Cause::WireGap, &ledger);
        assert_eq!((first.sequence, first.flags), (2, Flags::EPOCH));
        let next = numbering.frame(None, Cause::WireGap, &ledger);
        assert_eq!((next.sequence, next.flags), (3, Flags::default()));
        numbering.interrupt();
        assert_eq!(
            numbering.damaged(&ledger).flags,
            Flags::EPOCH.with(Flags::INCOMPLETE)
        );
        assert_eq!(
            report(&ledger, 2).lost,
            [("overrun", 2), ("bad_packet", 1)].into()
        );
        assert_eq!(ledger.epochs.get(), 2);
    }

    #[test]
    fn epoch_opens_only_after_two_consecutive_numbers() {
        let (mut numbering, ledger) = (numbered(), SourceLedger::default());
        let frame = |numbering: &mut FrameNumbering, raw| {
            numbering.frame(Some(raw), Cause::WireGap, &ledger)
        };
        frame(&mut numbering, 7);
        let damaged = frame(&mut numbering, 5_000);
        assert_eq!((damaged.sequence, damaged.arrived), (8, 0));
        assert_eq!(damaged.flags, Flags::INCOMPLETE);
        numbering.lose(1, Cause::Overrun, &ledger);
        assert_eq!(frame(&mut numbering, 11).sequence, 11);
        let found = report(&ledger, 2);
        let one_each = [("bad_packet", 1), ("overrun", 1), ("wire_gap", 1)];
        assert_eq!(found.lost, one_each.into());
        assert_eq!((found.expected, ledger.epochs.get()), (5, 1));
        // Frame 12 is lost, the design restarts at 100, and frame 101 is lost.
        numbering.lose(1, Cause::Overrun, &ledger);
        assert_eq!(frame(&mut numbering, 100).arrived, 0);
        numbering.lose(1, Cause::Overrun, &ledger);
        let restarted = frame(&mut numbering, 102);
        assert_eq!((restarted.sequence, restarted.flags), (102, Flags::EPOCH));
        let found = report(&ledger, 3);
        let lost = [("bad_packet", 2), ("overrun", 3), ("wire_gap", 1)];
        assert_eq!(found.lost, lost.into());
        assert_eq!((ledger.epochs.get(), ledger.skipped.get()), (2, 88));
        // A doubtful frame at the end of the stream counts as damaged.
        frame(&mut numbering, 9);
        numbering.settle(&ledger);
        assert_eq!(report(&ledger, 3).lost["bad_packet"], 3);
        // After an interruption, the design's first number is accepted.
        numbering.interrupt();
        assert_eq!(frame(&mut numbering, 0).flags, Flags::EPOCH);
        assert_eq!(ledger.epochs.get(), 3);
    }

    #[test]
    fn discontinuous_frame_numbers_are_logged_once() {
        let (mut numbering, ledger) = (numbered(), SourceLedger::default());
        let logged: Vec<u64> = (0..40)
            .filter(|raw| {
                numbering.frame(Some(raw * 1_000), Cause::WireGap, &ledger);
                numbering.has_lost_sync()
            })
            .collect();
        assert_eq!(logged, [u64::from(MAX_DOUBTFUL_FRAMES)]);
        numbering.settle(&ledger);
        assert_eq!(report(&ledger, 1).lost, [("bad_packet", 39)].into());
        assert_eq!(ledger.epochs.get(), 1);
    }

    /// A number of one or two bytes wraps while frames are lost in this process. These losses are known exactly.
    #[test]
    fn known_losses_are_counted_over_wraps_of_narrow_numbers() {
        for bits in [2, 8, 16] {
            let mut numbers = FrameSequence::new(0, 2);
            numbers.bits = bits;
            let (mut numbering, ledger) =
                (FrameNumbering::new(Some(numbers)), SourceLedger::default());
            let mut number = 0;
            for lost in [0, 480, 500, 1000, 58_000, 0] {
                numbering.lose(lost, Cause::Overrun, &ledger);
                number += lost;
                let meta = numbering.frame(Some(number), Cause::WireGap, &ledger);
                assert_eq!((meta.sequence, meta.arrived), (number, 1));
                number += 1;
            }
            assert_eq!(report(&ledger, 6).lost, [("overrun", 59_980)].into());
            assert_eq!((ledger.expected.get(), ledger.epochs.get()), (number, 1));
        }
    }

    /// A transfer that has no number of its own, such as the second part of a long packet, is counted, and the next
    /// number still continues the sequence.
    #[test]
    fn transfer_without_number_is_counted() {
        let (mut numbering, ledger) = (numbered(), SourceLedger::default());
        numbering.frame(Some(7), Cause::WireGap, &ledger);
        numbering.damaged(&ledger);
        let next = numbering.frame(Some(8), Cause::WireGap, &ledger);
        assert_eq!((next.sequence, next.flags), (8, Flags::default()));
        assert_eq!(report(&ledger, 2).lost, [("bad_packet", 1)].into());
        assert_eq!((ledger.expected.get(), ledger.epochs.get()), (3, 1));
    }

    proptest::proptest! {
        /// Checks that single frames with damaged numbers, and the losses between these frames, are counted exactly.
        #[test]
        fn damaged_frame_numbers_are_counted_individually(
            // What happens to each frame: 0 to 2 it arrives, 3 its number is damaged, 4 it is overrun, 5 it is never
            // sent.
            events in proptest::collection::vec(0_u8..6, 1..300),
        ) {
            let (mut numbering, ledger) = (numbered(), SourceLedger::default());
            let (mut delivered, mut damaged, mut overrun, mut unsent) = (1, 0, 0, 0);
            numbering.frame(Some(0), Cause::WireGap, &ledger);
            // The last frame always arrives. At most 9 consecutive frames are missing, which the numbering still
            // accepts as a gap.
            let (mut row, mut number, mut was_damaged) = (0, 0, false);
            for event in events.into_iter().chain([0]) {
                number += 1;
                let event = if row == 9 { 0 } else { event };
                row = if event < 3 { 0 } else { row + 1 };
                match event {
                    3 if !was_damaged => {
                        was_damaged = true;
                        damaged += 1;
                        let meta = numbering.frame(Some(number + 1_000_000), Cause::WireGap, &ledger);
                        proptest::prop_assert_eq!(meta.arrived, 0);
                    }
                    3 | 4 => {
                        overrun += 1;
                        numbering.lose(1, Cause::Overrun, &ledger);
                    }
                    5 => unsent += 1,
                    _ => {
                        was_damaged = false;
                        delivered += 1;
                        let meta = numbering.frame(Some(number), Cause::WireGap, &ledger);
                        proptest::prop_assert_eq!((meta.sequence, meta.arrived), (number, 1));
                    }
                }
            }
            proptest::prop_assert_eq!(ledger.expected.get(), number + 1);
            proptest::prop_assert_eq!(ledger.lost(Cause::BadPacket).get(), damaged);
            proptest::prop_assert_eq!(ledger.lost(Cause::Overrun).get(), overrun);
            proptest::prop_assert_eq!(ledger.lost(Cause::WireGap).get(), unsent);
            proptest::prop_assert_eq!(report(&ledger, delivered).delivered, delivered);
            proptest::prop_assert_eq!(ledger.epochs.get(), 1);
        }
    }
}
