//! The ledger of a source, and the causes of lost packets.

use super::metric::{Put, Sample, seconds};
use super::stored::{Balanced, Make, Stored, Total};
use super::{
    Counter, CounterFileError, CountsReport, EngineReport, PartLedgers, PartReport, PlaybackReport,
};
use std::collections::BTreeMap;
use std::fmt;

causes! {
    /// The packet never arrived, and there is no evidence that this host dropped it.
    WireGap "wire_gap" {
        cause: "the packet was lost before it reached this host or in the network card of this host, or the source \
                  rejected it on arrival (daq_source_rejected_packets_total).",
        remedy: "compare `ethtool -S DEV` with the counters of the switch; use flow control or a lower rate.",
    },
    /// The packet never arrived, and Linux counted drops at this socket meanwhile.
    KernelDrop "kernel_drop" {
        cause: "the receive buffer of the socket was full.",
        remedy: "raise net.core.rmem_max and the receive buffer of the source, pin the thread of the source to its \
                  own core.",
    },
    /// The packet arrived after its frame was published.
    Late "late" {
        cause: "the packet arrived after its frame was closed.",
        remedy: "enlarge the window.",
    },
    /// The packet arrived damaged.
    BadPacket "bad_packet" {
        cause: "the packet was damaged.",
        remedy: "check the sender and the cable.",
    },
    /// The packet arrived, but its frame had no slot because a reader blocked the ring.
    RingFull "ring_full" {
        cause: "a reader blocked the ring.",
        remedy: "see daq_ring_full_frames_total.",
    },
    /// The device overwrote the packet before it was published.
    Overrun "overrun" {
        cause: "the device overwrote the packet.",
        remedy: "see daq_ring_full_frames_total.",
    },
    /// The server that stored the packet deleted it before this host received it.
    Expired "expired" {
        cause: "a limit of the server's stream, such as its maximum age or size, deleted the packet.",
        remedy: "raise the limits of the stream, or receive faster.",
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

ledger! {
    /// The counters of a source.
    ///
    /// The counted unit is the one that contains the sequence number; for network sources, this is a packet.
    ledger SourceLedger {
        /// The ledgers of the parts of frames; empty if frames have one part.
        parts: PartLedgers,
    }
    /// A snapshot of a source's ledger.
    report SourceReport ["source"] {
        /// Packets between the first and the last sequence number seen, summed over epochs.
        expected: u64 = Counter, counter "daq_source_expected_packets_total" {
            meaning: "The number of packets that should have arrived. Always the sum of delivered, pending and lost. \
                      If the sequence number counts transfers or frames, the packet metrics of this source count \
                      transfers or frames instead of packets.",
            cause: "A rate of 0: the sender is silent, or its packets do not reach this socket.",
            remedy: "Search for the packets with `sudo tcpdump -ni any udp port PORT`; check address, multicast \
                     group, cabling and firewall.",
        },
        /// Packets in published frames.
        delivered: u64 = Counter, counter "daq_source_delivered_packets_total" {
            meaning: "The number of packets that arrived and were published.",
            cause: "A rate below that of daq_source_expected_packets_total: packets are lost.",
            remedy: "Check daq_source_lost_packets_total by cause.",
        },
        /// Packets in frames that are still being filled.
        pending: u64, gauge "daq_source_pending_packets" {
            meaning: "Packet slots in open frames. The maximum is the number of frames in the window times the \
                      number of packets per frame.",
            cause: "A value that stays high while nothing is delivered: the sender stopped in the middle of a frame, \
                    or no ring slot becomes free.",
            remedy: "Check daq_ring_full_frames_total of the source's ring and the rate of the sender.",
        },
        /// Packets lost, by cause.
        lost: BTreeMap<&'static str, u64> = LostPackets, counter "daq_source_lost_packets_total" by "cause" (sample_lost) {
            meaning: "Counts every expected packet that is in no published frame, under exactly one cause. All \
                      causes are exported from startup, with value 0.",
            cause: CAUSES,
            remedy: REMEDIES,
        },
        /// Published frames with missing packets.
        incomplete: u64 = Counter, counter "daq_source_incomplete_frames_total" {
            meaning: "The bytes of missing packets are filled with the ring's fill pattern and marked as missing. \
                      Sources that count packets also count the missing packets in daq_source_lost_packets_total; \
                      DMA engines count lost frames in that metric. Packets before the first and after the last \
                      packet of a stream do not count as missing.",
            cause: "Lost packets; for a sensor bridge also a sensor that ended a frame early.",
            remedy: "Check for drops at the card and the switch with `ethtool -S`. The counter `short` of \
                     daq_source_counts_total is the number of frames that the sensor ended early.",
        },
        /// Payload bytes of delivered packets.
        bytes: u64 = Counter, counter "daq_source_delivered_bytes_total" {
            meaning: "The rate of this metric is the throughput of the source, without headers.",
        },
        /// Packets whose packet slot was already filled; not included in daq_source_expected_packets_total.
        duplicates: u64 = Counter, counter "daq_source_duplicate_packets_total" {
            meaning: "The first copy was kept, this copy was dropped.",
            cause: "Two paths through the network, a mirroring port, or a sender that repeats packets. Or several senders, such \
                    as modules or antennas, whose packets have equal numbers.",
            remedy: "Copies are harmless for the data. Remove the second path if they use too much bandwidth or CPU time. If \
                     several senders send parts of the same frames, set `part`, and `frame` if each packet states its frame.",
        },
        /// Packets without a readable or plausible sequence number; not included in
        /// daq_source_expected_packets_total.
        rejected: u64 = Counter, counter "daq_source_rejected_packets_total" {
            meaning: "These packets belong to no frame.",
            cause: "Another sender on this port, a wrong format section, or a sender that has just restarted: \
                    several packets must confirm a jump of the sequence number before a new epoch starts.",
            remedy: "Compare a captured packet with the format section; give each sender its own port.",
        },
        /// The number of rejected packets by reason, if the driver reports reasons.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        rejected_by: BTreeMap<&'static str, u64>,
        /// A warning about the packets that were not rejected, such as times that differ from those of their arrival.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
        /// Packets that carry no data by design, such as descriptors and end of stream.
        control: u64 = Counter, counter "daq_source_control_packets_total" {
            meaning: "Control packets are processed and are not a loss.",
        },
        /// Packets that precede the run: they arrived before the source was ready, or after the first packet of the run with a
        /// lower number; not included in daq_source_expected_packets_total.
        before_start: u64 = Counter, counter "daq_source_before_start_packets_total" {
            meaning: "The sender was already sending when daq started. These packets are not lost data of this run.",
            cause: "A sender that does not wait for daq.",
            remedy: "None is needed. To receive the first packet of a sender, start it when `/-/ready` answers 200.",
        },
        /// Number of epochs: continuous sequences of packet numbers. The value is 1 after the first packet.
        epochs: u64 = Counter, counter "daq_source_epochs_total" {
            meaning: "Each further epoch is a restart of the sender or a jump of its sequence number.",
            cause: "The sender was restarted, lost its clock or reset its counter; or two senders share a port.",
            remedy: "Check the sender's log at that time; give each sender its own port.",
        },
        /// Sequence numbers that were skipped at the start of an epoch; not included in
        /// daq_source_expected_packets_total.
        skipped: u64 = Counter, counter "daq_source_skipped_packets_total" {
            meaning: "If an outage caused the jump in sequence numbers, this is the number of lost packets. If the \
                      sender restarted, nothing was lost.",
            cause: "An outage longer than the window, or a restarted sender.",
            remedy: "If the sender did not restart, these packets were lost: check the network.",
        },
        /// Arrival time of the last packet with data, in nanoseconds since 1970; `None` before the first packet.
        /// Updated five times a second.
        #[serde(skip_serializing_if = "Option::is_none")]
        last_packet_ns: Option<u64>, gauge "daq_source_last_packet_timestamp_seconds"
            (|source, put| put(Sample::Value(seconds(source.last_packet_ns.unwrap_or(0))))) {
            help: "Arrival time of the last packet with data, in seconds since 1970; 0 before the first packet.",
            meaning: "Sampled five times a second. Rejected packets and packets without data do not count.",
            cause: "A constant value: the sender is silent, or its packets are rejected.",
            remedy: "Alert on `time() - daq_source_last_packet_timestamp_seconds > 10`, or set `silent_after` in the \
                     source: the log then names the likely cause.",
        },
        /// 1 while no data packet has arrived for longer than silent_after of the source.
        silent: bool, gauge "daq_source_silent" {
            meaning: "While the value is 1, `/-/ready` answers 503. Without `silent_after`, the value is 1 only while the source \
                      cannot receive data, such as `gige` without its camera.",
            cause: "The sender has stopped, or its packets do not reach this source.",
            remedy: "See the log line that starts with the source's name.",
        },
        /// The ledgers of the parts of frames, by port, address or number; empty if frames have one part.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        parts: BTreeMap<String, PartReport>,
        /// The counters of the source's DMA engine; `None` for a source without a DMA engine.
        #[serde(skip_serializing_if = "Option::is_none")]
        engine: Option<EngineReport>,
        /// How much of its recording the source has replayed; `None` for a source without a recording.
        #[serde(skip_serializing_if = "Option::is_none")]
        playback: Option<PlaybackReport>,
        /// Counters of a source that are not part of its ledger, by name.
        #[serde(skip_serializing_if = "CountsReport::is_empty")]
        counts: CountsReport, counter "daq_source_counts_total" by "count" {
            meaning: "See the documentation page of the source's driver. The source `hsb` counts frames whose \
                      metadata arrived, frames that the sensor skipped or ended early, and requests that the device \
                      refused or did not answer.",
            cause: "See the documentation page of the source's driver.",
        },
    }
    equation expected = delivered + lost, pending;
}

/// Packets that never arrived after the last packet of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This number of packets, while `expected` packets were expected. Those that the source has counted since then are not
    /// counted again.
    Packets {
        /// Number of packets.
        packets: u64,
        /// Value of `expected`.
        expected: u64,
    },
    /// The packets of each part that are not expected yet, up to this number of packets of the part.
    PartsUpTo(u64),
}

