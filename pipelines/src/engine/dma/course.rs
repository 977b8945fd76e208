//! How the frames of an engine count: their numbers, epochs, and what is missing between them.

use daq_core::dma::{FrameSequence, Step};
use daq_core::frame::{Flags, FrameMeta};
use daq_core::ledger::{Cause, SourceLedger};

/// The numbers of an engine's frames: those inside of them where the design has some, else a count of transfers.
#[derive(Debug)]
pub(super) struct Course {
    numbers: Option<FrameSequence>,
    /// The next frame's number.
    next: u64,
    epoch: u32,
    /// Whether the next frame opens an epoch.
    opens: bool,
    /// Frames that were lost here since the last one that carried a number, by cause: the next number says how many are
    /// missing, and these say why.
    owed: [u64; Cause::ALL.len()],
}

impl Course {
    pub(super) const fn new(numbers: Option<FrameSequence>) -> Self {
        Self {
            numbers,
            next: 0,
            epoch: 0,
            opens: true,
            owed: [0; Cause::ALL.len()],
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
        self.next += missing;
        let mut left = missing;
        for cause in Cause::ALL {
            let here = self.owed[cause as usize].min(left);
            ledger.lost(cause).add(here);
            left -= here;
        }
        ledger.lost(gap).add(left);
    }

    fn begin(&mut self, ledger: &SourceLedger) -> Flags {
        if !std::mem::take(&mut self.opens) {
            return Flags::default();
        }
        let epochs = ledger.epochs.get();
        ledger.epochs.set(epochs + 1);
        self.epoch = u32::try_from(epochs).unwrap_or(u32::MAX);
        Flags::EPOCH
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
                Step::Restart { jumped } => {
                    ledger.jumped.add(jumped);
                    self.next = numbers.position();
                    self.opens = true;
                }
            }
            self.owed = [0; Cause::ALL.len()];
        }
        let flags = self.begin(ledger);
        let sequence = self.next;
        self.next += 1;
        ledger.expected.add(1);
        FrameMeta {
            sequence,
            epoch: self.epoch,
            flags,
            places: 1,
            arrived: 1,
            ..FrameMeta::default()
        }
    }
}
