//! A persistent user kernel: the host submits frames, and the kernel returns credits.
//!
//! ```text
//!   host:  record ─▶ fence ─▶ bell (frames submitted)         credits (frames done) ─▶ retire, publish
//!                                │                               ▲
//!   GPU:                      wait ──▶ on_frame ──▶ barrier ─────┘        by each block, for its own frames
//! ```
//! Frames are counted from the kernel's start. Frame `n` is in input slot `n + shift`, and its output is in output slot
//! `n + shift`, with one shift per ring. The shifts change only if frames are skipped, and only after all earlier
//! frames are done. Records, doorbell and shifts are in GPU memory if the CPU can store there. Credits are in host
//! memory. So neither the host nor the GPU polls over the bus.

use super::super::{defect, device as gpu};
use super::FileKernel;
use super::code::{Code, no_memory};
use super::record;
use daq_core::doorbell::{Credits, Doorbell};
use daq_core::gpu::Event;
use daq_core::gpu::Writer;
use daq_core::gpu::bar_mapping::{BarMapping, BarMappingError, Stores, Unmappable};
use daq_core::gpu::driver::{
    self, Argument, CudaError, Device, Grid, PersistentKernelGuard, StreamEvent,
};
use daq_core::kernel::{DeviceDoorbell, Kernel, KernelContext, KernelError, Stream, Submitted};
use daq_core::leak::leak;
use daq_core::ring::{Completion, Lease, Slice, SlotsMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the kernel's entry point.
const ENTRY: &str = "daq_persistent";
/// Offset of the shifts from the doorbell in bytes, as defined in daq.cuh.
const SHIFTS: usize = 64;
/// Offset of the records from the doorbell in bytes.
const RECORDS: usize = 128;
/// Alignment of records in words, so that each record starts on its own cache line.
const LINE_WORDS: usize = 8;
/// Number of low bits of the doorbell word that count frames. The bits from this one up to [`STOP`] count how often the
/// slot shifts of the rings changed.
const POSTED_BITS: u32 = 48;
/// Modulus of the count of shift changes.
const GENERATIONS: u64 = 1 << 15;
/// The bit of the doorbell word that stops the kernel.
const STOP: u64 = 1 << 63;
/// Maximum time to wait until the kernel has stopped or has finished the submitted work.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum share of a GPU that persistent kernels may occupy without a warning.
const WARN_SHARE: f64 = 0.75;

/// A persistent user kernel.
pub(super) struct PersistentKernel {
    code: Code,
    concurrent_frames: u32,
    stream: driver::Stream,
    /// Memory that the kernel reads. It contains the doorbell, the shifts and the records.
    board: Arc<BarMapping>,
    bell: Doorbell,
    credits: Arc<Credits>,
    input: Slice,
    output: Slice,
    records: Records,
    /// Doorbell that the device of the input rings after each frame that the device has written; `None` if only the
    /// host rings the doorbell.
    rung: Option<DeviceDoorbell>,
    posted: u64,
    generation: u64,
    /// Input and output slot where the kernel expects the next frame.
    next: [usize; 2],
    running: Option<Running>,
}

/// A launched persistent kernel.
struct Running {
    /// Event on the stream that occurs when the kernel has ended.
    end: Arc<StreamEvent>,
    _stay: PersistentKernelGuard,
}

/// The records in the memory that the kernel reads.
struct Records {
    /// Distance between records in words.
    words: usize,
    /// Number of records, a power of two and at least the number of frames in flight.
    count: usize,
    /// Buffer for the records of one burst.
    scratch: Vec<u64>,
}

impl Records {
    /// Writes the records of `frames` frames starting at frame number `number`. `make` writes the content of each
    /// record.
    fn write(
        &mut self,
        stores: &mut Stores<'_>,
        number: u64,
        frames: usize,
        make: impl Fn(usize, &mut [u64]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut done = 0;
        while done < frames {
            let at = usize::try_from(number + done as u64).unwrap_or(0) & (self.count - 1);
            let room = self.scratch.len() / self.words;
            let run = (frames - done).min(self.count - at).min(room);
            let records = &mut self.scratch[..run * self.words];
            for (i, record) in records.chunks_exact_mut(self.words).enumerate() {
                make(done + i, record)?;
            }
            let offset = RECORDS + at * self.words * size_of::<u64>();
            stores.words(offset, records).map_err(lost)?;
            done += run;
        }
        Ok(())
    }
}

/// Returns the doorbell word for `posted` submitted frames.
const fn word(posted: u64, generation: u64) -> u64 {
    posted | generation << POSTED_BITS
}

/// Wraps a slot index that is less than twice the number of slots.
const fn around(ring: &Slice, slot: usize) -> usize {
    if slot < ring.slots {
        slot
    } else {
        slot - ring.slots
    }
}

fn unmappable(error: &Unmappable) -> KernelError {
    KernelError::Unavailable(format!(
        "cannot allocate the doorbell: {error}; add \"host\" to `backends` in [staging]"
    ))
}

#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn lost(error: BarMappingError) -> KernelError {
    KernelError::Unavailable(format!("cannot write to the doorbell: {error}"))
}

impl PersistentKernel {
    pub(super) fn new(
        keys: &FileKernel,
        context: &KernelContext,
        device: &'static Device,
        image: &[u8],
    ) -> Result<Self, KernelError> {
        let mut code = Code::load(keys, context, device, image, ENTRY)?;
        let concurrent_frames = keys.concurrent_frames.unwrap_or(1);
        if keys.blocks.is_none() {
            // The number of submitted frames never exceeds the number of slots.
            let max = code.function.concurrent_blocks(&code.grid)? / concurrent_frames;
            code.grid.blocks[0] = code.grid.blocks[0].min(max.max(1));
        }
        if code.input.bytes > context.slots.stride || code.output.bytes > context.output.stride {
            return Err(defect("a frame is larger than a slot of its ring"));
        }
        let record_words = record::words(context.packets_per_frame, context.kept.len())
            .next_multiple_of(LINE_WORDS);
        // If a device rings the doorbell, records are needed for frames that it will write, in addition to those for
        // frames in flight.
        let rounds = if context.device_rings_doorbell { 2 } else { 1 };
        let records = (rounds * context.slots.slots.max(1)).next_power_of_two();
        let bytes = RECORDS + records * record_words * size_of::<u64>();
        let board = BarMapping::new(device, bytes, Writer::Doorbell, &context.backends)
            .map_err(|error| unmappable(&error))?;
        tracing::info!(
            "kernel {}: backend {} maps the doorbell memory{}",
            context.name,
            board.backend(),
            board
                .refused()
                .iter()
                .fold(String::new(), |text, refusal| format!("{text}; {refusal}"))
        );
        let rung = context
            .device_rings_doorbell
            .then(|| DeviceDoorbell::new(device, &context.backends))
            .transpose()
            .map_err(no_memory("the kernel's credits"))?;
        Ok(Self {
            rung,
            stream: driver::Stream::new(device, 1)?,
            bell: Doorbell::new(board.clone(), 0).map_err(lost)?,
            board,
            credits: Credits::new(device, concurrent_frames, code.grid.blocks[0])
                .map_err(no_memory("the kernel's credits"))?,
            input: context.slots,
            output: context.output,
            records: Records {
                words: record_words,
                count: records,
                scratch: vec![0; context.burst.max(1) * record_words],
            },
            posted: 0,
            generation: 0,
            next: [0; 2],
            running: None,
            concurrent_frames,
            code,
        })
    }

    /// Launches the kernel on its stream.
    fn launch(&self) -> Result<(), CudaError> {
        let Code { input, output, .. } = &self.code;
        let rung = self.rung.as_ref();
        let rung = rung.map_or(0, |rung| rung.region().address().as_ptr().addr());
        let arguments = [
            self.bell.address(),
            rung as u64,
            self.credits.address(),
            self.input.base,
            self.input.stride as u64,
            self.input.slots as u64,
            self.output.base,
            self.output.stride as u64,
            self.output.slots as u64,
            self.board.address() + RECORDS as u64,
            self.records.words as u64,
            self.records.count as u64,
            input.bytes as u64,
            input.channels_word(),
            input.points as u64,
            output.bytes as u64,
            output.channels.into(),
            output.points as u64,
        ];
        let arguments = arguments.map(Argument::U64);
        let function = &self.code.function;
        function.launch(&self.stream, &self.grid(), &arguments)
    }

    /// Returns the launch grid, which contains all blocks of the persistent kernel.
    fn grid(&self) -> Grid {
        let Grid { blocks, .. } = self.code.grid;
        Grid {
            blocks: [blocks[0], self.concurrent_frames, 1],
            ..self.code.grid
        }
    }

    /// Returns the share of the GPU that the kernel occupies.
    fn share(&self) -> Result<f64, KernelError> {
        let grid = self.grid();
        let wanted = u64::from(grid.blocks[0]) * u64::from(grid.blocks[1]);
        let max = u64::from(self.code.function.concurrent_blocks(&grid)?);
        if wanted > max {
            return Err(KernelError::Refused(format!(
                "`concurrent_frames` × `blocks` = {} × {} = {wanted}, but {} runs at most {max} such blocks at a time; \
                 all blocks of a persistent kernel must run at the same time, so reduce `concurrent_frames` or `blocks`",
                self.concurrent_frames,
                grid.blocks[0],
                self.code.device.name()
            )));
        }
        Ok(wanted as f64 / max as f64)
    }

    /// Waits until all submitted frames are processed.
    fn settle(&mut self) -> Result<(), KernelError> {
        let start = Instant::now();
        let mut looks = 0_u32;
        while !self.credits.has(self.posted) {
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 14) {
                self.poll()?;
                if start.elapsed() > STOP_TIMEOUT {
                    return Err(KernelError::Hung(self.hang_report().unwrap_or_default()));
                }
            }
        }
        Ok(())
    }

    /// Submits `frames` frames of `burst`. The frames are in `source`, starting at frame `first`. The outputs are
    /// written to `target`, starting at its first slot.
    fn post(
        &mut self,
        burst: &Lease<'_>,
        (source, first): (&Slice, usize),
        target: &Slice,
        frames: usize,
    ) -> Result<(), KernelError> {
        let slots = [around(source, source.first + first), target.first];
        if slots != self.next {
            let is_rung = |rung: &DeviceDoorbell| rung.rings_for(self.posted);
            if self.rung.as_ref().is_some_and(is_rung) {
                return Err(defect(
                    "ring slots were skipped, but a device that rings the kernel's doorbell cannot report skipped slots",
                ));
            }
            self.shift(slots)?;
        }
        let mut stores = self.board.stores().map_err(lost)?;
        // If the device rang for a frame, the kernel has already processed it with its pre-published record.
        let has_rung = |rung: &DeviceDoorbell| rung.rings_for(self.posted);
        if !self.rung.as_ref().is_some_and(has_rung) {
            self.records
                .write(&mut stores, self.posted, frames, |i, record| {
                    record::describe(&burst.frame(first + i), record)
                })?;
        }
        if self.rung.as_ref().is_some_and(DeviceDoorbell::may_ring) {
            // The device may ring for a frame before the host detects it. So the records of the next frames in the same
            // slots are written before the slots are released.
            let ahead = self.input.slots as u64;
            let next = self.posted + ahead;
            self.records.write(&mut stores, next, frames, |i, record| {
                let frame = burst.frame(first + i);
                let meta = frame.meta();
                record::prepublish(meta.sequence + ahead, meta.epoch, record);
                Ok(())
            })?;
        }
        self.posted += frames as u64;
        self.next = [
            around(&self.input, slots[0] + frames),
            around(&self.output, slots[1] + frames),
        ];
        // Ring only after all stores of this thread and of the input's producer.
        let word = word(self.posted, self.generation);
        self.bell.ring_with(&mut stores, word).map_err(lost)
    }

    /// Writes the records of the first frames before a device writes these frames.
    fn prepublish_first(&mut self) -> Result<(), KernelError> {
        if self.rung.is_none() {
            return Ok(());
        }
        let mut stores = self.board.stores().map_err(lost)?;
        self.records
            .write(&mut stores, 0, self.input.slots, |i, record| {
                // The first epoch of a source is 1.
                record::prepublish(i as u64, 1, record);
                Ok(())
            })
    }

    /// Publishes new shifts. Called if the next frame is not in the slots that follow the slots of the last frame.
    fn shift(&mut self, slots: [usize; 2]) -> Result<(), KernelError> {
        // The kernel locates frames in flight with the current shifts, so wait for them first.
        self.settle()?;
        let mut stores = self.board.stores().map_err(lost)?;
        for (i, (slot, ring)) in slots
            .into_iter()
            .zip([&self.input, &self.output])
            .enumerate()
        {
            let count = ring.slots as u64;
            let shift = (slot as u64 + count - self.posted % count) % count;
            stores
                .word(SHIFTS + i * size_of::<u64>(), shift)
                .map_err(lost)?;
        }
        self.generation = (self.generation + 1) % GENERATIONS;
        Ok(())
    }

    /// Checks that frames match their pre-published records. The kernel has already processed the frames with these
    /// records.
    fn check_rung(&self, burst: &Lease<'_>) -> Result<(), KernelError> {
        for i in 0..burst.len() {
            let frame = burst.frame(i);
            let meta = frame.meta();
            let (found, due) = (meta.length, self.code.input.bytes);
            if found < due || meta.is_incomplete() {
                return Err(KernelError::Refused(format!(
                    "frame {} has only {found} of {due} bytes, but the device rang the doorbell for this frame, so the \
                     kernel processed stale bytes; set doorbell = \"cpu\" for a source whose frames can be shorter",
                    meta.sequence
                )));
            }
        }
        Ok(())
    }

    /// Stops the kernel after it has processed all submitted frames. Returns whether the kernel has ended.
    fn stop(&mut self) -> bool {
        let Some(running) = &self.running else {
            return true;
        };
        let mut is_ended = running.end.is_done();
        if !is_ended {
            // If the doorbell cannot be written, the device has failed, and nothing more can be done.
            let _ = self.bell.ring(word(self.posted, self.generation) | STOP);
            let start = Instant::now();
            while !is_ended && start.elapsed() < STOP_TIMEOUT {
                std::thread::sleep(Duration::from_micros(50));
                is_ended = running.end.is_done();
            }
        }
        if is_ended {
            self.running = None;
        }
        is_ended
    }
}

