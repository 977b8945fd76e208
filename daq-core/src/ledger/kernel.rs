//! The ledger of a kernel.

use super::Counter;
use super::metric::{Sampled, seconds};
use super::stored::{Balanced, Stored};
use crate::gpu::Dispatch;

ledger! {
    /// The counters of a kernel.
    ledger KernelLedger {
        /// The counters of a kernel on a GPU.
        device: DeviceLedger,
    }
    /// A snapshot of a kernel's ledger.
    report KernelReport ["kernel"] {
        /// Frames that the kernel has read from its input ring.
        #[serde(rename = "in")]
        input: u64 = Counter, counter "daq_kernel_input_frames_total" {
            meaning: "Always the sum of consumed, accumulating, failed, filtered and pending.",
        },
        /// Frames in an integration that has not ended.
        accumulating: u64 = Counter, gauge "daq_kernel_accumulating_frames" {
            meaning: "Between 0 and the length of an integration.",
            cause: "An integration in progress.",
        },
        /// Frames whose content is in the kernel's output.
        consumed: u64 = Counter, counter "daq_kernel_consumed_frames_total" {
            meaning: "Frames that the kernel has finished.",
        },
        /// Frames that the kernel could not process.
        failed: u64 = Counter, counter "daq_kernel_failed_frames_total" {
            meaning: "These frames have no output.",
            cause: "A frame of a different length than planned, or too incomplete to use.",
            remedy: "The log names the first such frame and the reason.",
        },
        /// Frames that the kernel does not process, because its configuration excludes them.
        filtered: u64 = Counter, counter "daq_kernel_filtered_frames_total" {
            meaning: "These frames have no output, which is intended: `every` or `drop` of a kernel `select` excludes \
                      them.",
        },
        /// Frames that the kernel is processing.
        pending: u64, gauge "daq_kernel_pending_frames" {
            meaning: "At most the number of frames in one burst.",
            cause: "A constant value while daq_kernel_input_frames_total does not grow: the kernel hangs, or its \
                    output ring is full.",
            remedy: "Check daq_reader_pending_frames of the output ring's readers and `/-/healthy`.",
        },
        /// Frames produced by the kernel.
        produced: u64 = Counter, counter "daq_kernel_produced_frames_total" {
            meaning: "A kernel that integrates produces fewer frames than it reads.",
        },
        /// GPU statistics; `None` for kernels on the CPU.
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<DeviceReport>,
    }
    equation input as "in" = consumed + accumulating + failed + filtered, pending;
}

ledger! {
    /// The counters of a kernel on a GPU.
    ledger DeviceLedger {}
    /// GPU statistics of a kernel. A persistent kernel is neither launched nor timed, so its statistics are 0.
    #[derive(Copy)]
    report DeviceReport ["kernel"] {
        /// How bursts are submitted.
        dispatch: Dispatch, gauge "daq_kernel_dispatch_info" by "dispatch" {
            help: "Always 1; exported for kernels on a GPU. The label `dispatch` is the dispatch method.",
            meaning: "`launch`: one launch per burst. `persistent`: the kernel runs permanently on the GPU and waits \
                      for its doorbell; its launches and GPU time are not measured.",
            cause: "Constant; set by the key `dispatch` of the kernel.",
        },
        /// Completed bursts on the GPU; only for kernels with dispatch `launch`.
        launches: u64 = Counter, counter "daq_kernel_launches_total" (|device, put| device.if_launched(device.launches).sample(put)) {
            meaning: "daq_kernel_consumed_frames_total divided by this metric is approximately the number of frames \
                      per burst.",
        },
        /// Time that the GPU needed for these bursts, in nanoseconds.
        busy_ns: u64 = Counter, counter "daq_kernel_device_seconds_total"
            (|device, put| device.if_launched(seconds(device.busy_ns)).sample(put)) {
            help: "GPU time of the kernel's bursts, in seconds; only for kernels with dispatch `launch`.",
            meaning: "The rate of this metric is the share of time that the GPU was busy with this kernel.",
            cause: "Near 1: the GPU is saturated by this kernel.",
            remedy: "Choose a cheaper method or a lower resolution, or distribute the kernels over more GPUs. \
                     Kernels that share a GPU slow each other down.",
        },
        /// Time that the GPU was idle on the kernel's stream between bursts, in nanoseconds.
        gap_ns: u64 = Counter, counter "daq_kernel_launch_gap_seconds_total"
            (|device, put| device.if_launched(seconds(device.gap_ns)).sample(put)) {
            help: "GPU idle time between bursts on the kernel's stream, in seconds; only for kernels with dispatch \
                   `launch`.",
            meaning: "The sum of the rate of this metric and the rate of daq_kernel_device_seconds_total is \
                      approximately 1.",
            cause: "A rate above 0 is normal at low load. If daq_reader_pending_frames of the kernel grows, the \
                    kernel's thread submits the next burst too late.",
            remedy: "Pin the thread to its own core. Use larger slots, so that a burst takes longer.",
        },
        /// The fraction of a multiprocessor's threads that the kernel's blocks can occupy, in millionths.
        occupancy_ppm: u64 = Counter, gauge "daq_kernel_occupancy_ratio"
            (|device, put| (device.occupancy_ppm as f64 / 1e6).sample(put)) {
            help: "Share of a multiprocessor's threads that the kernel's blocks can occupy, from 0 to 1; only for \
                   kernels on a GPU.",
            meaning: "Constant. The value depends on the code of the kernel, not on the load.",
            cause: "A low value: the kernel needs many registers or much shared memory per block.",
            remedy: "No action is needed while daq_kernel_device_seconds_total grows slowly. Many fast kernels have \
                     a low value.",
        },
    }
}

impl KernelReport {
    /// Reads the counters.
    pub fn of(ledger: &KernelLedger) -> Self {
        let mut report = ledger.read();
        report.settle();
        report
    }

    /// Reads the counters of a kernel on a GPU, including the GPU statistics.
    pub fn on_device(ledger: &KernelLedger, dispatch: Dispatch) -> Self {
        let device = DeviceReport {
            dispatch,
            ..ledger.device.read()
        };
        Self {
            device: Some(device),
            ..Self::of(ledger)
        }
    }
}

impl DeviceReport {
    /// Returns `value` for a kernel with dispatch `launch`; the metrics of other kernels have no value.
    fn if_launched<T>(&self, value: T) -> Option<T> {
        (self.dispatch == Dispatch::Launch).then_some(value)
    }
}
