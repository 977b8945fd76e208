//! CUDA calls for streams, events and graphs.

use super::{Code, NOT_READY, RawEvent, RawGraph, RawRecording, RawStream, check, driver, symbol};
use cudarc::driver::sys;
use std::ffi::c_uint;
use std::ptr;

/// Creates a stream that does not wait for the default stream.
pub(crate) fn create_stream() -> Result<RawStream, Code> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: the result pointer refers to one writable pointer.
    check(unsafe { driver::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(stream)
}

/// Destroys a stream; its pending work still completes.
///
/// # Safety
/// The stream must come from [`create_stream`] and must not be used again.
pub(crate) unsafe fn destroy_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuStreamDestroy_v2(stream) })
}

/// Waits until all work on a stream is done.
///
/// # Safety
/// The stream must be alive.
pub(crate) unsafe fn synchronize_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuStreamSynchronize(stream) })
}

/// Starts to record the work submitted to a stream instead of executing it.
///
/// # Safety
/// The stream must be alive, and no recording may be in progress on it.
pub(crate) unsafe fn begin_capture(stream: RawStream) -> Result<(), Code> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuStreamBeginCapture_v2(stream, mode) })
}

/// Ends recording and returns the recorded work.
///
/// # Safety
/// A recording must be in progress on the stream.
pub(crate) unsafe fn end_capture(stream: RawStream) -> Result<RawRecording, Code> {
    let mut recording = ptr::null_mut();
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable pointer.
    check(unsafe { driver::cuStreamEndCapture(stream, &raw mut recording) })?;
    Ok(recording)
}

/// Instantiates recorded work as a graph, which is independent of the recording.
///
/// # Safety
/// The recording must come from [`end_capture`] and must not be destroyed.
pub(crate) unsafe fn instantiate(recording: RawRecording) -> Result<RawGraph, Code> {
    let mut graph = ptr::null_mut();
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable pointer.
    check(unsafe { driver::cuGraphInstantiateWithFlags(&raw mut graph, recording, 0) })?;
    Ok(graph)
}

/// Frees recorded work.
///
/// # Safety
/// The recording must come from [`end_capture`] and must not be used again.
pub(crate) unsafe fn destroy_recording(recording: RawRecording) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuGraphDestroy(recording) })
}

/// Submits a graph to a stream.
///
/// # Safety
/// The graph, the stream and all memory that the graph accesses must be alive until the work is done.
pub(crate) unsafe fn launch_graph(graph: RawGraph, stream: RawStream) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuGraphLaunch(graph, stream) })
}

/// Frees a graph.
///
/// # Safety
/// The graph must come from [`instantiate`] and must not be used again.
pub(crate) unsafe fn destroy_graph(graph: RawGraph) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuGraphExecDestroy(graph) })
}

/// Creates an event. Without `timed`, the event does not record a time and costs less.
pub(crate) fn create_event(timed: bool) -> Result<RawEvent, Code> {
    let mut event = ptr::null_mut();
    let flags = if timed {
        sys::CUevent_flags::CU_EVENT_DEFAULT
    } else {
        sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
    };
    // SAFETY: the result pointer refers to one writable pointer.
    check(unsafe { driver::cuEventCreate(&raw mut event, flags as c_uint) })?;
    Ok(event)
}

/// Frees an event.
///
/// # Safety
/// The event must come from [`create_event`] and must not be used again.
pub(crate) unsafe fn destroy_event(event: RawEvent) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuEventDestroy_v2(event) })
}

/// Records an event on a stream. The event is done when all earlier work on the stream is done.
///
/// # Safety
/// The event and the stream must be alive.
pub(crate) unsafe fn record_event(event: RawEvent, stream: RawStream) -> Result<(), Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    check(unsafe { driver::cuEventRecord(event, stream) })
}

/// Whether an event is done. An error is the failure of the work before the event.
///
/// # Safety
/// The event must be alive.
pub(crate) unsafe fn query_event(event: RawEvent) -> Result<bool, Code> {
    // SAFETY: the caller guarantees all requirements of this call.
    match check(unsafe { driver::cuEventQuery(event) }) {
        Ok(()) => Ok(true),
        Err(NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}

/// Returns the time between two events in milliseconds.
///
/// # Safety
/// Both events must be alive.
pub(crate) unsafe fn elapsed(start: RawEvent, end: RawEvent) -> Result<f32, Code> {
    let mut milliseconds = 0.0;
    // `cudarc` declares only the successor of this function, which drivers before CUDA 12.8 do not have.
    // SAFETY: the caller guarantees the requirements; the result pointer refers to one writable number.
    check(unsafe { driver::cuEventElapsedTime(&raw mut milliseconds, start, end) })?;
    Ok(milliseconds)
}

/// Writes a word of device memory on a stream. Returns `None` if the driver does not have this call.
///
/// # Safety
/// The stream must be alive. `address` must be a multiple of 4. The 4 bytes at `address` must stay device
/// memory until the stream has completed the write.
pub(crate) unsafe fn write_word(
    stream: RawStream,
    address: u64,
    value: u32,
) -> Option<Result<(), Code>> {
    type Call = unsafe extern "C" fn(RawStream, u64, c_uint, c_uint) -> c_uint;
    // SAFETY: `Call` is the type with which NVIDIA declares the function. The caller guarantees the other requirements.
    let code = unsafe { symbol::<Call>("cuStreamWriteValue32_v2")?(stream, address, value, 0) };
    Some(check(code))
}
