//! Events, which record positions in streams.

use super::context::Device;
use super::stream::{Operation, Stream, Submitted};
use super::table::Table;
use super::{Out, driver, lock, require};
use crate::code::{CAPTURED_EVENT, INVALID_HANDLE, NOT_READY, Result};
use std::collections::BTreeSet;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

/// An event.
#[derive(Debug)]
pub struct Event {
    /// The device of its context.
    pub device: &'static Device,
    is_timed: bool,
    state: Mutex<State>,
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

driver! {
    in_context(device) fn cuEventCreate(event: Out<usize>, flags: c_uint) {
        require(!event.is_null() && flags & !7 == 0)?;
        require(flags & INTERPROCESS == 0 || flags & DISABLE_TIMING != 0)?;
        event.set(EVENTS.insert(Arc::new(Event {
            device,
            is_timed: flags & DISABLE_TIMING == 0,
            state: Mutex::default(),
        })))
    }

    /// Pending work continues, but its state can no longer be queried.
    giving_back(_) fn cuEventDestroy_v2(event: usize) {
        EVENTS.remove(event).map(|_| ())
    }

    in_context(device) fn cuEventRecord(event: usize, stream: usize) {
        let (event, stream) = (EVENTS.get(event)?, Stream::find(device, stream)?);
        if !std::ptr::eq(event.device, stream.device) {
            return Err(INVALID_HANDLE);
        }
        event.record(&stream)
    }

    initialised() fn cuEventQuery(event: usize) {
        EVENTS.get(event)?.query()
    }

    in_context(_) fn cuEventElapsedTime(out: Out<f32>, start: usize, end: usize) {
        elapsed(&out, start, end)
    }

    in_context(_) fn cuEventElapsedTime_v2(out: Out<f32>, start: usize, end: usize) {
        elapsed(&out, start, end)
    }
}
