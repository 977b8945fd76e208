//! Tests of persistent kernels.

use crate::sys::context;
use crate::{alone, cu, fails, ok, passes};
use cudarc::driver::sys::{CUfunction, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

const STOP: u64 = 1 << 63;
const GENERATION: u64 = 1 << 48;
const SLOTS: u64 = 8;
const STRIDE: u64 = 512;
const IN_BYTES: u64 = 300;
const OUT_BYTES: u64 = 400;
const RECORD_WORDS: u64 = 6;

/// Pages shared by host and device: the doorbell, the shifts, credits and records.
#[repr(align(4096))]
struct Shared([AtomicU64; 1024]);

const CREDITS: usize = 64;
const RECORDS: usize = 512;

static SHARED: Shared = Shared([const { AtomicU64::new(0) }; 1024]);

fn word(at: usize) -> &'static AtomicU64 {
    &SHARED.0[at]
}

fn address(at: usize) -> u64 {
    std::ptr::from_ref(word(at)) as u64
}

/// A persistent kernel between a ring in device memory and one in host memory.
struct Resident {
    input: u64,
    output: Vec<u8>,
    stream: CUstream,
    function: CUfunction,
    grid: [u32; 2],
    posted: u64,
    bell: u64,
}

impl Resident {
    fn new(groups: u32, blocks: u32) -> Self {
        context(0);
        let (mut module, mut function) = (null_mut(), null_mut());
        let text = c".version 8.0\n.target sm_70\n.visible .entry daq_persistent() { ret; }\n";
        ok!(cuModuleLoadData(&raw mut module, text.as_ptr().cast()));
        ok!(cuModuleGetFunction(
            &raw mut function,
            module,
            c"daq_persistent".as_ptr()
        ));
        let (mut input, mut stream) = (0, null_mut());
        ok!(cuMemAlloc_v2(
            &raw mut input,
            usize::try_from(SLOTS * STRIDE).unwrap()
        ));
        ok!(cuStreamCreate(&raw mut stream, 1));
        let shared = std::ptr::from_ref(&SHARED).cast_mut().cast();
        ok!(cuMemHostRegister_v2(shared, 8192, 0));
        let output = vec![0xee_u8; usize::try_from(SLOTS * STRIDE).unwrap()];
        ok!(cuMemHostRegister_v2(
            output.as_ptr().cast_mut().cast(),
            output.len(),
            0
        ));
        Self {
            input,
            output,
            stream,
            function,
            grid: [blocks, groups],
            posted: 0,
            bell: 0,
        }
    }

    fn launch(&self, mut values: [u64; 18]) -> i32 {
        let mut parameters = values.each_mut().map(|v| (&raw mut *v).cast::<c_void>());
        let [blocks, groups] = self.grid;
        cu!(cuLaunchKernel(
            self.function,
            blocks,
            groups,
            1,
            32,
            1,
            1,
            0,
            self.stream,
            parameters.as_mut_ptr(),
            null_mut()
        ))
    }

    fn values(&self) -> [u64; 18] {
        let (bell, credits, records) = (address(0), address(CREDITS), address(RECORDS));
        let output = self.output.as_ptr() as u64;
        [
            bell,
            // No device rings a doorbell.
            0,
            credits,
            self.input,
            STRIDE,
            SLOTS,
            output,
            STRIDE,
            SLOTS,
            records,
            RECORD_WORDS,
            SLOTS,
            IN_BYTES,
            1,
            75,
            OUT_BYTES,
            1,
            100,
        ]
    }

    fn start(self) -> Self {
        assert_eq!(self.launch(self.values()), 0);
        self
    }

    /// Fills a slot of the input with `byte`.
    fn fill(&self, slot: u64, byte: u8) {
        let at = self.input + slot % SLOTS * STRIDE;
        ok!(cuMemsetD8Async(
            at,
            byte,
            usize::try_from(STRIDE).unwrap(),
            null_mut()
        ));
        ok!(cuStreamSynchronize(null_mut()));
    }

    fn post(&mut self, frames: u64) {
        self.posted += frames;
        self.ring();
    }

    fn ring(&mut self) {
        self.bell = self.bell & !(GENERATION - 1) | self.posted;
        word(0).store(self.bell, Ordering::Release);
    }

    /// Changes the offset of slots relative to frames.
    fn shift(&mut self, input: u64, output: u64) {
        word(8).store(input, Ordering::Relaxed);
        word(9).store(output, Ordering::Relaxed);
        self.bell += GENERATION;
    }

    fn stop(&self) {
        word(0).store(self.bell | STOP, Ordering::Release);
    }

    fn has(&self, frames: u64) -> bool {
        let [blocks, groups] = self.grid.map(u64::from);
        (0..groups * blocks).all(|n| {
            let due = (frames + groups - 1 - n / blocks) / groups;
            word(CREDITS + usize::try_from(n).unwrap()).load(Ordering::Acquire) >= due
        })
    }

