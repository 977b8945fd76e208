//! Events, which record positions in streams.

use super::context::{self, Device};
use super::stream::{Operation, Stream, Submitted};
use super::table::Table;
use super::{Out, call, lock, require};
use crate::code::{CAPTURED_EVENT, Code, INVALID_HANDLE, NOT_READY, Result};
use std::collections::BTreeSet;
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

/// An event.
#[derive(Debug)]
pub struct Event {
    /// The device of its context.
    pub device: &'static Device,
    is_timed: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of times that the event was recorded.
    recorded: u64,
    /// Numbers of the records that their stream has not reached yet.
    pending: BTreeSet<u64>,
    /// The number of the last record that a stream has reached, and its time.
    passed: Option<(u64, Instant)>,
    is_captured: bool,
}

/// All events.
pub static EVENTS: Table<Event> = Table::new();

impl Event {
    fn record(self: &Arc<Self>, stream: &Arc<Stream>) -> Result {
        let nth = {
            let mut state = lock(&self.state);
            state.recorded += 1;
            let nth = state.recorded;
            state.pending.insert(nth);
            nth
        };
        let submitted = stream.submit(Operation::Record(Arc::clone(self), nth));
        let mut state = lock(&self.state);
        if !matches!(submitted, Ok(Submitted::Queued(_))) {
            state.pending.remove(&nth);
        }
        state.is_captured = matches!(submitted, Ok(Submitted::Captured));
        submitted.map(|_| ())
    }

    /// Records that the stream has reached the `nth` record.
    pub fn pass(&self, nth: u64) {
        let mut state = lock(&self.state);
        state.pending.remove(&nth);
        if state.passed.is_none_or(|(latest, _)| latest < nth) {
            state.passed = Some((nth, Instant::now()));
        }
        self.changed.notify_all();
    }

    /// Waits until a stream has reached the `nth` record, or until `until` returns true because that will not happen.
    pub fn wait(&self, nth: u64, until: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        while state.pending.contains(&nth) && !until() {
            // The wait has a timeout, because a change of the result of `until` wakes no waiter.
            state = self
                .changed
                .wait_timeout(state, Duration::from_millis(5))
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }

    fn latest(&self) -> Result<u64> {
        let state = lock(&self.state);
        if state.is_captured {
            Err(CAPTURED_EVENT)
        } else {
            Ok(state.recorded)
        }
    }

    fn query(&self) -> Result {
        self.device.check()?;
        let latest = self.latest()?;
        // An event that was never recorded counts as reached.
        if lock(&self.state).pending.contains(&latest) {
            Err(NOT_READY)
        } else {
            Ok(())
        }
    }

    fn synchronise(&self) -> Result {
        self.wait(self.latest()?, || self.device.check().is_err());
        self.device.check()
    }

    /// Returns the time at which the last record was reached.
    fn time(&self) -> Result<Instant> {
        let (_, time) = lock(&self.state).passed.ok_or(INVALID_HANDLE)?;
        Ok(time)
    }
}

/// Stores the time between two events in milliseconds.
fn elapsed(out: &Out<f32>, start: usize, end: usize) -> Result {
    let (start, end) = (EVENTS.get(start)?, EVENTS.get(end)?);
    let is_recorded = |event: &Event| event.latest().map(|latest| latest > 0);
    if !start.is_timed || !end.is_timed || !std::ptr::eq(start.device, end.device) {
        return Err(INVALID_HANDLE);
    }
    if !is_recorded(&start)? || !is_recorded(&end)? {
        return Err(INVALID_HANDLE);
    }
    start.query()?;
    end.query()?;
    let (start, end) = (start.time()?, end.time()?);
    // The events may have been reached in the opposite order.
    let forth = end.saturating_duration_since(start).as_secs_f32();
    let back = start.saturating_duration_since(end).as_secs_f32();
    out.set((forth - back) * 1e3)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<usize>, flags: c_uint) -> Code {
    call!(cuEventCreate).in_context(|device| {
        require(!event.is_null() && flags & !7 == 0)?;
        require(flags & INTERPROCESS == 0 || flags & DISABLE_TIMING != 0)?;
        event.set(EVENTS.insert(Arc::new(Event {
            device,
            is_timed: flags & DISABLE_TIMING == 0,
            state: Mutex::default(),
            changed: Condvar::new(),
        })))
    })
}

/// Pending work continues, but its state can no longer be queried.
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    call!(cuEventDestroy_v2).giving_back(|_| EVENTS.remove(event).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    call!(cuEventRecord).in_context(|device| {
        let (event, stream) = (EVENTS.get(event)?, Stream::find(device, stream)?);
        if !std::ptr::eq(event.device, stream.device) {
            return Err(INVALID_HANDLE);
        }
        event.record(&stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> Code {
    call!(cuEventQuery).initialised(|| EVENTS.get(event)?.query())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> Code {
    call!(cuEventSynchronize).in_context(|_| EVENTS.get(event)?.synchronise())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(out: Out<f32>, start: usize, end: usize) -> Code {
    call!(cuEventElapsedTime).in_context(|_| elapsed(&out, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(out: Out<f32>, start: usize, end: usize) -> Code {
    call!(cuEventElapsedTime_v2).in_context(|_| elapsed(&out, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> Code {
    call!(cuStreamWaitEvent).in_context(|_| {
        require(flags & !1 == 0)?;
        let (stream, event) = (
            Stream::find(context::current()?, stream)?,
            EVENTS.get(event)?,
        );
        let nth = event.latest()?;
        stream.submit(Operation::Await(event, nth)).map(|_| ())
    })
}
