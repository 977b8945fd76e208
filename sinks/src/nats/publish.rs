//! Passes frames to the client's window.

use daq_core::ledger::{Counter, SinkLedger};
use daq_core::notify::Wait;
use daq_core::ring::Lease;
use daq_core::sink::{Sink, SinkError};
use daq_core::units::counted;
use daq_nats::Publisher;
use std::time::Duration;

/// Maximum time that a call waits for room in the window.
const WAIT: Duration = Duration::from_millis(5);

/// The sink.
pub(super) struct NatsSink {
    publisher: Publisher,
    ledger: SinkLedger,
    stalls: Counter,
    /// Whether the ring waits for this sink.
    is_guaranteed: bool,
    wait: Wait,
}

impl NatsSink {
    pub(super) fn new(
        publisher: Publisher,
        ledger: SinkLedger,
        stalls: Counter,
        wait: Wait,
    ) -> Self {
        Self {
            publisher,
            ledger,
            stalls,
            is_guaranteed: false,
            wait,
        }
    }
}

impl Sink for NatsSink {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        self.is_guaranteed |= lease.is_guaranteed();
        let mut taken = 0;
        let mut bytes = 0;
        while from + taken < lease.len() && self.publisher.offer(&lease.frame(from + taken)) {
            bytes += lease.length(from + taken) as u64;
            taken += 1;
        }
        if taken > 0 {
            self.publisher.commit();
            self.ledger.frames.add(taken as u64);
            self.ledger.bytes.add(bytes);
            return Ok(taken);
        }
        self.stalls.add(1);
        if self.publisher.wait(self.wait, WAIT) {
            return Ok(0);
        }
        match self.publisher.obstacle() {
            None => Ok(0),
            Some((true, what, why)) => Err(SinkError::Full {
                what,
                remedy: format!(
                    "{why}; raise `max_bytes`, `max_messages` or `max_age` of the stream, or delete messages"
                ),
            }),
            Some((false, what, why)) => Err(SinkError::Away { what, why }),
        }
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        match self.publisher.finish() {
            0 if self.is_guaranteed && self.ledger.lost.get() > 0 => Err(SinkError::Failed {
                what: self.publisher.server().to_owned(),
                why: format!(
                    "it does not store {}, which count as `lost` although `guarantee` is true; the log names the reason",
                    counted(self.ledger.lost.get(), "frame")
                ),
            }),
            0 => Ok(()),
            left => Err(SinkError::Away {
                what: self.publisher.server().to_owned(),
                why: format!(
                    "it did not acknowledge {} before the end of the run; they count as `lost`",
                    counted(left, "frame")
                ),
            }),
        }
    }
}