impl SourceLedger {
    /// Creates counters with the values that `value` returns for their names.
    pub(super) fn from_values(prefix: &str, value: impl Fn(&str) -> u64) -> Self {
        let mut make = |name: &str| {
            let counter = Counter::default();
            counter.set(value(name));
            Ok(counter)
        };
        Self::create(prefix, "", &mut make).unwrap_or_default()
    }

    /// Returns the counter of a cause.
    pub const fn lost(&self, cause: Cause) -> &Counter {
        &self.lost.0[cause as usize]
    }

    /// Counts packets that never arrived after the last packet of a run as expected and lost. Must be called after the
    /// source has ended.
    pub fn add_missing(&self, missing: Missing) {
        let packets = match missing {
            Missing::Packets { packets, expected } => {
                packets.saturating_sub(self.expected.get().saturating_sub(expected))
            }
            Missing::PartsUpTo(each) => self.complete_parts(each),
        };
        self.lost(Cause::WireGap).add_shared(packets);
        self.expected.add_shared(packets);
    }

    /// Counts packets of parts of which fewer than `each` packets are expected. Returns the number of packets. Counts none
    /// if the run has joined a stream, or if the sender has restarted.
    fn complete_parts(&self, each: u64) -> u64 {
        if self.epochs.get() != 1 || self.before_start.get() > 0 {
            return 0;
        }
        let parts = (0..u32::MAX).map_while(|part| self.parts.get(part));
        let added = parts.map(|part| {
            let missing = each.saturating_sub(part.expected.get());
            part.lost.add_shared(missing);
            part.expected.add_shared(missing);
            missing
        });
        added.sum()
    }
}

