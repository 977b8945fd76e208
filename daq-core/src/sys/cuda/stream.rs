//! Streams, events and graphs.

use super::{Code, NOT_READY, RawEvent, RawGraph, RawStream, check, symbol};
use cudarc::driver::sys;
use std::ffi::c_uint;
use std::ptr;

/// A stream that does not wait for the default stream.
pub fn create_stream() -> Result<RawStream, Code> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: a place for one pointer.
    check(unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(stream)
}

/// Ends a stream; what is on it is still done.
///
/// # Safety
/// The stream came from [`create_stream`] and is not used again.
pub unsafe fn destroy_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamDestroy_v2(stream) })
}

/// Waits until everything on a stream is done.
///
/// # Safety
/// The stream is alive.
pub unsafe fn synchronize_stream(stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamSynchronize(stream) })
}

/// Begins to record what is put on a stream instead of doing it.
///
/// # Safety
/// The stream is alive and nothing is being recorded on it.
pub unsafe fn begin_capture(stream: RawStream) -> Result<(), Code> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
}

/// Ends recording and makes what was recorded ready to be put on streams as one.
///
/// # Safety
/// Recording was begun on the stream.
pub unsafe fn end_capture(stream: RawStream) -> Result<RawGraph, Code> {
    let mut graph = ptr::null_mut();
    // SAFETY: by the caller's word; a place for one pointer.
    check(unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) })?;
    let mut ready = ptr::null_mut();
    // SAFETY: the graph was made just now; a place for one pointer.
    let result = check(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0) });
    // SAFETY: the graph is not used again; what was made of it stands for itself.
    check(unsafe { sys::cuGraphDestroy(graph) })?;
    result.map(|()| ready)
}

/// Puts a graph on a stream.
///
/// # Safety
/// Both are alive, and everything that the graph touches is.
pub unsafe fn launch_graph(graph: RawGraph, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuGraphLaunch(graph, stream) })
}

/// Frees a graph.
///
/// # Safety
/// The graph came from [`end_capture`] and is not used again.
pub unsafe fn destroy_graph(graph: RawGraph) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuGraphExecDestroy(graph) })
}

/// An event; without `timed` it tells no time and costs less.
pub fn create_event(timed: bool) -> Result<RawEvent, Code> {
    let mut event = ptr::null_mut();
    let flags = if timed {
        sys::CUevent_flags::CU_EVENT_DEFAULT
    } else {
        sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
    };
    // SAFETY: a place for one pointer.
    check(unsafe { sys::cuEventCreate(&raw mut event, flags as c_uint) })?;
    Ok(event)
}

/// Frees an event.
///
/// # Safety
/// The event came from [`create_event`] and is not used again.
pub unsafe fn destroy_event(event: RawEvent) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuEventDestroy_v2(event) })
}

/// Puts an event on a stream: it is done when everything before it is.
///
/// # Safety
/// Both are alive.
pub unsafe fn record_event(event: RawEvent, stream: RawStream) -> Result<(), Code> {
    // SAFETY: by the caller's word.
    check(unsafe { sys::cuEventRecord(event, stream) })
}

/// Whether an event is done; the error is that of the work before it.
///
/// # Safety
/// The event is alive.
pub unsafe fn query_event(event: RawEvent) -> Result<bool, Code> {
    // SAFETY: by the caller's word.
    match check(unsafe { sys::cuEventQuery(event) }) {
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
    type Elapsed = unsafe extern "C" fn(*mut f32, RawEvent, RawEvent) -> c_uint;
    static ELAPSED: std::sync::OnceLock<Option<Elapsed>> = std::sync::OnceLock::new();
    // `cudarc` binds the successor, which drivers before 12.8 do not have.
    // SAFETY: this is how the function is declared; its result is an enumeration of C.
    let Some(call) = ELAPSED.get_or_init(|| unsafe { symbol("cuEventElapsedTime") }) else {
        return Err(Code(500));
    };
    let mut milliseconds = 0.0;
    // SAFETY: by the caller's word; a place for one number.
    match unsafe { call(&raw mut milliseconds, start, end) } {
        0 => Ok(milliseconds),
        code => Err(Code(code)),
    }
}
