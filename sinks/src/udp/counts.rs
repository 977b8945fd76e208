//! The counters of a sink `udp`.

use daq_core::counts;

counts! {
    /// The packets of a sink `udp`.
    pub(crate) struct UdpCounts {
        /// Packets of the frames that a sink `udp` began to send.
        packets, counter "daq_sink_packets_total" {
            meaning: "Always the sum of sent, absent, refused and pending packets.",
        },
        /// Packets that Linux accepted for sending.
        sent_packets, counter "daq_sink_sent_packets_total" {
            meaning: "The network or the receiver can still lose these packets.",
        },
        /// Packets that were not sent, because the frame lacks their data.
        absent_packets, counter "daq_sink_absent_packets_total" {
            meaning: "The receiver sees these packets as lost.",
            cause: "The source of the frame lost packets, or the frame is shorter than the first one.",
            remedy: "See daq_source_lost_packets_total.",
        },
        /// Packets that were lost because the send queue stayed full.
        refused_queue_full, counter "daq_sink_refused_queue_full_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total.",
            cause: "The interface sent nothing for one second, or the queue of the interface dropped packets during that time.",
            remedy: "Check the link with `ip -s link`, and the queue with `tc -s qdisc`.",
        },
        /// Packets that were lost because this host had no way to the receiver.
        refused_unreachable, counter "daq_sink_refused_unreachable_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total.",
            cause: "The interface is down, there is no route to the receiver, or the receiver does not answer ARP requests.",
            remedy: "Check `ip link`, `ip route get ADDRESS` and `ip neigh`.",
        },
        /// Packets that were lost because Linux refused them for another reason.
        refused_other, counter "daq_sink_refused_other_packets_total" {
            meaning: "These packets are lost. Their frames are also in daq_sink_lost_frames_total. The rest of a frame that was \
                      being sent at the end of the drain time also counts here; this frame is in daq_sink_dropped_frames_total.",
            cause: "The MTU of the path became smaller than the packets, or a firewall of this host drops the packets. The log \
                    names the reason.",
            remedy: "Lower the packet size in the format of the sink, or correct the rules of the firewall.",
        },
        /// Packets without data that were sent, such as descriptors and the end of the stream.
        control_packets, counter "daq_sink_control_packets_total" {
            meaning: "These packets are not in daq_sink_packets_total.",
        },
        /// Reports of the network that packets could not be delivered.
        undeliverable, counter "daq_sink_undeliverable_reports_total" {
            meaning: "Each report (ICMP) refers to one packet that this host sent. Hosts limit the rate of such reports, so the \
                      number of lost packets can be higher.",
            cause: "No program listens on the port of the receiver, or a firewall rejects the packets.",
            remedy: "Start the receiver, and check the address and the port in `to`.",
        },
    }
    calculated {
        /// Packets of the frame that is being sent.
        pending_packets, gauge "daq_sink_pending_packets" {
            meaning: "At most the number of packets of one frame.",
            cause: "A constant value: the sink waits, because of its `rate` or because the send queue is full.",
        },
    }
    equation packets = sent_packets + absent_packets + refused_queue_full + refused_unreachable + refused_other, pending_packets;
}