    /// Waits until all submitted frames are complete.
    fn wait(&self) {
        while !self.has(self.posted) {
            ok!(cuStreamQuery(null_mut()));
            std::thread::yield_now();
        }
    }

    fn slot(&self, slot: u64) -> Vec<u8> {
        let at = self
            .output
            .as_ptr()
            .wrapping_add(usize::try_from(slot % SLOTS * STRIDE).unwrap());
        // SAFETY: the slot is inside the output, and the kernel has reported that it no longer writes the slot.
        (0..usize::try_from(STRIDE).unwrap())
            .map(|n| unsafe { at.add(n).read_volatile() })
            .collect()
    }
}

/// Returns the expected contents of an output slot after an input frame filled with `byte`.
fn given(byte: u8) -> Vec<u8> {
    let part = |byte: u8, bytes: u64| vec![byte; usize::try_from(bytes).unwrap()];
    [
        part(byte, IN_BYTES),
        part(0, OUT_BYTES - IN_BYTES),
        part(0xee, STRIDE - OUT_BYTES),
    ]
    .concat()
}

fn goes_round(groups: u32, blocks: u32) {
    let mut kernel = Resident::new(groups, blocks);
    kernel = kernel.start();
    let (mut shifts, mut frames) = ([0, 0], 0);
    for burst in [1, 2, 8, 3, 8, 8, 1, 5, 8] {
        if burst == 3 {
            shifts = [3, 5];
            kernel.shift(3, 5);
        }
        let byte = |frame: u64| u8::try_from(frame + 1).unwrap();
        for frame in frames..frames + burst {
            kernel.fill(frame + shifts[0], byte(frame));
        }
        kernel.post(burst);
        kernel.wait();
        for frame in frames..frames + burst {
            assert_eq!(
                kernel.slot(frame + shifts[1]),
                given(byte(frame)),
                "{frame}"
            );
        }
        frames += burst;
    }
    fails!(cuStreamQuery(kernel.stream) => 600, "the kernel must continue to run");
    // Frames submitted with the stop are processed.
    kernel.posted += 4;
    kernel.bell += 4;
    kernel.stop();
    ok!(cuStreamSynchronize(kernel.stream));
    assert!(kernel.has(kernel.posted));
    ok!(cuMemFree_v2(kernel.input));
}

#[test]
fn persistent_kernel_processes_submitted_frames() {
    let report = passes!("", || {
        goes_round(1, 1);
    });
    if let Some(report) = report {
        assert_eq!(report["blocked"], 0);
        assert_eq!(report["persistent"], 48);
        assert_eq!(report["launches"], 1);
        assert_eq!(report["leaks"]["memory"], 0);
    }
}

#[test]
fn persistent_kernel_distributes_frames_among_block_groups() {
    let report = passes!("", || goes_round(3, 5));
    if let Some(report) = report {
        assert_eq!(report["persistent"], 48);
    }
}

#[test]
fn device_wide_call_waits_for_persistent_kernel() {
    let ended = alone!("", || {
        let kernel = Resident::new(1, 1).start();
        let input = kernel.input;
        let freeing = std::thread::spawn(move || {
            context(0);
            ok!(cuMemFree_v2(input));
        });
        // Queries must not block.
        for _ in 0..100 {
            fails!(cuStreamQuery(kernel.stream) => 600);
            assert!(!freeing.is_finished(), "the memory is in use");
            std::thread::yield_now();
        }
        kernel.stop();
        freeing.join().unwrap();
        ok!(cuStreamQuery(kernel.stream));
        ok!(cuCtxSynchronize());
    });
    if let Some(ended) = ended {
        let stderr = String::from_utf8_lossy(&ended.output.stderr).into_owned();
        assert!(ended.output.status.success(), "{stderr}");
        // The kernel may have ended before the call, which then does not wait.
        let blocked = stderr
            .matches("cuMemFree_v2 waits for a persistent kernel")
            .count();
        assert_eq!(ended.report()["blocked"], blocked);
    }
}

#[test]
fn call_that_would_deadlock_aborts_process() {
    for call in ["freeing", "synchronising"] {
        let options = format!("timeout=0,latency={}", call.len());
        let given = std::env::var("DAQ_SIMULATED_CUDA").unwrap_or_default();
        if given != options && !given.is_empty() {
            continue;
        }
        let ended = alone!(&options, || {
            let kernel = Resident::new(1, 1).start();
            if call == "freeing" {
                cu!(cuMemHostUnregister(address(0) as *mut c_void));
            } else {
                cu!(cuStreamSynchronize(kernel.stream));
            }
        });
        if let Some(ended) = ended {
            let stderr = String::from_utf8_lossy(&ended.output.stderr).into_owned();
            assert!(!ended.output.status.success(), "{stderr}");
            let expected = if call == "freeing" {
                "cuMemHostUnregister has waited 0 s"
            } else {
                "waiting for a stream has waited 0 s"
            };
            assert!(stderr.contains(expected), "{stderr}");
            let blocked = u64::from(call == "freeing");
            assert_eq!(ended.report()["blocked"], blocked);
        }
    }
}

