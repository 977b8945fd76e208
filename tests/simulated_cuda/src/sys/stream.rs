//! Streams: queues of operations, each with a thread that executes them in order.

use super::context::Device;
use super::copy::Copy;
use super::event::Event;
use super::fill::Fill;
use super::launch::Launch;
use super::persistent::give_up;
use super::table::Table;
use super::{Out, driver, lock, require};
use crate::code::{
    ILLEGAL_STATE, INVALID_HANDLE, Result, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const NON_BLOCKING: c_uint = 1;

/// An operation of a stream.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A copy.
    Copy(Copy),
    /// Several copies in any order.
    Batch(Arc<[Copy]>),
    /// A fill of memory.
    Fill(Fill),
    /// A launch of a kernel.
    Launch(Launch),
    /// A record of an event, with the number of the record.
    Record(Arc<Event>, u64),
    /// All operations of a graph.
    Graph(Arc<[Operation]>),
}

/// The result of submitting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The operation is the n-th operation of the stream.
    Queued(u64),
    /// The operation was added to the graph that is being captured.
    Captured,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// The device of its context.
    pub device: &'static Device,
    is_default: bool,
    /// True if a persistent kernel runs on the stream.
    stays: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Operation>,
    submitted: u64,
    completed: u64,
    /// True if no more operations will follow.
    is_closed: bool,
    capture: Option<Capture>,
}

#[derive(Debug)]
struct Capture {
    operations: Vec<Operation>,
    thread: ThreadId,
    is_valid: bool,
}

/// All streams except the default streams.
pub static STREAMS: Table<Stream> = Table::new();

impl Stream {
    /// Creates a stream and its thread.
    pub fn start(device: &'static Device, is_default: bool) -> Arc<Self> {
        let stream = Arc::new(Self {
            device,
            is_default,
            stays: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = Arc::clone(&stream);
        thread::Builder::new()
            .name("cuda-stream".to_owned())
            .spawn(move || worker.work())
            .expect("cannot start the thread of a stream");
        stream
    }

    /// Returns the stream with a handle; 0 and 1 are the default stream of the device.
    pub fn find(device: &'static Device, handle: usize) -> Result<Arc<Self>> {
        match handle {
            0 | 1 => Ok(device.default_stream()),
            _ => STREAMS.get(handle),
        }
    }

    /// Returns true for a default stream.
    pub const fn is_default(&self) -> bool {
        self.is_default
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // The wait has a timeout, because an error of another stream does not wake it.
        let poll_interval = Duration::from_millis(5);
        self.changed
            .wait_timeout(state, poll_interval)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Appends an operation.
    pub fn submit(&self, operation: Operation) -> Result<Submitted> {
        if let Some(capture) = &mut lock(&self.state).capture {
            if !capture.is_valid {
                return Err(STREAM_CAPTURE_INVALIDATED);
            }
            capture.operations.push(operation);
            return Ok(Submitted::Captured);
        }
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(INVALID_HANDLE);
        }
        state.queue.push_back(operation);
        state.submitted += 1;
        self.changed.notify_all();
        Ok(Submitted::Queued(state.submitted))
    }

    /// Waits until this number of operations has completed or the context is broken.
    pub fn wait_for(&self, operations: u64) -> Result {
        let mut state = lock(&self.state);
        let since = Instant::now();
        while state.completed < operations {
            self.device.check()?;
            if self.stays.load(Ordering::Acquire) {
                give_up(since, "waiting for a stream");
            }
            state = self.wait(state);
        }
        drop(state);
        self.device.check()
    }

    /// Waits until all operations submitted so far have completed. Fails if the stream is capturing.
    pub fn synchronise(&self) -> Result {
        self.not_capturing()?;
        self.drain()
    }

    /// Waits until all operations submitted so far have completed, even if the stream is capturing.
    pub fn drain(&self) -> Result {
        let submitted = lock(&self.state).submitted;
        self.wait_for(submitted)
    }

    /// Fails if the stream is capturing, and makes the capture invalid.
    fn not_capturing(&self) -> Result {
        match &mut lock(&self.state).capture {
            None => Ok(()),
            Some(capture) => {
                capture.is_valid = false;
                Err(STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Closes the stream to further operations. The thread ends when all operations have completed.
    fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        while let Some(operation) = self.next() {
            let stays = matches!(&operation, Operation::Launch(launch) if launch.stays());
            self.stays.store(stays, Ordering::Release);
            // A broken context keeps its first error.
            let done = self
                .device
                .check()
                .and_then(|()| operation.execute(self.device));
            if let Err(code) = done {
                self.device.fail(code);
            }
            // The lock makes both changes atomic: a thread that sees the event as reached also sees the progress of the
            // stream, and vice versa.
            let mut state = lock(&self.state);
            operation.pass();
            state.completed += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Operation> {
        let mut state = lock(&self.state);
        loop {
            if let Some(operation) = state.queue.pop_front() {
                return Some(operation);
            }
            if state.is_closed {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts a capture, which only this thread may end.
    fn begin_capture(&self) -> Result {
        if self.is_default {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = lock(&self.state);
        if state.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        state.capture = Some(Capture {
            operations: Vec::new(),
            thread: thread::current().id(),
            is_valid: true,
        });
        Ok(())
    }

    /// Ends the capture and returns the captured operations.
    pub fn end_capture(&self) -> Result<Arc<[Operation]>> {
        let mut state = lock(&self.state);
        let capture = state.capture.take().ok_or(ILLEGAL_STATE)?;
        if capture.thread != thread::current().id() {
            state.capture = Some(capture);
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.is_valid {
            Ok(capture.operations.into())
        } else {
            Err(STREAM_CAPTURE_INVALIDATED)
        }
    }
}

impl Operation {
    fn execute(&self, device: &'static Device) -> Result {
        match self {
            Self::Copy(copy) => copy.execute(device),
            // The order within a batch is not guaranteed.
            Self::Batch(copies) => copies
                .iter()
                .rev()
                .try_for_each(|copy| copy.execute(device)),
            Self::Fill(fill) => fill.execute(),
            Self::Launch(launch) => launch.execute(device),
            // The stream marks the event as reached when it counts the operation.
            Self::Record(..) => Ok(()),
            Self::Graph(operations) => operations
                .iter()
                .try_for_each(|operation| operation.execute(device)),
        }
    }

    /// Marks the operation as passed, whether it was executed or not.
    fn pass(&self) {
        match self {
            Self::Record(event, nth) => event.pass(*nth),
            Self::Launch(launch) => launch.pass(),
            _ => {}
        }
    }
}

driver! {
    /// Creates a stream. A stream that waits for the default stream is not supported.
    in_context(device) fn cuStreamCreate(stream: Out<usize>, flags: c_uint) {
        require(!stream.is_null() && flags == NON_BLOCKING)?;
        stream.set(STREAMS.insert(Stream::start(device, false)))
    }

    /// Destroys a stream. Pending operations are still executed.
    giving_back(_) fn cuStreamDestroy_v2(stream: usize) {
        STREAMS.remove(stream)?.close();
        Ok(())
    }

    in_context(device) fn cuStreamSynchronize(stream: usize) {
        Stream::find(device, stream)?.synchronise()
    }

    in_context(device) fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        const THREAD_LOCAL: c_uint = 1;
        require(mode == THREAD_LOCAL)?;
        Stream::find(device, stream)?.begin_capture()
    }
}