impl Kernel for PersistentKernel {
    fn outputs(&self, frames: usize) -> usize {
        // A device may have written one ring of further frames, which the kernel may have processed.
        frames + self.rung.as_ref().map_or(0, |_| self.input.slots)
    }

    fn device_doorbell(&self) -> Option<DeviceDoorbell> {
        self.rung.clone()
    }

    fn occupancy(&self) -> Option<f64> {
        Some(self.code.occupancy)
    }

    fn launch_empty(&mut self, _on: Stream<'_>) -> Result<(), KernelError> {
        self.share()?;
        // The kernel ends at once.
        self.bell.ring(STOP).map_err(lost)?;
        self.launch()?;
        self.stream.synchronize()?;
        self.bell
            .ring(word(self.posted, self.generation))
            .map_err(lost)
    }

    fn start(&mut self) -> Result<(), KernelError> {
        let share = self.share()?;
        let device = self.code.device;
        let stay = device.add_persistent_kernel(share).ok_or_else(|| {
            KernelError::Unavailable(format!(
                "other persistent kernels occupy {:.0} % of {}, and this kernel needs {:.0} %; reduce `blocks`, \
                 `concurrent_frames` or `threads` of one of these kernels",
                100.0 * device.share(),
                device.name(),
                100.0 * share
            ))
        })?;
        if device.share() > WARN_SHARE {
            tracing::warn!(
                "persistent kernels occupy {:.0} % of {}; other kernels on this GPU wait for free multiprocessors",
                100.0 * device.share(),
                device.name()
            );
        }
        self.prepublish_first()?;
        self.launch()?;
        match self.stream.record_event() {
            Ok(end) => {
                self.running = Some(Running { end, _stay: stay });
                Ok(())
            }
            Err(unmarked) => {
                // The kernel may still run, so its memory is freed only after its end event.
                let _ = self.bell.ring(word(self.posted, self.generation) | STOP);
                let _ = self.stream.synchronize();
                Err(unmarked.into())
            }
        }
    }

