//! The table of metrics: every name with its meaning, likely cause and remedy.
//!
//! The exposition and the reference page are both made from this table, so neither can miss a metric.

use super::process::Process;
use daq_core::ledger::{
    CopyReport, DeviceReport, EngineReport, KernelReport, ReaderReport, Report, RingReport,
    SinkReport, SourceReport,
};

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counters of what was at most so large, by classes of size, with their sum and number.
    Histogram,
}

impl Kind {
    /// The name in Prometheus' text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where the number comes from, and by that its labels.
#[derive(Clone, Copy)]
pub(super) enum Read {
    Source(fn(&SourceReport) -> u64),
    /// When each source's last packet arrived.
    LastPacket,
    /// One sample for each source and cause.
    Lost,
    /// One sample for each source and what it counts itself.
    Counts,
    /// Only for sources with a DMA engine.
    Engine(fn(&EngineReport) -> u64),
    /// One sample for each of those and fault that has come.
    Faults,
    Ring(fn(&RingReport) -> u64),
    /// Only for rings with a frame.
    FrameAge,
    /// Only for rings on a GPU that the CPU can store to.
    Mapping,
    Reader(fn(&ReaderReport) -> u64),
    Copy(fn(&CopyReport) -> f64),
    /// The copies of a ring by size.
    CopySizes,
    Kernel(fn(&KernelReport) -> u64),
    /// Only for kernels on a GPU.
    Device(fn(&DeviceReport) -> f64),
    /// Only for those of them that are launched.
    Launched(fn(&DeviceReport) -> f64),
    /// How bursts reach kernels on a GPU.
    Dispatch,
    Sink(fn(&SinkReport) -> u64),
    Pipeline(fn(&Report) -> f64),
    Build,
    Process(fn(&Process) -> f64),
    /// When the metrics were set up, in seconds since 1970.
    Start,
}

/// One metric.
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// One line for `# HELP`.
    pub help: &'static str,
    /// What a value says.
    pub meaning: &'static str,
    /// What most likely makes it leave its usual value.
    pub cause: &'static str,
    /// What to do then.
    pub remedy: &'static str,
    pub(super) read: Read,
}

impl Metric {
    /// The names of its labels.
    pub const fn labels(&self) -> &'static [&'static str] {
        match self.read {
            Read::Source(_) | Read::LastPacket | Read::Engine(_) => &["source"],
            Read::Faults => &["source", "fault"],
            Read::Counts => &["source", "count"],
            Read::Lost => &["source", "cause"],
            Read::Ring(_) | Read::FrameAge => &["ring"],
            Read::Mapping => &["ring", "backend"],
            Read::Reader(_) => &["reader", "ring"],
            Read::Copy(_) => &["from", "to"],
            Read::CopySizes => &["from", "to", "le"],
            Read::Kernel(_) | Read::Device(_) | Read::Launched(_) => &["kernel"],
            Read::Dispatch => &["kernel", "dispatch"],
            Read::Sink(_) => &["sink"],
            Read::Build => &["version"],
            Read::Pipeline(_) | Read::Process(_) | Read::Start => &[],
        }
    }
}

const NORMAL: &str = "Grows by itself while data flow.";
const NOTHING: &str = "None needed.";

pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Every metric, in the order of the reference page.
pub static METRICS: &[Metric] = &[
    Metric {
        name: "daq_source_expected_packets_total",
        kind: Kind::Counter,
        help: "Packets between the first and the last sequence number seen, summed over epochs.",
        meaning: "What should have arrived. Always the sum of delivered, pending and lost. For sources whose \
                  sequence number counts transfers or frames, the unit is that.",
        cause: "A rate of 0: the sender is silent, or its packets do not reach this socket.",
        remedy: "Look for the packets with `sudo tcpdump -ni any udp port PORT`; check address, multicast \
                 group, cabling and firewall.",
        read: Read::Source(|s| s.expected),
    },
    Metric {
        name: "daq_source_delivered_packets_total",
        kind: Kind::Counter,
        help: "Packets in published frames.",
        meaning: "What arrived and was handed on.",
        cause: "A rate below that of daq_source_expected_packets_total: loss.",
        remedy: "Look at daq_source_lost_packets_total by cause.",
        read: Read::Source(|s| s.delivered),
    },
    Metric {
        name: "daq_source_pending_packets",
        kind: Kind::Gauge,
        help: "Packets whose fate is open: their frame is still being filled.",
        meaning: "Places in open slots. At most the window's slots times the packets of a frame.",
        cause: "A value that stays high while nothing is delivered: the sender has stopped in the middle of a \
                frame, or no slot becomes free.",
        remedy: "Look at daq_ring_full_frames_total of the source's ring and at the rate of the sender.",
        read: Read::Source(|s| s.pending),
    },
    Metric {
        name: "daq_source_lost_packets_total",
        kind: Kind::Counter,
        help: "Packets lost, by cause.",
        meaning: "Every expected packet that is in no published frame, under exactly one cause. Every cause is \
                  exported from the start, with 0.",
        cause: "wire_gap: lost before this host, or in its network card, or rejected when it came \
                (daq_source_rejected_packets_total). kernel_drop: the socket's receive \
                buffer was full. late: it came after its frame was closed. bad_packet: it was damaged. \
                ring_full: a reader held the ring. overrun: the device overwrote it.",
        remedy: "wire_gap: compare `ethtool -S DEV` here with the switch's counters; use flow control or a \
                 lower rate. kernel_drop: raise net.core.rmem_max and the source's receive buffer, pin its \
                 thread to a core of its own. late: enlarge the window. bad_packet: look at the sender and \
                 the cable. ring_full, overrun: see daq_ring_full_frames_total.",
        read: Read::Lost,
    },
    Metric {
        name: "daq_source_delivered_bytes_total",
        kind: Kind::Counter,
        help: "Payload bytes of delivered packets.",
        meaning: "Its rate is the throughput of the source, without headers.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Source(|s| s.bytes),
    },
    Metric {
        name: "daq_source_incomplete_frames_total",
        kind: Kind::Counter,
        help: "Published frames some of whose packets are missing.",
        meaning: "Those packets are filled and marked as missing. Sources whose unit is the packet count them in lost, too; for \
                  DMA engines the unit of lost is the frame. What a stream lacks before its first and after its last \
                  packet is not missing.",
        cause: "Lost packets; for a sensor bridge also a sensor that ended a frame early.",
        remedy: "Look for drops at the card and the switch: `ethtool -S`; daq_source_counts_total, `short`, says what the \
                 sensor ended early.",
        read: Read::Source(|s| s.incomplete),
    },
    Metric {
        name: "daq_source_duplicate_packets_total",
        kind: Kind::Counter,
        help: "Packets whose place had arrived already; not in expected.",
        meaning: "The first copy was kept, this one was dropped.",
        cause: "Two paths through the network, a mirroring port, or a sender that repeats itself.",
        remedy: "Harmless for the data; take away the second path if it costs too much.",
        read: Read::Source(|s| s.duplicates),
    },
    Metric {
        name: "daq_source_rejected_packets_total",
        kind: Kind::Counter,
        help: "Packets without a readable or believable sequence number; not in expected.",
        meaning: "They could be placed nowhere.",
        cause: "Another sender on this port, a format declared wrongly, or a sender that has just restarted: a \
                jump must be confirmed by several packets before an epoch opens.",
        remedy: "Compare a captured packet with the format section; give each sender its own port.",
        read: Read::Source(|s| s.rejected),
    },
    Metric {
        name: "daq_source_control_packets_total",
        kind: Kind::Counter,
        help: "Packets that carry no data by design, such as descriptors and end of stream.",
        meaning: "They were understood and are no loss.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Source(|s| s.control),
    },
    Metric {
        name: "daq_source_epochs_total",
        kind: Kind::Counter,
        help: "Times that counting began: 1 after the first packet.",
        meaning: "Each further epoch is a restart of the sender or a jump of its sequence number.",
        cause: "The sender was restarted, lost its clock or reset its counter; or two senders share a port.",
        remedy: "Look at the sender's log at that moment; give each sender its own port.",
        read: Read::Source(|s| s.epochs),
    },
    Metric {
        name: "daq_source_jumped_packets_total",
        kind: Kind::Counter,
        help: "Sequence numbers jumped over, forward, at the start of an epoch; not in expected.",
        meaning: "What would have been lost if the jump was an outage and not a restart.",
        cause: "An outage longer than the window, or a restarted sender.",
        remedy: "If the sender did not restart, count these as lost and look at the network.",
        read: Read::Source(|s| s.jumped),
    },
    Metric {
        name: "daq_source_last_packet_timestamp_seconds",
        kind: Kind::Gauge,
        help: "When the last packet with data arrived, in seconds since 1970; 0 before the first.",
        meaning: "Sampled five times a second. Rejected packets and packets without data do not count.",
        cause: "A value that stands still: the sender is silent, or what it sends is rejected.",
        remedy: "Alert on `time() - daq_source_last_packet_timestamp_seconds > 10`, or set `silent_after` in the source: the log \
                 then says where to look.",
        read: Read::LastPacket,
    },
    Metric {
        name: "daq_source_silent",
        kind: Kind::Gauge,
        help: "1 while no packet with data has arrived for longer than silent_after of the source.",
        meaning: "`/-/ready` answers 503 meanwhile. Always 0 without `silent_after`.",
        cause: "The sender has stopped, or its packets do not reach this source.",
        remedy: "See the log line that begins with the source's name.",
        read: Read::Source(|s| s.silent.into()),
    },
    Metric {
        name: "daq_path_fallback_total",
        kind: Kind::Counter,
        help: "Times that the path of a DMA engine's bytes was given up for another.",
        meaning: "The device did not write where it should have, or could not be given that memory; its frames go through \
                  host memory since.",
        cause: "Two slots of this machine between which peer-to-peer writes do not arrive.",
        remedy: "`daq topo` says which slots they are; move the card, or declare path = \"staged\".",
        read: Read::Engine(|e| e.fallbacks),
    },
    Metric {
        name: "daq_path_proof",
        kind: Kind::Gauge,
        help: "Whether a DMA engine's path was seen to work: 0 unproven, 1 proven, 2 disproved.",
        meaning: "The first transfer is compared with what had been laid in its slot before.",
        cause: "0: nothing has come yet. 2: what the engine told as written was not there.",
        remedy: "0: look whether the design sends. 2: `dmesg | grep -iE 'dmar|iommu|aer'`.",
        read: Read::Engine(|e| e.proof as u64),
    },
    Metric {
        name: "daq_engine_restarts_total",
        kind: Kind::Counter,
        help: "Times that a DMA engine was armed again after it had stopped with a fault.",
        meaning: "Each is a break in the stream.",
        cause: "Faults on the bus or of the design.",
        remedy: "Look at daq_engine_faults_total for their names.",
        read: Read::Engine(|e| e.restarts),
    },
    Metric {
        name: "daq_engine_stuck_total",
        kind: Kind::Counter,
        help: "Times that a DMA engine would not stop and was cut off the bus.",
        meaning: "Bus mastering was taken from it and it was reset before its memory was let go.",
        cause: "A design that hangs.",
        remedy: "Look at the design: a stream without an end, a clock that stands.",
        read: Read::Engine(|e| e.stuck),
    },
    Metric {
        name: "daq_source_counts_total",
        kind: Kind::Counter,
        help: "What a source counts beside its ledger, by name.",
        meaning: "See the driver's page: `hsb` counts the frames whose metadata came, those that its sensor left out or \
                  ended early, and requests that its device did not answer or refused.",
        cause: "See the driver's page.",
        remedy: NOTHING,
        read: Read::Counts,
    },
    Metric {
        name: "daq_engine_faults_total",
        kind: Kind::Counter,
        help: "Faults that a DMA engine reported, by name.",
        meaning: "The error bits of its status, in words.",
        cause: "See the name; read errors and unsupported requests come from the bus. The table of each source tells of \
                its own.",
        remedy: "`dmesg | grep -iE 'dmar|iommu|aer'`; the design for the others.",
        read: Read::Faults,
    },
    Metric {
        name: "daq_ring_capacity_slots",
        kind: Kind::Gauge,
        help: "Slots of the ring.",
        meaning: "Fixed by `slots` in the ring's section.",
        cause: "Constant.",
        remedy: NOTHING,
        read: Read::Ring(|r| r.capacity),
    },
    Metric {
        name: "daq_ring_newest_frame_age_seconds",
        kind: Kind::Gauge,
        help: "Seconds since the newest frame of the ring was published; absent before the first.",
        meaning: "Sampled five times a second, so it is at most 0.2 s too small.",
        cause: "A value that grows: the ring's source is silent, or the kernel before it stands still.",
        remedy: "Look at daq_source_last_packet_timestamp_seconds of the source, and at the rings before this one.",
        read: Read::FrameAge,
    },
    Metric {
        name: "daq_ring_high_water_slots",
        kind: Kind::Gauge,
        help: "Most slots in use at a time since the start.",
        meaning: "How much of the ring was ever needed. Equal to the capacity: it was full at least once, or a \
                  reader without guarantee lagged by the whole ring.",
        cause: "A reader paused: a slow disk, a busy core, a long integration.",
        remedy: "Enlarge `slots` while it comes near the capacity; shrink them if it never does.",
        read: Read::Ring(|r| r.high_water),
    },
    Metric {
        name: "daq_ring_made_frames_total",
        kind: Kind::Counter,
        help: "Frames offered to the ring.",
        meaning: "Always the sum of published and refused (ring full).",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Ring(|r| r.made),
    },
    Metric {
        name: "daq_ring_published_frames_total",
        kind: Kind::Counter,
        help: "Frames handed to the readers.",
        meaning: "Its rate is the frame rate of the ring.",
        cause: "A rate of 0: the source or kernel that fills it has nothing, or a reader holds it.",
        remedy: "Look at the producer's ledger and at daq_ring_full_frames_total.",
        read: Read::Ring(|r| r.published),
    },
    Metric {
        name: "daq_ring_full_frames_total",
        kind: Kind::Counter,
        help: "Frames refused because no slot was free.",
        meaning: "Loss by a reader with `guarantee = true` in front of a producer that cannot wait.",
        cause: "The reader named by daq_reader_held_frames_total is slower than the source on average, or \
                paused for longer than the ring lasts. On RING@host, which `copy to RING` holds: a guaranteed \
                reader of RING, on the GPU, is too slow, or the copies to the GPU are.",
        remedy: "On average too slow: give it a core, a faster disk, less work. Pauses: more `slots`. If its \
                 loss is acceptable: `guarantee = false`. On RING@host: the same for that reader of RING whose \
                 daq_reader_pending_frames is near the capacity of RING; if there is none, for the copies.",
        read: Read::Ring(|r| r.ring_full),
    },
    Metric {
        name: "daq_ring_mapping_info",
        kind: Kind::Gauge,
        help: "Always 1, for rings on a GPU that the CPU can store to; the label says what made their memory.",
        meaning: "Frames of such a ring are stored by the CPU where that is faster than the copy engine: \
                  daq_copy_stored_frames_total.",
        cause: "A ring that is missing: its frames are large, or the CPU has no way to store to that GPU.",
        remedy: "`daq plan` tells why not; `daq doctor` tells what would make it possible.",
        read: Read::Mapping,
    },
    Metric {
        name: "daq_reader_published_frames_total",
        kind: Kind::Counter,
        help: "Frames published since the reader attached.",
        meaning: "Always the sum of read, overrun, discarded, dropped as incomplete and pending.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Reader(|r| r.published),
    },
    Metric {
        name: "daq_reader_read_frames_total",
        kind: Kind::Counter,
        help: "Frames read to the end.",
        meaning: "Its rate is what the reader keeps up with.",
        cause: "A rate below that of daq_reader_published_frames_total: the reader falls behind.",
        remedy: "Look at daq_reader_pending_frames, and at the processor time of its thread.",
        read: Read::Reader(|r| r.read),
    },
    Metric {
        name: "daq_reader_overrun_frames_total",
        kind: Kind::Counter,
        help: "Frames overwritten before the reader came to them.",
        meaning: "Loss of this reader alone, allowed by `guarantee = false`.",
        cause: "The reader is slower than the source.",
        remedy: "As for daq_ring_full_frames_total; or `guarantee = true` if the source should wait for it.",
        read: Read::Reader(|r| r.overrun),
    },
    Metric {
        name: "daq_reader_discarded_frames_total",
        kind: Kind::Counter,
        help: "Frames thrown away by declared policy, or because they changed while being read.",
        meaning: "Frames that were taken but went nowhere.",
        cause: "A sink's overflow policy (disk full), or a producer that cannot be stopped lapped the reader.",
        remedy: "Make space on the medium; more `slots` against lapping.",
        read: Read::Reader(|r| r.discarded),
    },
    Metric {
        name: "daq_reader_dropped_incomplete_frames_total",
        kind: Kind::Counter,
        help: "Frames with missing packets that were not handed to the reader.",
        meaning: "By `incomplete = \"drop\"` in the reader's section; other readers of the ring get these frames.",
        cause: "Packets were lost, or the stream began or ended inside a frame.",
        remedy: "As for daq_source_lost_packets_total.",
        read: Read::Reader(|r| r.dropped_incomplete),
    },
    Metric {
        name: "daq_reader_pending_frames",
        kind: Kind::Gauge,
        help: "Frames that wait for the reader or are being read: its lag.",
        meaning: "Near 0: it keeps up. Near daq_ring_capacity_slots: it is about to lose or to hold back.",
        cause: "A pause of the reader, or a reader that is too slow.",
        remedy: "As for daq_ring_full_frames_total.",
        read: Read::Reader(|r| r.pending),
    },
    Metric {
        name: "daq_reader_held_frames_total",
        kind: Kind::Counter,
        help: "Frames that the producer refused because this reader held the ring.",
        meaning: "Names the reader behind daq_ring_full_frames_total.",
        cause: "This reader is too slow. `copy to RING`: it waits for a slot of RING, which a reader of RING \
                holds, or the copies to the GPU are too slow.",
        remedy: "As for daq_ring_full_frames_total, for this reader; for `copy to RING`, look at the readers of \
                 RING.",
        read: Read::Reader(|r| r.held),
    },
    Metric {
        name: "daq_copy_taken_frames_total",
        kind: Kind::Counter,
        help: "Frames of which a copy between host memory and a GPU was begun.",
        meaning: "Always the sum of copied, failed and pending.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Copy(|c| c.taken as f64),
    },
    Metric {
        name: "daq_copy_frames_total",
        kind: Kind::Counter,
        help: "Frames copied, and published in the ring named by `to`.",
        meaning: "Its rate is the frame rate of that ring.",
        cause: "A rate below that of daq_ring_published_frames_total of the ring named by `from`: the \
                copies fall behind.",
        remedy: "Compare daq_copy_bytes_total over daq_copy_busy_seconds_total with what `daq tune` \
                 measured. If it is as much, the bus is full; if the copies are idle, the ring named by \
                 `to` is: look at daq_reader_pending_frames of its readers.",
        read: Read::Copy(|c| c.frames as f64),
    },
    Metric {
        name: "daq_copy_failed_frames_total",
        kind: Kind::Counter,
        help: "Frames lost in copies in which the device failed.",
        meaning: "Loss: they are in no ring any more. The pipeline ends after the first.",
        cause: "The GPU fell off the bus, ran into a memory error, or was reset.",
        remedy: "The log names the error; look for `Xid` in `dmesg`, and run `daq doctor`.",
        read: Read::Copy(|c| c.failed as f64),
    },
    Metric {
        name: "daq_copy_stored_frames_total",
        kind: Kind::Counter,
        help: "Frames copied that the CPU stored; the GPU's copy engine copied the others.",
        meaning: "A part of daq_copy_frames_total: all of it where a kernel stays on the GPU and alone reads the \
                  ring, small bursts elsewhere.",
        cause: "0: no backend can map the ring (daq_ring_mapping_info), or bursts are larger than the cut-over.",
        remedy: "`daq plan` tells which way a copy goes and why.",
        read: Read::Copy(|c| c.stored as f64),
    },
    Metric {
        name: "daq_copy_pending_frames",
        kind: Kind::Gauge,
        help: "Frames whose copy is under way.",
        meaning: "At most the frames of the copies in daq_copy_in_flight.",
        cause: "A value that does not change while daq_copy_frames_total stands still: the GPU or its \
                driver hangs.",
        remedy: "Look at `nvidia-smi`, at `dmesg` and at `/-/healthy`.",
        read: Read::Copy(|c| c.pending as f64),
    },
    Metric {
        name: "daq_copies_total",
        kind: Kind::Counter,
        help: "Copies done; each holds all frames that were ready, up to a limit.",
        meaning: "daq_copy_frames_total over it is the number of frames that went together.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Copy(|c| c.copies as f64),
    },
    Metric {
        name: "daq_copy_bytes_total",
        kind: Kind::Counter,
        help: "Bytes copied, without those that a failed copy may have moved.",
        meaning: "Its rate is the throughput of the copy; over the rate of daq_copy_busy_seconds_total it \
                  is the bandwidth while the copy is at work.",
        cause: "A bandwidth far below what `daq tune` measured: copies too small to fill the bus, a narrow \
                or slow PCIe link, or another user of it.",
        remedy: "Look at daq_copy_size_bytes: if most copies are small, use larger slots. `daq doctor` \
                 tells what the link could do and does.",
        read: Read::Copy(|c| c.bytes as f64),
    },
    Metric {
        name: "daq_copy_in_flight",
        kind: Kind::Gauge,
        help: "Copies under way: the depth of the queue.",
        meaning: "0: nothing waits to be copied. The copies of a GPU in one direction share `depth` of the \
                  section [staging], or what `daq tune` measured; at that the bus is the limit.",
        cause: "Data arrive faster than they are copied.",
        remedy: "As for daq_copy_frames_total.",
        read: Read::Copy(|c| c.in_flight as f64),
    },
    Metric {
        name: "daq_copy_busy_seconds_total",
        kind: Kind::Counter,
        help: "Seconds during which at least one copy was under way.",
        meaning: "Its rate is the part of the time that the copy was at work; near 1 the bus is always in \
                  use.",
        cause: "Near 1: the bus is full, or the copies are small and each pays its latency.",
        remedy: "Look at daq_copy_size_bytes. Small copies: larger slots. Large ones: fewer bytes a sample, \
                 or a GPU of its own for some of the sources.",
        read: Read::Copy(|c| seconds(c.busy_ns)),
    },
    Metric {
        name: "daq_copy_size_bytes",
        kind: Kind::Histogram,
        help: "Copies by size in bytes.",
        meaning: "The sum is that of daq_copy_bytes_total, the count that of daq_copies_total. Copies grow \
                  by themselves with the load, up to the chunk that `daq tune` finds.",
        cause: "Small copies: low load, or the ring named by `to` is nearly full, so that few frames find a \
                slot.",
        remedy: "At low load none needed. Else more `slots` in the ring named by `to`, and a look at \
                 daq_reader_pending_frames of its readers.",
        read: Read::CopySizes,
    },
    Metric {
        name: "daq_kernel_input_frames_total",
        kind: Kind::Counter,
        help: "Frames taken from the input ring.",
        meaning: "Always the sum of consumed, withheld, failed and pending.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.input),
    },
    Metric {
        name: "daq_kernel_consumed_frames_total",
        kind: Kind::Counter,
        help: "Frames whose content has gone into output.",
        meaning: "What the kernel has finished.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.consumed),
    },
    Metric {
        name: "daq_kernel_withheld_frames",
        kind: Kind::Gauge,
        help: "Frames that wait inside the kernel for their integration to end.",
        meaning: "Between 0 and the length of an integration.",
        cause: "An integration in progress.",
        remedy: NOTHING,
        read: Read::Kernel(|k| k.withheld),
    },
    Metric {
        name: "daq_kernel_failed_frames_total",
        kind: Kind::Counter,
        help: "Frames that the kernel could not process.",
        meaning: "They gave no output.",
        cause: "A frame of another length than the kernel was planned for, or too incomplete to use.",
        remedy: "The log names the first such frame and the reason.",
        read: Read::Kernel(|k| k.failed),
    },
    Metric {
        name: "daq_kernel_pending_frames",
        kind: Kind::Gauge,
        help: "Frames in work.",
        meaning: "At most the frames of one burst.",
        cause: "A value that does not change while daq_kernel_input_frames_total stands still: it hangs, or its \
                output ring is held.",
        remedy: "Look at daq_reader_pending_frames of the output ring's readers and at `/-/healthy`.",
        read: Read::Kernel(|k| k.pending),
    },
    Metric {
        name: "daq_kernel_made_frames_total",
        kind: Kind::Counter,
        help: "Frames made by the kernel.",
        meaning: "Fewer than the input's where it integrates.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.made),
    },
    Metric {
        name: "daq_kernel_dispatch_info",
        kind: Kind::Gauge,
        help: "Always 1, for kernels on a GPU; the label says how bursts reach them.",
        meaning: "`launch`: one launch a burst. `persistent`: the kernel stays on the GPU and waits for its \
                  doorbell; it is neither launched nor timed.",
        cause: "Constant: `dispatch` of the kernel.",
        remedy: NOTHING,
        read: Read::Dispatch,
    },
    Metric {
        name: "daq_kernel_launches_total",
        kind: Kind::Counter,
        help: "Bursts of frames put on the GPU and done; only for kernels that are launched there.",
        meaning: "daq_kernel_consumed_frames_total over it is about the number of frames in a burst.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Launched(|d| d.launches as f64),
    },
    Metric {
        name: "daq_kernel_device_seconds_total",
        kind: Kind::Counter,
        help: "Seconds that the GPU took for the bursts of the kernel; only for kernels that are launched there.",
        meaning: "Its rate is the part of the time that the GPU was busy with this kernel.",
        cause: "Near 1: the GPU can do no more of this kernel.",
        remedy: "Choose a cheaper method or less resolution, or spread the kernels over more GPUs. Kernels \
                 that share a GPU slow each other.",
        read: Read::Launched(|d| seconds(d.busy_ns)),
    },
    Metric {
        name: "daq_kernel_launch_gap_seconds_total",
        kind: Kind::Counter,
        help: "Seconds that the GPU waited on the kernel's stream between one burst and the next; only for \
               kernels that are launched there.",
        meaning: "Idle time: with that of daq_kernel_device_seconds_total its rate comes to about 1.",
        cause: "Above 0 at low load as a matter of course. While daq_reader_pending_frames of the kernel \
                grows: its thread is too late with the next burst.",
        remedy: "Pin the thread to a core of its own; use larger slots, so that a burst lasts longer.",
        read: Read::Launched(|d| seconds(d.gap_ns)),
    },
    Metric {
        name: "daq_kernel_occupancy_ratio",
        kind: Kind::Gauge,
        help: "Part of a multiprocessor's threads that the kernel's blocks can keep occupied, from 0 to 1; \
               only for kernels on a GPU.",
        meaning: "Fixed when the kernel is planned; a property of its code, not of the load.",
        cause: "A low value: the kernel needs many registers or much shared memory for each block.",
        remedy: "None needed while daq_kernel_device_seconds_total grows slowly; many fast kernels have a \
                 low one.",
        read: Read::Device(|d| d.occupancy_ppm as f64 / 1e6),
    },
    Metric {
        name: "daq_sink_frames_total",
        kind: Kind::Counter,
        help: "Frames taken over by the sink.",
        meaning: "Frames that are not in a finished file yet are lost in a kill; daq_sink_lost_frames_total counts those whose write failed.",
        cause: "A rate of 0 while its ring is being filled: the medium hangs.",
        remedy: "Look at daq_sink_full, and at the medium with `iostat -x 1`.",
        read: Read::Sink(|s| s.frames),
    },
    Metric {
        name: "daq_sink_bytes_total",
        kind: Kind::Counter,
        help: "Payload bytes of the frames taken over by the sink.",
        meaning: "Its rate is the throughput to the medium.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Sink(|s| s.bytes),
    },
    Metric {
        name: "daq_sink_files_total",
        kind: Kind::Counter,
        help: "Files, or their like, completed.",
        meaning: "Each is whole and has its metadata beside it.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Sink(|s| s.files),
    },
    Metric {
        name: "daq_sink_full",
        kind: Kind::Gauge,
        help: "1 while the medium has no space or the receiver is away, else 0.",
        meaning: "The sink follows its declared overflow policy until it can go on.",
        cause: "The disk or the quota is full; the receiver of an `rdma` sink has ended, or its ring is full.",
        remedy: "Make space, start the receiver, or point the sink elsewhere; it goes on by itself.",
        read: Read::Sink(|s| u64::from(s.full)),
    },
    Metric {
        name: "daq_sink_dropped_frames_total",
        kind: Kind::Counter,
        help: "Frames that the sink did not take because the medium had no space or failed, or the receiver was away.",
        meaning: "Loss at the very end; these frames are not in daq_sink_frames_total.",
        cause: "A full or failing disk.",
        remedy: "Make space; read `dmesg` and `smartctl -a DEV` if there is some.",
        read: Read::Sink(|s| s.dropped),
    },
    Metric {
        name: "daq_sink_lost_frames_total",
        kind: Kind::Counter,
        help: "Frames that the sink took and could not write.",
        meaning: "Loss at the very end; these frames are in daq_sink_frames_total as well.",
        cause: "A write failed, or the disk was still full at the end of the run.",
        remedy: "Make space; read `dmesg` and `smartctl -a DEV` if there is some.",
        read: Read::Sink(|s| s.lost),
    },
    Metric {
        name: "daq_sink_connections_total",
        kind: Kind::Counter,
        help: "Times that the sink was connected with its peer; 0 where it has none.",
        meaning: "1 in a quiet run; each one more is a break that was gone round.",
        cause: "The receiver was restarted, or the link was cut.",
        remedy: "Read the log: each break says why.",
        read: Read::Sink(|s| s.connections),
    },
    Metric {
        name: "daq_sink_stalls_total",
        kind: Kind::Counter,
        help: "Times that the sink began to wait because its peer had no room for frames.",
        meaning: "A few a second are harmless; frames wait in the ring before the sink meanwhile.",
        cause: "The receiver's readers are slower than what is sent.",
        remedy: "Give the receiver's ring more slots, or speed up what reads it.",
        read: Read::Sink(|s| s.stalls),
    },
    Metric {
        name: "daq_ledger_violations",
        kind: Kind::Gauge,
        help: "Ledgers whose equation does not hold; always 0 unless daq itself is wrong.",
        meaning: "Above 0 the numbers of this page cannot be trusted.",
        cause: "A defect of daq.",
        remedy: "Report it with the output of `/status`.",
        read: Read::Pipeline(|r| r.violations().len() as f64),
    },
    Metric {
        name: "daq_uptime_seconds",
        kind: Kind::Gauge,
        help: "Seconds since the pipeline started.",
        meaning: "Falls back to 0 at a restart.",
        cause: "A restart: by hand, by systemd, after a crash.",
        remedy: "`journalctl -u 'daq@*'` tells who ended it; `last_run` of `/status` tells whether uncleanly.",
        read: Read::Pipeline(|r| r.seconds),
    },
    Metric {
        name: "daq_build_info",
        kind: Kind::Gauge,
        help: "Always 1; the label says which version runs.",
        meaning: "Join it to other metrics to see what changed with an upgrade.",
        cause: "Constant.",
        remedy: NOTHING,
        read: Read::Build,
    },
    Metric {
        name: "daq_log_dropped_total",
        kind: Kind::Counter,
        help: "Log messages dropped because stderr was not read or failed.",
        meaning: "Messages that found the queue of the log full, or whose terminal, pipe or journal went away. Data \
                  are not delayed.",
        cause: "A terminal stopped with Ctrl-S, a pipe that is not read, a journal that stalls, a closed ssh session.",
        remedy: "Read stderr again, or send it to a file or to the journal.",
        read: Read::Process(|p| p.dropped_messages),
    },
    Metric {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        help: "Processor time of all threads, user and system, in seconds.",
        meaning: "Its rate is the number of cores in use.",
        cause: "Threads that poll busily use a whole core each, by design.",
        remedy: "Choose a waiting policy that sleeps if cores are scarce.",
        read: Read::Process(|p| p.cpu_seconds),
    },
    Metric {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        help: "Memory in RAM, in bytes.",
        meaning: "After the start it stays near the total that `daq plan` prints.",
        cause: "Steady growth would be a defect.",
        remedy: "Report it with the output of `/status`.",
        read: Read::Process(|p| p.resident_bytes),
    },
    Metric {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        help: "Address space, in bytes.",
        meaning: "Mostly mappings that cost no RAM.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Process(|p| p.virtual_bytes),
    },
    Metric {
        name: "daq_process_locked_memory_bytes",
        kind: Kind::Gauge,
        help: "Memory locked in RAM, in bytes.",
        meaning: "Rings that can be neither swapped out nor moved.",
        cause: "Less than the rings of `daq plan`: the memlock limit is too low.",
        remedy: "`daq doctor` gives the command for the memlock limit.",
        read: Read::Process(|p| p.locked_bytes),
    },
    Metric {
        name: "process_threads",
        kind: Kind::Gauge,
        help: "Threads of the process.",
        meaning: "As many as `daq plan` lists, and a few for HTTP and signals.",
        cause: "Constant after the start.",
        remedy: NOTHING,
        read: Read::Process(|p| p.threads),
    },
    Metric {
        name: "process_open_fds",
        kind: Kind::Gauge,
        help: "Open file descriptors.",
        meaning: "Sockets, files being written, connections to this page.",
        cause: "Steady growth would be a defect.",
        remedy: "Report it with the output of `ls -l /proc/$(pidof daq)/fd`.",
        read: Read::Process(|p| p.open_fds),
    },
    Metric {
        name: "process_max_fds",
        kind: Kind::Gauge,
        help: "Most file descriptors that the process may open.",
        meaning: "The soft limit.",
        cause: "Constant.",
        remedy: "LimitNOFILE= in the unit, `ulimit -n` in a shell.",
        read: Read::Process(|p| p.max_fds),
    },
    Metric {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        help: "When the process set up its metrics, in seconds since 1970.",
        meaning: "Changes at a restart.",
        cause: "As for daq_uptime_seconds.",
        remedy: "As for daq_uptime_seconds.",
        read: Read::Start,
    },
];

#[cfg(test)]
mod tests;