#[test]
fn frame_that_hangs_blocks_only_its_block_group() {
    passes!("hang=persistent@1", || {
        let mut kernel = Resident::new(2, 1).start();
        kernel.post(8);
        // One of the groups continues.
        let done = || [0, 1].map(|group| word(CREDITS + group).load(Ordering::Acquire));
        while !done().contains(&4) {
            ok!(cuStreamQuery(null_mut()));
            std::thread::yield_now();
        }
        kernel.stop();
        assert!(done().contains(&0), "{:?}", done());
        fails!(cuStreamQuery(kernel.stream) => 600);
    });
}

#[test]
fn persistent_kernel_failure_breaks_context() {
    passes!("fail-async=PERSISTENT@3:719", || {
        let mut kernel = Resident::new(1, 2).start();
        kernel.post(8);
        fails!(cuStreamSynchronize(kernel.stream) => 719);
        assert!(!kernel.has(3));
        fails!(cuMemFree_v2(kernel.input) => 719);
    });
}

/// Checks that the kernel ends with the error `code` after a protocol violation.
fn ends_with(code: i32, kernel: &Resident) {
    fails!(cuStreamSynchronize(kernel.stream) => code);
}

#[test]
fn persistent_kernel_invalid_address_breaks_context() {
    for (which, code) in [
        (0, 700),
        (1, 700),
        (2, 700),
        (3, 700),
        (6, 700),
        (9, 700),
        (0, 716),
    ] {
        let options = format!("latency={}", 10 * which + u64::try_from(code).unwrap());
        let given = std::env::var("DAQ_SIMULATED_CUDA").unwrap_or_default();
        if given != options && !given.is_empty() {
            continue;
        }
        passes!(&options, || {
            let mut kernel = Resident::new(1, 1);
            let mut values = kernel.values();
            values[usize::try_from(which).unwrap()] += if code == 716 { 4 } else { 1 << 30 };
            assert_eq!(kernel.launch(values), 0);
            kernel.post(1);
            ends_with(code, &kernel);
        });
    }
}

/// Waits until the kernel, with one group blocked by the first frame, has seen all submitted frames.
fn seen() {
    while [0, 1].map(|group| word(CREDITS + group).load(Ordering::Acquire)) == [0, 0] {
        std::thread::yield_now();
    }
}

#[test]
fn protocol_violation_undetected_by_gpu_is_reported() {
    type Mistake = (&'static str, fn(&mut Resident));
    const MISTAKES: [Mistake; 5] = [
        ("frames in use are overwritten", |kernel| kernel.post(9)),
        ("the doorbell was rung after the stop", |kernel| {
            (kernel.posted, kernel.bell) = (2, 2);
            kernel.stop();
            seen();
            kernel.post(1);
        }),
        ("submitted frames decreased", |kernel| {
            kernel.post(2);
            seen();
            kernel.posted = 1;
            kernel.ring();
        }),
        ("the shifts change", |kernel| {
            kernel.post(2);
            seen();
            kernel.shift(1, 1);
            kernel.post(1);
        }),
        ("cannot hold frames", |_| {}),
    ];
    for (n, (stderr, mistake)) in MISTAKES.iter().enumerate() {
        let options = format!("latency={n},hang=persistent@1");
        let given = std::env::var("DAQ_SIMULATED_CUDA").unwrap_or_default();
        if given != options && !given.is_empty() {
            continue;
        }
        let ended = alone!(&options, || {
            let mut kernel = Resident::new(2, 1);
            let mut values = kernel.values();
            if *stderr == "cannot hold frames" {
                values[12] = STRIDE + 1;
            }
            assert_eq!(kernel.launch(values), 0);
            mistake(&mut kernel);
            ends_with(710, &kernel);
        });
        if let Some(ended) = ended {
            let said = String::from_utf8_lossy(&ended.output.stderr);
            assert!(ended.output.status.success(), "{said}");
            assert!(said.contains(stderr), "{said}");
        }
    }
}

#[test]
fn cooperative_launch_beyond_occupancy_is_rejected() {
    passes!("", || {
        // 132 multiprocessors run 32 blocks each.
        let kernel = Resident::new(1, 132 * 32 + 1);
        assert_eq!(kernel.launch(kernel.values()), 720);
        ok!(cuCtxSynchronize());
    });
}
