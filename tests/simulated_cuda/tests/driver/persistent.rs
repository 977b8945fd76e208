//! Tests of persistent kernels.

use crate::sys::{self, allocate, context, event, register, stream};
use crate::{cu, fails, ok, passes, run};
use cudarc::driver::sys::{CUevent, CUfunction, CUstream};
use daq_testkit::{assert_contains, this_test};
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
    /// Recorded behind the kernel.
    end: CUevent,
    function: CUfunction,
    grid: [u32; 2],
    posted: u64,
    bell: u64,
}

impl Resident {
    fn new(groups: u32, blocks: u32) -> Self {
        context(0);
        let (mut module, mut function, none) = (null_mut(), null_mut(), null_mut());
        let text = c".version 8.0\n.target sm_70\n.visible .entry daq_persistent() { ret; }\n";
        let (text, name) = (text.as_ptr().cast(), c"daq_persistent".as_ptr());
        ok!(cuModuleLoadDataEx(
            &raw mut module,
            text,
            0,
            none,
            null_mut()
        ));
        ok!(cuModuleGetFunction(&raw mut function, module, name));
        let bytes = usize::try_from(SLOTS * STRIDE).unwrap();
        let (input, output) = (allocate(bytes), vec![0xee_u8; bytes]);
        let shared = std::ptr::from_ref(&SHARED).cast_mut().cast();
        ok!(cuMemHostRegister_v2(shared, 8192, 0));
        register(&output);
        Self {
            input,
            output,
            stream: stream(),
            end: event(2),
            function,
            grid: [blocks, groups],
            posted: 0,
            bell: 0,
        }
    }

    fn launch(&self, values: [u64; 18]) -> i32 {
        sys::launch(self.function, self.grid, [32, 1], 0, self.stream, &values)
    }

    /// Panics unless the kernel runs.
    fn assert_runs(&self) {
        fails!(cuEventQuery(self.end) => 600, "the kernel must continue to run");
    }

    fn values(&self) -> [u64; 18] {
        let (bell, credits, records) = (address(0), address(CREDITS), address(RECORDS));
        let output = self.output.as_ptr() as u64;
        // No device rings a doorbell.
        let shared = [bell, 0, credits];
        let rings = [self.input, STRIDE, SLOTS, output, STRIDE, SLOTS];
        let frames = [IN_BYTES, 1, 75, OUT_BYTES, 1, 100];
        let records = [records, RECORD_WORDS, SLOTS];
        let values = [&shared[..], &rings, &records, &frames].concat();
        values.try_into().unwrap()
    }

    fn start(self) -> Self {
        assert_eq!(self.launch(self.values()), 0);
        ok!(cuEventRecord(self.end, self.stream));
        self
    }

    /// Fills a slot of the input with `byte`.
    fn fill(&self, slot: u64, byte: u8) {
        let at = self.input + slot % SLOTS * STRIDE;
        let bytes = usize::try_from(STRIDE).unwrap();
        ok!(cuMemsetD8Async(at, byte, bytes, null_mut()));
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
            self.assert_runs();
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
    let mut kernel = Resident::new(groups, blocks).start();
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
            let output = kernel.slot(frame + shifts[1]);
            assert_eq!(output, given(byte(frame)), "{frame}");
        }
        frames += burst;
    }
    kernel.assert_runs();
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
    passes!("", || goes_round(1, 1), {
        "blocked": 0, "persistent": 48, "launches": 1, "leaks": {"memory": 0}
    });
}

#[test]
fn persistent_kernel_distributes_frames_among_block_groups() {
    passes!("", || goes_round(3, 5), {"persistent": 48});
}

#[test]
fn device_wide_call_waits_for_persistent_kernel() {
    let ended = run(this_test!(), "", "", || {
        let kernel = Resident::new(1, 1).start();
        let input = kernel.input;
        let freeing = std::thread::spawn(move || {
            context(0);
            ok!(cuMemFree_v2(input));
        });
        // Queries must not block.
        for _ in 0..100 {
            kernel.assert_runs();
            assert!(!freeing.is_finished(), "the memory is in use");
            std::thread::yield_now();
        }
        kernel.stop();
        freeing.join().unwrap();
        ok!(cuStreamSynchronize(kernel.stream));
        ok!(cuCtxSynchronize());
    });
    if let Some(ended) = ended {
        let stderr = ended.stderr();
        assert!(ended.output.status.success(), "{stderr}");
        // The kernel may have ended before the call, which then does not wait.
        let waits = stderr.matches("cuMemFree_v2 waits for a persistent kernel");
        assert_eq!(ended.report["blocked"], waits.count());
    }
}

#[test]
fn call_that_would_deadlock_aborts_process() {
    type Call = fn(&Resident) -> i32;
    let freeing: Call = |_| cu!(cuMemHostUnregister(address(0) as *mut c_void));
    let synchronising: Call = |kernel| cu!(cuStreamSynchronize(kernel.stream));
    for (blocked, call, expected) in [
        (1, freeing, "cuMemHostUnregister has waited 0 s"),
        (0, synchronising, "waiting for a stream has waited 0 s"),
    ] {
        if let Some(ended) = run(this_test!(), expected, "timeout=0", || {
            call(&Resident::new(1, 1).start());
        }) {
            assert!(!ended.output.status.success(), "{}", ended.stderr());
            assert_contains!(ended.stderr() => expected);
            assert_eq!(ended.report["blocked"], blocked);
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
            kernel.assert_runs();
            std::thread::yield_now();
        }
        kernel.stop();
        assert!(done().contains(&0), "{:?}", done());
        kernel.assert_runs();
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

#[test]
fn persistent_kernel_invalid_address_breaks_context() {
    // A misaligned doorbell, and addresses outside all memory.
    let outside = [0, 1, 2, 3, 6, 9].map(|which| (which, 1 << 30, 700));
    for (which, added, code) in [&outside[..], &[(0, 4, 716)]].concat() {
        let case = format!("{which} {code}");
        if let Some(ended) = run(this_test!(), &case, "", || {
            let mut kernel = Resident::new(1, 1);
            let mut values = kernel.values();
            values[which] += added;
            assert_eq!(kernel.launch(values), 0);
            kernel.post(1);
            fails!(cuStreamSynchronize(kernel.stream) => code);
        }) {
            assert!(ended.output.status.success(), "{case}: {}", ended.stderr());
        }
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
    for (message, mistake) in MISTAKES {
        if let Some(ended) = run(this_test!(), message, "hang=persistent@1", || {
            let mut kernel = Resident::new(2, 1);
            let mut values = kernel.values();
            if message == "cannot hold frames" {
                values[12] = STRIDE + 1;
            }
            assert_eq!(kernel.launch(values), 0);
            mistake(&mut kernel);
            fails!(cuStreamSynchronize(kernel.stream) => 710);
        }) {
            assert!(ended.output.status.success(), "{}", ended.stderr());
            assert_contains!(ended.stderr() => message);
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
