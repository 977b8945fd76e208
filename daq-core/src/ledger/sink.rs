//! The ledger of a sink.

use super::stored::{State, Stored};
use super::{Counter, Counts, CountsReport};

ledger! {
    /// The counters of a sink.
    ledger SinkLedger {}
    /// A snapshot of a sink's ledger.
    report SinkReport ["sink"] {
        /// Frames accepted by the sink.
        frames: u64 = Counter, counter "daq_sink_frames_total" {
            meaning: "If the process is killed, frames that are not in a finished file are lost. \
                      daq_sink_lost_frames_total counts frames whose write failed.",
            cause: "A rate of 0 while frames wait in the sink's input ring: the disk hangs.",
            remedy: "Check daq_sink_full, and the disk with `iostat -x 1`.",
        },
        /// Payload bytes of the frames accepted by the sink.
        bytes: u64 = Counter, counter "daq_sink_bytes_total" {
            meaning: "The rate of this metric is the write throughput.",
        },
        /// Completed files or stores.
        files: u64 = Counter, counter "daq_sink_files_total" {
            meaning: "Each counted file or store is complete, including its metadata.",
        },
        /// 1 while the disk is full or the receiver is disconnected, else 0.
        full: bool = State<bool>, gauge "daq_sink_full" {
            meaning: "The sink applies its overflow policy until it can continue.",
            cause: "The disk or the quota is full; the receiver of a `stream` sink has stopped, or the receiver's \
                    ring is full.",
            remedy: "Free disk space, or start the receiver. When the cause is removed, the sink continues without a \
                     restart.",
        },
        /// Frames that the sink refused because the disk was full or failed, or the receiver was disconnected.
        dropped: u64 = Counter, counter "daq_sink_dropped_frames_total" {
            meaning: "These frames are lost. They are not in daq_sink_frames_total.",
            cause: "A full or failing disk.",
            remedy: "Free disk space. If there is space, read `dmesg` and `smartctl -a DEV`.",
        },
        /// Frames that the sink accepted but could not write.
        lost: u64 = Counter, counter "daq_sink_lost_frames_total" {
            meaning: "These frames are lost. They are also in daq_sink_frames_total.",
            cause: "A write failed, or the disk was still full at the end of the run.",
            remedy: "Free disk space. If there is space, read `dmesg` and `smartctl -a DEV`.",
        },
        /// The counters that only this kind of sink has.
        #[serde(flatten)]
        counts: CountsReport,
    }
}

impl SinkReport {
    /// Reads the counters: those of every sink in `ledger`, and those of this kind of sink in `counts`.
    pub fn of(ledger: &SinkLedger, counts: &Counts) -> Self {
        let counts = counts.read();
        Self {
            counts,
            ..ledger.read()
        }
    }
}