impl SourceReport {
    /// Reads the counters.
    pub fn of(ledger: &SourceLedger) -> Self {
        let mut report = Self {
            parts: ledger.parts.read(),
            ..ledger.read()
        };
        report.settle();
        report
    }

    /// Returns the unit of the counts: `"packets"`, or `"frames"` for DMA engines, which deliver whole frames.
    pub const fn unit(&self) -> &'static str {
        if self.engine.is_some() {
            "frames"
        } else {
            "packets"
        }
    }

    /// Returns the number of packets lost, over all causes.
    pub fn lost_total(&self) -> u64 {
        self.lost.total()
    }
}

/// The number of lost packets by cause.
#[derive(Clone, Debug, Default)]
pub struct LostPackets([Counter; Cause::ALL.len()]);

impl Stored for LostPackets {
    type Value = BTreeMap<&'static str, u64>;

    fn create(prefix: &str, field: &str, make: Make<'_>) -> Result<Self, CounterFileError> {
        let mut lost = Self::default();
        for (counter, cause) in lost.0.iter_mut().zip(Cause::ALL) {
            *counter = make(&format!("{prefix}.{field}_{cause}"))?;
        }
        Ok(lost)
    }

    /// Returns the counts by cause; causes without losses are left out.
    fn read(&self) -> BTreeMap<&'static str, u64> {
        let counts = Cause::ALL.into_iter().zip(&self.0);
        let counts = counts.map(|(cause, counter)| (cause.name(), counter.get()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// Every cause has a sample from startup, with value 0.
fn sample_lost(source: &SourceReport, put: Put<'_>) {
    for cause in Cause::ALL {
        let lost = source.lost.get(cause.name()).copied().unwrap_or(0);
        put(Sample::Labelled(cause.name(), lost as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::CounterFile;

    #[test]
    fn packets_that_never_arrived_are_expected_and_lost() {
        let ledger = SourceLedger::default();
        ledger.expected.set(7);
        ledger.delivered.set(7);
        // One of the packets was counted when the source ended.
        let missing = Missing::Packets {
            packets: 9,
            expected: 6,
        };
        ledger.add_missing(missing);
        let report = SourceReport::of(&ledger);
        assert_eq!((report.expected, report.lost_total()), (15, 8));
    }

    #[test]
    fn parts_are_completed_unless_the_run_joined_a_stream() {
        let names = ["a".to_owned(), "b".to_owned()];
        let ledger = SourceLedger {
            parts: PartLedgers::on(&CounterFile::in_memory(), "adc", &names).unwrap(),
            ..SourceLedger::default()
        };
        ledger.epochs.set(1);
        ledger.expected.set(7);
        ledger.delivered.set(7);
        for (part, packets) in [(0, 4), (1, 3)] {
            let part = ledger.parts.get(part).unwrap();
            part.expected.set(packets);
            part.delivered.set(packets);
        }
        ledger.before_start.set(1);
        ledger.add_missing(Missing::PartsUpTo(8));
        assert_eq!(SourceReport::of(&ledger).lost_total(), 0);
        ledger.before_start.set(0);
        ledger.add_missing(Missing::PartsUpTo(8));
        let report = SourceReport::of(&ledger);
        assert_eq!((report.expected, report.lost_total()), (16, 9));
        assert_eq!((report.parts["a"].lost, report.parts["b"].lost), (4, 5));
    }
}