    fn poll(&mut self) -> Result<(), KernelError> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        if !running.end.is_done() {
            return Ok(());
        }
        let error = running.end.failure().unwrap_or_else(|| CudaError {
            what: "a persistent kernel".to_owned(),
            code: 0,
            name: "the kernel ended without a stop request".to_owned(),
            detail: "on_frame must return, not exit".to_owned(),
        });
        self.credits.fail(error.clone());
        Err(KernelError::Cuda(error))
    }

    fn hang_report(&self) -> Option<String> {
        let values = self.credits.values();
        let blocks = self.code.grid.blocks[0] as usize;
        let first = |(i, done): (usize, u64)| {
            (
                done * u64::from(self.concurrent_frames) + (i / blocks.max(1)) as u64,
                i,
            )
        };
        let (frame, i) = values.into_iter().enumerate().map(first).min()?;
        Some(format!(
            "on_frame does not return: block {} has not finished frame {frame} (counted from the kernel's start, {} frames \
             submitted) or one of the next frames that run concurrently; a block reports up to 8 frames at a time; check \
             for a loop that does not end and for __syncthreads() that not all threads reach",
            i % blocks.max(1),
            self.posted
        ))
    }

    fn in_flight(&self) -> Option<Completion> {
        Some(Completion::Credit {
            credits: self.credits.clone(),
            at: self.posted,
        })
    }

    fn leak(self: Box<Self>) {
        self.code.device.mark_hung();
        self.credits.leak();
        leak(self);
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        if self.running.is_none() {
            return Err(defect("a kernel received frames before it was started"));
        }
        let source = gpu::slots(burst)?;
        if let Some(rung) = &self.rung
            && rung.rings_for(self.posted)
        {
            self.check_rung(burst)?;
        }
        let max_frames = self.records.scratch.len() / self.records.words;
        let bytes = [self.code.input.bytes, self.code.output.bytes];
        let launch =
            |first, count, target: &Slice| self.post(burst, (&source, first), target, count);
        let submitted = gpu::map_frames(burst, out, max_frames, bytes, launch)?;
        Ok(Submitted {
            completion: Completion::Credit {
                credits: self.credits.clone(),
                at: self.posted,
            },
            ..submitted
        })
    }
}

impl Drop for PersistentKernel {
    fn drop(&mut self) {
        if !self.stop() {
            // The kernel still runs, so its memory is leaked.
            self.code.device.mark_hung();
            self.credits.leak();
            leak((self.board.clone(), self.running.take()));
        }
    }
}
