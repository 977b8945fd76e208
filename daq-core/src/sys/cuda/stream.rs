//! Streams, events and graphs.

use super::{Code, NOT_READY, RawEvent, RawGraph, RawRecording, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::c_uint;
use std::ptr;

/// A stream that does not wait for the default stream.
pub fn create_stream() -> Result<RawStream, Code> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: a pointer to one pointer.
    check(unsafe { driver::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(stream)
}

/// Destroys a stream; its pending work still completes.
///
/// # Safety
/// The stream came from [`create_stream`] and is not used again.
pub unsafe fn destroy_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuStreamDestroy_v2(stream) })
}

/// Waits until everything on a stream is done.
///
/// # Safety
/// The stream is alive.
pub unsafe fn synchronize_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuStreamSynchronize(stream) })
}

/// Starts to record the work submitted to a stream instead of executing it.
///
/// # Safety
/// The stream is alive and nothing is being recorded on it.
pub unsafe fn begin_capture(stream: RawStream) -> Result<(), Code> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuStreamBeginCapture_v2(stream, mode) })
}

/// Ends recording and returns the recorded work.
///
/// # Safety
/// Recording was begun on the stream.
pub unsafe fn end_capture(stream: RawStream) -> Result<RawRecording, Code> {
    let mut recording = ptr::null_mut();
    // SAFETY: by the caller's contract; a pointer to one pointer.
    check(unsafe { driver::cuStreamEndCapture(stream, &raw mut recording) })?;
    Ok(recording)
}

/// Instantiates recorded work as a graph, which is independent of the recording.
///
/// # Safety
/// The recording came from [`end_capture`] and is alive.
pub unsafe fn instantiate(recording: RawRecording) -> Result<RawGraph, Code> {
    let mut graph = ptr::null_mut();
    // SAFETY: by the caller's contract; a pointer to one pointer.
    check(unsafe { driver::cuGraphInstantiateWithFlags(&raw mut graph, recording, 0) })?;
    Ok(graph)
}

/// Frees recorded work.
///
/// # Safety
/// The recording came from [`end_capture`] and is not used again.
pub unsafe fn destroy_recording(recording: RawRecording) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuGraphDestroy(recording) })
}

/// Submits a graph to a stream.
///
/// # Safety
/// Both are alive, and everything that the graph touches is.
pub unsafe fn launch_graph(graph: RawGraph, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuGraphLaunch(graph, stream) })
}

/// Frees a graph.
///
/// # Safety
/// The graph came from [`instantiate`] and is not used again.
pub unsafe fn destroy_graph(graph: RawGraph) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuGraphExecDestroy(graph) })
}

/// An event; without `timed` it records no time and costs less.
pub fn create_event(timed: bool) -> Result<RawEvent, Code> {
    let mut event = ptr::null_mut();
    let flags = if timed {
        sys::CUevent_flags::CU_EVENT_DEFAULT
    } else {
        sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
    };
    // SAFETY: a pointer to one pointer.
    check(unsafe { driver::cuEventCreate(&raw mut event, flags as c_uint) })?;
    Ok(event)
}

/// Frees an event.
///
/// # Safety
/// The event came from [`create_event`] and is not used again.
pub unsafe fn destroy_event(event: RawEvent) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuEventDestroy_v2(event) })
}

/// Records an event on a stream: it is done when all earlier work is.
///
/// # Safety
/// Both are alive.
pub unsafe fn record_event(event: RawEvent, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's contract.
    check(unsafe { driver::cuEventRecord(event, stream) })
}

/// Whether an event is done; the error is that of the work before it.
///
/// # Safety
/// The event is alive.
pub unsafe fn query_event(event: RawEvent) -> Result<bool, Code> {
    // SAFETY: by the caller's contract.
    match check(unsafe { driver::cuEventQuery(event) }) {
        Ok(()) => Ok(true),
        Err(NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}

/// Milliseconds between two events.
///
/// # Safety
/// Both events are alive.
pub unsafe fn elapsed(start: RawEvent, end: RawEvent) -> Result<f32, Code> {
    let mut milliseconds = 0.0;
    // The function that `cudarc` binds is its successor, which drivers before 12.8 do not have.
    // SAFETY: by the caller's contract; a pointer to one number.
    check(unsafe { driver::cuEventElapsedTime(&raw mut milliseconds, start, end) })?;
    Ok(milliseconds)
}

/// Writes a word of device memory on a stream; `None` where the driver has no such call.
///
/// # Safety
/// The stream is alive, and the 4 bytes at `address`, a multiple of 4, are device memory until it has passed this.
pub unsafe fn write_word(stream: RawStream, address: u64, value: u32) -> Option<Result<(), Code>> {
    type Call = unsafe extern "C" fn(RawStream, u64, c_uint, c_uint) -> c_uint;
    // SAFETY: this is how the function is declared; the rest is the caller's contract.
    let code = unsafe { symbol::<Call>("cuStreamWriteValue32_v2")?(stream, address, value, 0) };
    Some(check(code))
}
