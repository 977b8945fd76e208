//! The ledger of a sink.

use super::Counter;
use super::stored::{Balanced, State, Stored};

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
            cause: "The disk or the quota is full; the receiver of an `rdma` sink has stopped, or the receiver's \
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
        /// Connections of the sink to its peer; 0 for sinks without a peer.
        connections: u64 = Counter, counter "daq_sink_connections_total" {
            meaning: "The value is 1 in a run without interruptions. Each further connection follows an interruption.",
            cause: "The receiver restarted, or the link was down.",
            remedy: "The log names the reason for each interruption.",
        },
        /// Number of times that the sink had to wait because its peer had no free slot.
        stalls: u64 = Counter, counter "daq_sink_stalls_total" {
            meaning: "A few stalls per second are harmless. During a stall, frames wait in the ring that the sink \
                      reads.",
            cause: "The receiver's readers are slower than the sender.",
            remedy: "Increase `slots` of the receiver's ring, or make its readers faster.",
        },
    }
}

impl SinkReport {
    /// Reads the counters.
    pub fn of(ledger: &SinkLedger) -> Self {
        ledger.read()
    }
}

impl Balanced for SinkReport {}
