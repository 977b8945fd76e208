//! The table of metrics: every name with its meaning, likely cause and remedy.
//!
//! The metrics output and the reference page are both generated from this table, so both contain every metric.

use super::metric::{Kind, Metric, Read, seconds};

const NORMAL: &str = "Normal: the value grows while data flow.";
const NOTHING: &str = "None needed.";

/// Every metric, in the order of the reference page.
pub static METRICS: &[Metric] = &[
    Metric {
        name: "daq_source_expected_packets_total",
        kind: Kind::Counter,
        help: "Packets between the first and the last sequence number seen, summed over epochs.",
        meaning: "The number of packets that should have arrived. Always the sum of delivered, \
                  pending and lost. If the sequence number counts transfers or frames, the packet \
                  metrics of this source count transfers or frames instead of packets.",
        cause: "A rate of 0: the sender is silent, or its packets do not reach this socket.",
        remedy: "Search for the packets with `sudo tcpdump -ni any udp port PORT`; check address, \
                 multicast group, cabling and firewall.",
        read: Read::Source(|s| s.expected),
    },
    Metric {
        name: "daq_source_delivered_packets_total",
        kind: Kind::Counter,
        help: "Packets in published frames.",
        meaning: "The number of packets that arrived and were published.",
        cause: "A rate below that of daq_source_expected_packets_total: packets are lost.",
        remedy: "Check daq_source_lost_packets_total by cause.",
        read: Read::Source(|s| s.delivered),
    },
    Metric {
        name: "daq_source_pending_packets",
        kind: Kind::Gauge,
        help: "Packets in frames that are still being filled.",
        meaning: "Packet slots in open frames. The maximum is the number of frames in the window \
                  times the number of packets per frame.",
        cause: "A value that stays high while nothing is delivered: the sender stopped in the middle \
                of a frame, or no ring slot becomes free.",
        remedy: "Check daq_ring_full_frames_total of the source's ring and the rate of the sender.",
        read: Read::Source(|s| s.pending),
    },
    Metric {
        name: "daq_source_lost_packets_total",
        kind: Kind::Counter,
        help: "Packets lost, by cause.",
        meaning: "Counts every expected packet that is in no published frame, under exactly one \
                  cause. All causes are exported from startup, with value 0.",
        cause: "wire_gap: the packet was lost before it reached this host or in the network card \
                of this host, or the source rejected it on arrival \
                (daq_source_rejected_packets_total). kernel_drop: the receive buffer of the socket \
                was full. late: the packet arrived after its frame was closed. bad_packet: the \
                packet was damaged. ring_full: a reader blocked the ring. overrun: the device \
                overwrote the packet.",
        remedy: "wire_gap: compare `ethtool -S DEV` with the counters of the switch; use flow \
                 control or a lower rate. kernel_drop: raise net.core.rmem_max and the receive \
                 buffer of the source, pin the thread of the source to its own core. late: enlarge \
                 the window. bad_packet: check the sender and the cable. ring_full, overrun: see \
                 daq_ring_full_frames_total.",
        read: Read::Lost,
    },
    Metric {
        name: "daq_source_delivered_bytes_total",
        kind: Kind::Counter,
        help: "Payload bytes of delivered packets.",
        meaning: "The rate of this metric is the throughput of the source, without headers.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Source(|s| s.bytes),
    },
    Metric {
        name: "daq_source_incomplete_frames_total",
        kind: Kind::Counter,
        help: "Published frames with missing packets.",
        meaning: "The bytes of missing packets are filled with the ring's fill pattern and marked \
                  as missing. Sources that count packets also count the missing packets in \
                  daq_source_lost_packets_total; DMA engines count lost frames in that metric. \
                  Packets before the first and after the last packet of a stream do not count as \
                  missing.",
        cause: "Lost packets; for a sensor bridge also a sensor that ended a frame early.",
        remedy: "Check for drops at the card and the switch with `ethtool -S`. The counter `short` \
                 of daq_source_counts_total is the number of frames that the sensor ended early.",
        read: Read::Source(|s| s.incomplete),
    },
    Metric {
        name: "daq_source_duplicate_packets_total",
        kind: Kind::Counter,
        help: "Packets whose packet slot was already filled; not included in daq_source_expected_packets_total.",
        meaning: "The first copy was kept, this copy was dropped.",
        cause: "Two paths through the network, a mirroring port, or a sender that repeats packets.",
        remedy: "Harmless for the data. Remove the second path if the duplicates use too much \
                 bandwidth or CPU time.",
        read: Read::Source(|s| s.duplicates),
    },
    Metric {
        name: "daq_source_rejected_packets_total",
        kind: Kind::Counter,
        help: "Packets without a readable or plausible sequence number; not included in daq_source_expected_packets_total.",
        meaning: "These packets belong to no frame.",
        cause: "Another sender on this port, a wrong format section, or a sender that has just \
                restarted: several packets must confirm a jump of the sequence number before a new \
                epoch starts.",
        remedy: "Compare a captured packet with the format section; give each sender its own port.",
        read: Read::Source(|s| s.rejected),
    },
    Metric {
        name: "daq_source_control_packets_total",
        kind: Kind::Counter,
        help: "Packets that carry no data by design, such as descriptors and end of stream.",
        meaning: "Control packets are processed and are not a loss.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Source(|s| s.control),
    },
    Metric {
        name: "daq_source_epochs_total",
        kind: Kind::Counter,
        help: "Number of epochs: continuous sequences of packet numbers. The value is 1 after the \
               first packet.",
        meaning: "Each further epoch is a restart of the sender or a jump of its sequence number.",
        cause: "The sender was restarted, lost its clock or reset its counter; or two senders share a port.",
        remedy: "Check the sender's log at that time; give each sender its own port.",
        read: Read::Source(|s| s.epochs),
    },
    Metric {
        name: "daq_source_skipped_packets_total",
        kind: Kind::Counter,
        help: "Sequence numbers that were skipped at the start of an epoch; not included in daq_source_expected_packets_total.",
        meaning: "If an outage caused the jump in sequence numbers, this is the number of lost packets. If the sender restarted, nothing was lost.",
        cause: "An outage longer than the window, or a restarted sender.",
        remedy: "If the sender did not restart, these packets were lost: check the network.",
        read: Read::Source(|s| s.skipped),
    },
    Metric {
        name: "daq_source_last_packet_timestamp_seconds",
        kind: Kind::Gauge,
        help: "Arrival time of the last packet with data, in seconds since 1970; 0 before the first \
               packet.",
        meaning: "Sampled five times a second. Rejected packets and packets without data do not count.",
        cause: "A constant value: the sender is silent, or its packets are rejected.",
        remedy: "Alert on `time() - daq_source_last_packet_timestamp_seconds > 10`, or set \
                 `silent_after` in the source: the log then names the likely cause.",
        read: Read::LastPacket,
    },
    Metric {
        name: "daq_source_silent",
        kind: Kind::Gauge,
        help: "1 while no data packet has arrived for longer than silent_after of the source.",
        meaning: "While the value is 1, `/-/ready` answers 503. Always 0 without `silent_after`.",
        cause: "The sender has stopped, or its packets do not reach this source.",
        remedy: "See the log line that starts with the source's name.",
        read: Read::Source(|s| s.silent.into()),
    },
    Metric {
        name: "daq_path_fallback_total",
        kind: Kind::Counter,
        help: "Number of times that a DMA engine switched from direct writes to the path through \
               host memory.",
        meaning: "The device wrote to a wrong address, or could not access the memory of the ring. \
                  The frames now go through host memory.",
        cause: "Peer-to-peer writes between two PCIe slots of this machine do not arrive.",
        remedy: "`daq topo` names the slots. Move the card, or set path = \"staged\".",
        read: Read::Engine(|e| e.fallbacks),
    },
    Metric {
        name: "daq_path_proof",
        kind: Kind::Gauge,
        help: "Whether the data path of a DMA engine was verified: 0 not yet, 1 verified, 2 failed.",
        meaning: "The first transfer is compared with a pattern that was written to its slot before.",
        cause: "Value 0: no transfer yet. Value 2: the engine reported a transfer whose data did \
                not arrive.",
        remedy: "Value 0: check whether the FPGA design sends data. Value 2: run `dmesg | grep -iE \
                 'dmar|iommu|aer'` and look for IOMMU or PCIe errors.",
        read: Read::Engine(|e| e.proof as u64),
    },
    Metric {
        name: "daq_engine_restarts_total",
        kind: Kind::Counter,
        help: "Number of times that a DMA engine was restarted after a fault.",
        meaning: "Each restart interrupts the stream.",
        cause: "Faults on the bus or in the FPGA design.",
        remedy: "daq_engine_faults_total names the faults.",
        read: Read::Engine(|e| e.restarts),
    },
    Metric {
        name: "daq_engine_quiesce_timeouts_total",
        kind: Kind::Counter,
        help: "Number of times that a DMA engine did not stop in time (quiesce timeout).",
        meaning: "Bus mastering was disabled and the device was reset before its memory was freed.",
        cause: "The FPGA design hangs.",
        remedy: "Check whether the FPGA design ends its streams and has a running clock.",
        read: Read::Engine(|e| e.quiesce_timeouts),
    },
    Metric {
        name: "daq_source_counts_total",
        kind: Kind::Counter,
        help: "Counters of a source that are not part of its ledger, by name.",
        meaning: "See the documentation page of the source's driver. The source `hsb` counts \
                  frames whose metadata arrived, frames that the sensor skipped or ended early, \
                  and requests that the device refused or did not answer.",
        cause: "See the documentation page of the source's driver.",
        remedy: NOTHING,
        read: Read::Counts,
    },
    Metric {
        name: "daq_engine_faults_total",
        kind: Kind::Counter,
        help: "Faults that a DMA engine reported, by name.",
        meaning: "The error bits of the engine's status register, by name.",
        cause: "The label `fault` names the cause. Read errors and unsupported requests are bus \
                faults. The reference of each source lists its faults.",
        remedy: "Bus faults: run `dmesg | grep -iE 'dmar|iommu|aer'` and look for IOMMU or PCIe \
                 errors. Other faults: check the FPGA design.",
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
        help: "Seconds since the newest frame of the ring was published; absent before the first \
               frame.",
        meaning: "Sampled five times a second, so the value is at most 0.2 s too small.",
        cause: "A growing value: the ring's source is silent, or the kernel before the ring does not \
                produce frames.",
        remedy: "Check daq_source_last_packet_timestamp_seconds of the source, and the rings before \
                 this one.",
        read: Read::FrameAge,
    },
    Metric {
        name: "daq_ring_high_water_slots",
        kind: Kind::Gauge,
        help: "Maximum number of slots in use at the same time since startup.",
        meaning: "The largest part of the ring that the run has needed. If the value equals the \
                  capacity, the ring was full at least once, or a reader without guarantee lagged \
                  by the whole ring.",
        cause: "A reader paused because of a slow disk, a busy core or a long integration.",
        remedy: "Increase `slots` if the value comes near the capacity. Decrease `slots` if the \
                 value always stays far below the capacity.",
        read: Read::Ring(|r| r.high_water),
    },
    Metric {
        name: "daq_ring_produced_frames_total",
        kind: Kind::Counter,
        help: "Frames that the producer offered to the ring.",
        meaning: "Always the sum of published frames and frames refused because the ring was full.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Ring(|r| r.produced),
    },
    Metric {
        name: "daq_ring_published_frames_total",
        kind: Kind::Counter,
        help: "Frames published to the readers.",
        meaning: "The rate of this metric is the frame rate of the ring.",
        cause: "A rate of 0: the source or kernel that fills the ring has no data, or a reader \
                blocks the ring.",
        remedy: "Check the producer's ledger and daq_ring_full_frames_total.",
        read: Read::Ring(|r| r.published),
    },
    Metric {
        name: "daq_ring_full_frames_total",
        kind: Kind::Counter,
        help: "Frames refused because no slot was free.",
        meaning: "These frames are lost, because a reader with `guarantee = true` blocked the ring \
                  and the producer cannot wait.",
        cause: "The reader named by daq_reader_blocked_frames_total is slower than the source on \
                average, or paused for longer than the ring can buffer. If `copy to RING` blocks \
                RING@host, a reader of RING with `guarantee = true` is too slow, or the copies to \
                the GPU are too slow.",
        remedy: "If the reader is too slow on average: give the reader its own core, a faster \
                 disk, or less work. If the reader pauses: increase `slots`. If the reader may \
                 lose frames: set `guarantee = false`. If the full ring is RING@host (the host \
                 ring that daq adds in front of RING): apply these remedies to the reader of RING \
                 whose daq_reader_pending_frames is near the capacity of RING. If there is no such \
                 reader, the copies are too slow: see daq_copy_frames_total.",
        read: Read::Ring(|r| r.ring_full),
    },
    Metric {
        name: "daq_ring_mapping_info",
        kind: Kind::Gauge,
        help: "Always 1; exported for GPU rings that the CPU can store to. The label `backend` is \
               the mapping backend.",
        meaning: "The CPU stores frames to such a ring if CPU stores are faster than the copy \
                  engine; daq_copy_stored_frames_total counts these frames.",
        cause: "This metric is absent for a GPU ring in two cases: its slots are larger than the \
                default CPU-store threshold (the copy engine is faster), or the CPU cannot store \
                to that GPU.",
        remedy: "`daq plan` prints the reason; `daq doctor` prints how to enable CPU stores to GPU \
                 memory.",
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
        help: "Frames that the reader has finished.",
        meaning: "The rate of this metric is the frame rate of the reader.",
        cause: "A rate below that of daq_reader_published_frames_total: the reader falls behind.",
        remedy: "Check daq_reader_pending_frames, and the processor time of its thread.",
        read: Read::Reader(|r| r.read),
    },
    Metric {
        name: "daq_reader_overrun_frames_total",
        kind: Kind::Counter,
        help: "Frames overwritten before the reader read them.",
        meaning: "Loss of this reader only, allowed by `guarantee = false`.",
        cause: "The reader is slower than the source.",
        remedy: "See daq_ring_full_frames_total; or set `guarantee = true` if the source should \
                 wait for this reader.",
        read: Read::Reader(|r| r.overrun),
    },
    Metric {
        name: "daq_reader_discarded_frames_total",
        kind: Kind::Counter,
        help: "Frames discarded by the sink's overflow policy, or because they changed while the \
               reader read them.",
        meaning: "Frames that were read but not used.",
        cause: "The disk was full and the sink's overflow policy discards frames, or a \
                free-running producer overwrote the frame.",
        remedy: "Disk full: free disk space. Overwritten frames: increase `slots`.",
        read: Read::Reader(|r| r.discarded),
    },
    Metric {
        name: "daq_reader_dropped_incomplete_frames_total",
        kind: Kind::Counter,
        help: "Frames with missing packets that the reader skipped.",
        meaning: "Caused by `incomplete = \"drop\"` in the reader's section. Other readers of the \
                  ring get these frames.",
        cause: "Packets were lost, or the stream began or ended inside a frame.",
        remedy: "See daq_source_lost_packets_total.",
        read: Read::Reader(|r| r.dropped_incomplete),
    },
    Metric {
        name: "daq_reader_pending_frames",
        kind: Kind::Gauge,
        help: "Lag of the reader: frames that the reader is reading or has not read yet.",
        meaning: "Near 0: the reader keeps up. Near daq_ring_capacity_slots: the reader is about to \
                  lose frames or to block the producer.",
        cause: "The reader pauses, or is too slow.",
        remedy: "See daq_ring_full_frames_total.",
        read: Read::Reader(|r| r.pending),
    },
    Metric {
        name: "daq_reader_blocked_frames_total",
        kind: Kind::Counter,
        help: "Frames that the producer refused because this reader blocked the ring.",
        meaning: "The label `reader` names the reader that blocks the ring. The refused frames are \
                  also counted in daq_ring_full_frames_total.",
        cause: "This reader is too slow. `copy to RING`: this copy waits for a slot of RING that a \
                reader of RING blocks, or the copies to the GPU are too slow.",
        remedy: "Apply the remedies of daq_ring_full_frames_total to this reader. For `copy to \
                 RING`, check the readers of RING.",
        read: Read::Reader(|r| r.blocked),
    },
    Metric {
        name: "daq_copy_started_frames_total",
        kind: Kind::Counter,
        help: "Frames whose copy between host memory and a GPU was started.",
        meaning: "Always the sum of copied, failed and pending.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Copy(|c| c.started as f64),
    },
    Metric {
        name: "daq_copy_frames_total",
        kind: Kind::Counter,
        help: "Frames copied and published in the ring named by `to`.",
        meaning: "The rate of this metric is the frame rate of the ring named by `to`.",
        cause: "A rate below that of daq_ring_published_frames_total of the ring named by `from`: the \
                copies fall behind.",
        remedy: "Compare daq_copy_bytes_total divided by daq_copy_busy_seconds_total with the result \
                 of `daq tune`. If they are equal, the bus is saturated. If the copies are idle, the \
                 ring named by `to` is full: check daq_reader_pending_frames of its readers.",
        read: Read::Copy(|c| c.frames as f64),
    },
    Metric {
        name: "daq_copy_failed_frames_total",
        kind: Kind::Counter,
        help: "Frames lost because the device failed during a copy.",
        meaning: "These frames are not in the target ring. The pipeline ends after the first \
                  failure.",
        cause: "The GPU fell off the bus, had a memory error, or was reset.",
        remedy: "The log names the error. Search `dmesg` for `Xid`, and run `daq doctor`.",
        read: Read::Copy(|c| c.failed as f64),
    },
    Metric {
        name: "daq_copy_stored_frames_total",
        kind: Kind::Counter,
        help: "Copied frames that the CPU stored; the GPU's copy engine copied the others.",
        meaning: "These frames are also in daq_copy_frames_total. The CPU stores all frames if a \
                  persistent kernel is the only reader of the ring; otherwise it stores only small bursts.",
        cause: "Value 0: no backend can map the ring (daq_ring_mapping_info), or bursts are larger \
                than the CPU-store threshold.",
        remedy: "`daq plan` prints the method of each copy and the reason.",
        read: Read::Copy(|c| c.stored as f64),
    },
    Metric {
        name: "daq_copy_pending_frames",
        kind: Kind::Gauge,
        help: "Frames whose copy is in progress.",
        meaning: "At most the number of frames in the copies that daq_copy_in_flight counts.",
        cause: "A constant value while daq_copy_frames_total does not grow: the GPU or its driver \
                hangs.",
        remedy: "Check `nvidia-smi`, `dmesg` and `/-/healthy`.",
        read: Read::Copy(|c| c.pending as f64),
    },
    Metric {
        name: "daq_copies_total",
        kind: Kind::Counter,
        help: "Completed copies. Each copy contains all frames that were ready, up to a limit.",
        meaning: "daq_copy_frames_total divided by this metric is the number of frames per copy.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Copy(|c| c.copies as f64),
    },
    Metric {
        name: "daq_copy_bytes_total",
        kind: Kind::Counter,
        help: "Bytes copied, without the bytes of failed copies.",
        meaning: "The rate of this metric is the throughput of the copy. This rate divided by the \
                  rate of daq_copy_busy_seconds_total is the bandwidth while copies are in \
                  progress.",
        cause: "A bandwidth far below the result of `daq tune`: copies too small to saturate the \
                bus, a narrow or slow PCIe link, or other traffic on the link.",
        remedy: "Check daq_copy_size_bytes: if most copies are small, use larger slots. `daq doctor` \
                 prints the maximum and the current speed of the link.",
        read: Read::Copy(|c| c.bytes as f64),
    },
    Metric {
        name: "daq_copy_in_flight",
        kind: Kind::Gauge,
        help: "Copies in progress (queue depth).",
        meaning: "Value 0: no frame waits for a copy. The maximum is `depth` of the section \
                  [staging], or the value from `daq tune`; all copies of a GPU in one direction \
                  share it. At the maximum, the bus limits the rate.",
        cause: "Data arrive faster than they are copied.",
        remedy: "See daq_copy_frames_total.",
        read: Read::Copy(|c| c.in_flight as f64),
    },
    Metric {
        name: "daq_copy_busy_seconds_total",
        kind: Kind::Counter,
        help: "Seconds with at least one copy in progress.",
        meaning: "The rate of this metric is the share of time with a copy in progress. Near 1, the \
                  bus is always in use.",
        cause: "Near 1: the bus is saturated, or the copies are small and latency dominates.",
        remedy: "Check daq_copy_size_bytes. Small copies: use larger slots. Large copies: reduce the \
                 bytes per sample, or use another GPU for some of the sources.",
        read: Read::Copy(|c| seconds(c.busy_ns)),
    },
    Metric {
        name: "daq_copy_size_bytes",
        kind: Kind::Histogram,
        help: "Copies by size in bytes.",
        meaning: "The sum equals daq_copy_bytes_total, the count equals daq_copies_total. The \
                  size of a copy grows with the load, up to the chunk size that `daq tune` measures.",
        cause: "Small copies: low load, or the ring named by `to` is nearly full, so that few frames \
                find a slot.",
        remedy: "At low load, no action is needed. Otherwise increase `slots` in the ring named by \
                 `to`, and check daq_reader_pending_frames of its readers.",
        read: Read::CopySizes,
    },
    Metric {
        name: "daq_kernel_input_frames_total",
        kind: Kind::Counter,
        help: "Frames that the kernel has read from its input ring.",
        meaning: "Always the sum of consumed, accumulating, failed and pending.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.input),
    },
    Metric {
        name: "daq_kernel_consumed_frames_total",
        kind: Kind::Counter,
        help: "Frames whose content is in the kernel's output.",
        meaning: "Frames that the kernel has finished.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.consumed),
    },
    Metric {
        name: "daq_kernel_accumulating_frames",
        kind: Kind::Gauge,
        help: "Frames in an integration that has not ended.",
        meaning: "Between 0 and the length of an integration.",
        cause: "An integration in progress.",
        remedy: NOTHING,
        read: Read::Kernel(|k| k.accumulating),
    },
    Metric {
        name: "daq_kernel_failed_frames_total",
        kind: Kind::Counter,
        help: "Frames that the kernel could not process.",
        meaning: "These frames have no output.",
        cause: "A frame of a different length than planned, or too incomplete to use.",
        remedy: "The log names the first such frame and the reason.",
        read: Read::Kernel(|k| k.failed),
    },
    Metric {
        name: "daq_kernel_pending_frames",
        kind: Kind::Gauge,
        help: "Frames that the kernel is processing.",
        meaning: "At most the number of frames in one burst.",
        cause: "A constant value while daq_kernel_input_frames_total does not grow: the kernel \
                hangs, or its output ring is full.",
        remedy: "Check daq_reader_pending_frames of the output ring's readers and `/-/healthy`.",
        read: Read::Kernel(|k| k.pending),
    },
    Metric {
        name: "daq_kernel_produced_frames_total",
        kind: Kind::Counter,
        help: "Frames produced by the kernel.",
        meaning: "A kernel that integrates produces fewer frames than it reads.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Kernel(|k| k.produced),
    },
    Metric {
        name: "daq_kernel_dispatch_info",
        kind: Kind::Gauge,
        help: "Always 1; exported for kernels on a GPU. The label `dispatch` is the dispatch \
               method.",
        meaning: "`launch`: one launch per burst. `persistent`: the kernel runs permanently on the \
                  GPU and waits for its doorbell; its launches and GPU time are not measured.",
        cause: "Constant; set by the key `dispatch` of the kernel.",
        remedy: NOTHING,
        read: Read::Dispatch,
    },
    Metric {
        name: "daq_kernel_launches_total",
        kind: Kind::Counter,
        help: "Completed bursts on the GPU; only for kernels with dispatch `launch`.",
        meaning: "daq_kernel_consumed_frames_total divided by this metric is approximately the \
                  number of frames per burst.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Launched(|d| d.launches as f64),
    },
    Metric {
        name: "daq_kernel_device_seconds_total",
        kind: Kind::Counter,
        help: "GPU time of the kernel's bursts, in seconds; only for kernels with dispatch `launch`.",
        meaning: "The rate of this metric is the share of time that the GPU was busy with this \
                  kernel.",
        cause: "Near 1: the GPU is saturated by this kernel.",
        remedy: "Choose a cheaper method or a lower resolution, or distribute the kernels over more \
                 GPUs. Kernels that share a GPU slow each other down.",
        read: Read::Launched(|d| seconds(d.busy_ns)),
    },
    Metric {
        name: "daq_kernel_launch_gap_seconds_total",
        kind: Kind::Counter,
        help: "GPU idle time between bursts on the kernel's stream, in seconds; only for kernels \
               with dispatch `launch`.",
        meaning: "The sum of the rate of this metric and the rate of \
                  daq_kernel_device_seconds_total is approximately 1.",
        cause: "A rate above 0 is normal at low load. If daq_reader_pending_frames of the kernel \
                grows, the kernel's thread submits the next burst too late.",
        remedy: "Pin the thread to its own core. Use larger slots, so that a burst takes longer.",
        read: Read::Launched(|d| seconds(d.gap_ns)),
    },
    Metric {
        name: "daq_kernel_occupancy_ratio",
        kind: Kind::Gauge,
        help: "Share of a multiprocessor's threads that the kernel's blocks can occupy, from 0 to 1; \
               only for kernels on a GPU.",
        meaning: "Constant. The value depends on the code of the kernel, not on the load.",
        cause: "A low value: the kernel needs many registers or much shared memory per block.",
        remedy: "No action is needed while daq_kernel_device_seconds_total grows slowly. Many fast \
                 kernels have a low value.",
        read: Read::Device(|d| d.occupancy_ppm as f64 / 1e6),
    },
    Metric {
        name: "daq_sink_frames_total",
        kind: Kind::Counter,
        help: "Frames accepted by the sink.",
        meaning: "If the process is killed, frames that are not in a finished file are lost. \
                  daq_sink_lost_frames_total counts frames whose write failed.",
        cause: "A rate of 0 while frames wait in the sink's input ring: the disk hangs.",
        remedy: "Check daq_sink_full, and the disk with `iostat -x 1`.",
        read: Read::Sink(|s| s.frames),
    },
    Metric {
        name: "daq_sink_bytes_total",
        kind: Kind::Counter,
        help: "Payload bytes of the frames accepted by the sink.",
        meaning: "The rate of this metric is the write throughput.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Sink(|s| s.bytes),
    },
    Metric {
        name: "daq_sink_files_total",
        kind: Kind::Counter,
        help: "Completed files or stores.",
        meaning: "Each counted file or store is complete, including its metadata.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Sink(|s| s.files),
    },
    Metric {
        name: "daq_sink_full",
        kind: Kind::Gauge,
        help: "1 while the disk is full or the receiver is disconnected, else 0.",
        meaning: "The sink applies its overflow policy until it can continue.",
        cause: "The disk or the quota is full; the receiver of an `rdma` sink has stopped, or the \
                receiver's ring is full.",
        remedy: "Free disk space, or start the receiver. When the \
                 cause is removed, the sink continues without a restart.",
        read: Read::Sink(|s| u64::from(s.full)),
    },
    Metric {
        name: "daq_sink_dropped_frames_total",
        kind: Kind::Counter,
        help: "Frames that the sink refused because the disk was full or failed, or the receiver was \
               disconnected.",
        meaning: "These frames are lost. They are not in daq_sink_frames_total.",
        cause: "A full or failing disk.",
        remedy: "Free disk space. If there is space, read `dmesg` and `smartctl -a DEV`.",
        read: Read::Sink(|s| s.dropped),
    },
    Metric {
        name: "daq_sink_lost_frames_total",
        kind: Kind::Counter,
        help: "Frames that the sink accepted but could not write.",
        meaning: "These frames are lost. They are also in daq_sink_frames_total.",
        cause: "A write failed, or the disk was still full at the end of the run.",
        remedy: "Free disk space. If there is space, read `dmesg` and `smartctl -a DEV`.",
        read: Read::Sink(|s| s.lost),
    },
    Metric {
        name: "daq_sink_connections_total",
        kind: Kind::Counter,
        help: "Connections of the sink to its peer; 0 for sinks without a peer.",
        meaning: "The value is 1 in a run without interruptions. Each further connection follows \
                  an interruption.",
        cause: "The receiver restarted, or the link was down.",
        remedy: "The log names the reason for each interruption.",
        read: Read::Sink(|s| s.connections),
    },
    Metric {
        name: "daq_sink_stalls_total",
        kind: Kind::Counter,
        help: "Number of times that the sink had to wait because its peer had no free slot.",
        meaning: "A few stalls per second are harmless. During a stall, frames wait in the ring that the sink reads.",
        cause: "The receiver's readers are slower than the sender.",
        remedy: "Increase `slots` of the receiver's ring, or make its readers faster.",
        read: Read::Sink(|s| s.stalls),
    },
    Metric {
        name: "daq_ledger_violations",
        kind: Kind::Gauge,
        help: "Ledgers whose equation does not hold; always 0 unless daq has a defect.",
        meaning: "If the value is above 0, the counters cannot be trusted.",
        cause: "A defect in daq.",
        remedy: "Report the defect with the output of `/status`.",
        read: Read::Pipeline(|r| r.violations().len() as f64),
    },
    Metric {
        name: "daq_uptime_seconds",
        kind: Kind::Gauge,
        help: "Seconds since the pipeline started.",
        meaning: "Starts again at 0 after a restart.",
        cause: "A restart: by an operator, by systemd, or after a crash.",
        remedy: "`journalctl -u 'daq@*'` shows what stopped the pipeline; `last_run` of `/status` shows whether \
                 the run ended uncleanly.",
        read: Read::Pipeline(|r| r.seconds),
    },
    Metric {
        name: "daq_build_info",
        kind: Kind::Gauge,
        help: "Always 1; the label is the version.",
        meaning: "Join this metric with other metrics to see what an upgrade changed.",
        cause: "Constant.",
        remedy: NOTHING,
        read: Read::Build,
    },
    Metric {
        name: "daq_log_dropped_total",
        kind: Kind::Counter,
        help: "Log messages dropped because stderr was not read or failed.",
        meaning: "Messages that did not fit into the log queue, or whose terminal, pipe or journal \
                  was closed. Logging does not delay data.",
        cause: "A terminal stopped with Ctrl-S, a pipe that is not read, a journal that stalls, a closed ssh session.",
        remedy: "Make sure that a process reads stderr, or redirect stderr to a file or to the \
                 journal.",
        read: Read::Process(|p| p.dropped_messages),
    },
    Metric {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        help: "Processor time of all threads, user and system, in seconds.",
        meaning: "The rate of this metric is the number of cores in use.",
        cause: "Threads with busy polling use a whole core each, by design.",
        remedy: "Choose a wait policy that sleeps if cores are scarce.",
        read: Read::Process(|p| p.cpu_seconds),
    },
    Metric {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        help: "Resident memory (RAM) of the process, in bytes.",
        meaning: "After startup the value stays near the total that `daq plan` prints.",
        cause: "Steady growth is a defect in daq.",
        remedy: "Report the defect with the output of `/status`.",
        read: Read::Process(|p| p.resident_bytes),
    },
    Metric {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        help: "Address space, in bytes.",
        meaning: "Most of the address space consists of mappings that use no RAM.",
        cause: NORMAL,
        remedy: NOTHING,
        read: Read::Process(|p| p.virtual_bytes),
    },
    Metric {
        name: "daq_process_locked_memory_bytes",
        kind: Kind::Gauge,
        help: "Memory locked in RAM, in bytes.",
        meaning: "Memory of rings that cannot be swapped out or moved.",
        cause: "A value below the size of all rings in `daq plan`: the memlock limit is too low.",
        remedy: "`daq doctor` prints the command that raises the memlock limit.",
        read: Read::Process(|p| p.locked_bytes),
    },
    Metric {
        name: "process_threads",
        kind: Kind::Gauge,
        help: "Threads of the process.",
        meaning: "The threads that `daq plan` lists, plus a few for HTTP and signals.",
        cause: "Constant after startup.",
        remedy: NOTHING,
        read: Read::Process(|p| p.threads),
    },
    Metric {
        name: "process_open_fds",
        kind: Kind::Gauge,
        help: "Open file descriptors.",
        meaning: "Sockets, files that sinks write, and HTTP connections.",
        cause: "Steady growth is a defect in daq.",
        remedy: "Report the defect with the output of `ls -l /proc/$(pidof daq)/fd`.",
        read: Read::Process(|p| p.open_fds),
    },
    Metric {
        name: "process_max_fds",
        kind: Kind::Gauge,
        help: "Maximum number of open file descriptors.",
        meaning: "The soft limit.",
        cause: "Constant.",
        remedy: "To raise the limit, set LimitNOFILE= in the unit, or run `ulimit -n` in a shell.",
        read: Read::Process(|p| p.max_fds),
    },
    Metric {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        help: "Time at which the process set up its metrics, in seconds since 1970.",
        meaning: "The value changes at each restart.",
        cause: "See daq_uptime_seconds.",
        remedy: "See daq_uptime_seconds.",
        read: Read::Start,
    },
];

#[cfg(test)]
mod tests;
