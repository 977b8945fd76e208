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
            remedy: "Increase `slots` of the receiver's ring, or make its readers faster. For a sink `udp`, the send \
                     buffer was full: set a `rate` that the link can carry.",
        },
        /// Packets of the frames that a sink `udp` began to send; 0 for other sinks.
        packets: u64 = Counter, counter "daq_sink_packets_total" {
            meaning: "Always the sum of sent, absent, refused and pending packets.",
        },
        /// Packets that Linux accepted for sending.
        sent_packets: u64 = Counter, counter "daq_sink_sent_packets_total" {
            meaning: "The network or the receiver can still lose these packets.",
        },
        /// Packets that were not sent, because the frame lacks their data.
        absent_packets: u64 = Counter, counter "daq_sink_absent_packets_total" {
            meaning: "The receiver sees these packets as lost.",
            cause: "The source of the frame lost packets, or the frame is shorter than the first one.",
            remedy: "See daq_source_lost_packets_total.",
        },
        /// Packets that were lost because the send queue stayed full.
        refused_queue_full: u64 = Counter, counter "daq_sink_refused_queue_full_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total.",
            cause: "The interface sent nothing for one second, or the queue of the interface dropped packets during that time.",
            remedy: "Check the link with `ip -s link`, and the queue with `tc -s qdisc`.",
        },
        /// Packets that were lost because this host had no way to the receiver.
        refused_unreachable: u64 = Counter, counter "daq_sink_refused_unreachable_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total.",
            cause: "The interface is down, there is no route to the receiver, or the receiver does not answer ARP requests.",
            remedy: "Check `ip link`, `ip route get ADDRESS` and `ip neigh`.",
        },
        /// Packets that were lost because Linux refused them for another reason.
        refused_other: u64 = Counter, counter "daq_sink_refused_other_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total.",
            cause: "The MTU of the path became smaller than the packets, or a firewall of this host drops the packets. The log \
                    names the reason. Packets of a frame that was being sent at the end of the run also count here.",
            remedy: "Lower the packet size in the format of the sink, or correct the rules of the firewall.",
        },
        /// Packets of the frame that is being sent.
        pending_packets: u64, gauge "daq_sink_pending_packets" {
            meaning: "At most the number of packets of one frame.",
            cause: "A constant value: the sink waits, because of its `rate` or because the send queue is full.",
        },
        /// Packets without data that were sent, such as descriptors and the end of the stream.
        control_packets: u64 = Counter, counter "daq_sink_control_packets_total" {
            meaning: "These packets are not in daq_sink_packets_total.",
        },
        /// Reports of the network that packets could not be delivered.
        undeliverable: u64 = Counter, counter "daq_sink_undeliverable_reports_total" {
            meaning: "Each report (ICMP) refers to one packet that this host sent. Hosts limit the rate of such reports, so the \
                      number of lost packets can be higher.",
            cause: "No program listens on the port of the receiver, or a firewall rejects the packets.",
            remedy: "Start the receiver, and check the address and the port in `to`.",
        },
        /// Frames that a sink `nats` began to publish; 0 for other sinks.
        published: u64 = Counter, counter "daq_sink_published_frames_total" {
            meaning: "Always the sum of acknowledged, refused and unacknowledged frames.",
        },
        /// Frames whose messages are all stored by the server.
        acknowledged: u64 = Counter, counter "daq_sink_acknowledged_frames_total" {
            meaning: "The server has confirmed that it stores each message of these frames. If the stream does not hold them \
                      afterwards, the frames also count in daq_sink_lost_frames_total.",
            cause: "A rate below that of daq_sink_published_frames_total: the server is slow, full or not reachable.",
            remedy: "See daq_sink_full and the log; check the server with `nats server report jetstream`.",
        },
        /// Frames that the server refused, or did not acknowledge before the end of the run.
        refused: u64 = Counter, counter "daq_sink_refused_frames_total" {
            meaning: "These frames count as lost, and are also in daq_sink_lost_frames_total. Of a frame that was not \
                      acknowledged before the end of the run, the server may store some or all messages.",
            cause: "The stream does not accept messages of this size, or the server was not reachable at the end of the run.",
            remedy: "The log names the reason.",
        },
        /// Frames that are published, and neither acknowledged nor refused.
        unacknowledged: u64, gauge "daq_sink_unacknowledged_frames" {
            meaning: "At most `window` of the sink.",
            cause: "A constant value equal to `window`: the server does not acknowledge.",
            remedy: "Check that the server runs and that its stream has space; the log names the reason.",
        },
        /// Messages that the sink published again, because the connection was interrupted or an acknowledgement is missing.
        repeated: u64 = Counter, counter "daq_sink_repeated_messages_total" {
            meaning: "A repeated message has the same id, so the server stores it once.",
            cause: "The server restarted, or the connection was interrupted.",
            remedy: "The log names each interruption.",
        },
        /// Repeated messages that the server recognised by their id and did not store again.
        deduplicated: u64 = Counter, counter "daq_sink_deduplicated_messages_total" {
            meaning: "The server had stored these messages before the interruption, but its acknowledgements were lost.",
        },
    }
    equation packets = sent_packets + absent_packets + refused_queue_full + refused_unreachable + refused_other, pending_packets;
    equation published = acknowledged + refused, unacknowledged;
}

impl SinkReport {
    /// Reads the counters.
    pub fn of(ledger: &SinkLedger) -> Self {
        let mut report = ledger.read();
        report.settle();
        report
    }
}
