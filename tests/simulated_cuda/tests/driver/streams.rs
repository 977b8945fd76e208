//! Tests of streams, events and graphs.

use crate::sys::{allocate, context, event, read, register, stream};
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::CUstreamCaptureMode;
use std::ptr::null_mut;

#[test]
fn copy_that_hangs_blocks_only_its_stream() {
    passes!("hang=copy@1", || {
        let (hung, free) = (stream(), stream());
        let (before, after) = (event(0), event(0));
        let device = allocate(64);
        ok!(cuEventRecord(before, hung));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, hung));
        ok!(cuEventRecord(after, hung));
        // The copy that hangs must be the first one that starts.
        daq_testkit::wait_until("the record before the copy", || cu!(cuEventQuery(before)) == 0);
        let mut to = [0_u8; 4];
        let target = to.as_mut_ptr().cast();
        ok!(cuMemsetD8Async(device, 3, 4, free));
        ok!(cuStreamSynchronize(free));
        ok!(cuMemcpyDtoHAsync_v2(target, device, 4, free));
        ok!(cuStreamSynchronize(free));
        assert_eq!(to, [3; 4]);
        fails!(cuEventQuery(after) => 600);
        let mut milliseconds = 0.0;
        fails!(cuEventElapsedTime_v2(&raw mut milliseconds, before, after) => 600);
    }, {"copies": 2, "leaks": {"streams": 2, "events": 2, "memory": 1}});
}

#[test]
fn async_copies_run_in_stream_order() {
    passes!("latency=2000,gbps=1", || {
        let stream = stream();
        let (start, end) = (event(0), event(0));
        let device = allocate(4096);
        let mut host = vec![0_u8; 4096];
        register(&host);
        let to = host.as_mut_ptr();
        ok!(cuEventRecord(start, stream));
        for n in 0..20_u8 {
            ok!(cuMemsetD8Async(device, n, 4096, stream));
            let to = to.wrapping_add(usize::from(n) * 200).cast();
            ok!(cuMemcpyDtoHAsync_v2(to, device, 200, stream));
        }
        ok!(cuEventRecord(end, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuEventQuery(end));
        for n in 0..20_u8 {
            assert_eq!(host[usize::from(n) * 200..][..200], [n; 200]);
        }
        let mut milliseconds = 0.0;
        ok!(cuEventElapsedTime_v2(&raw mut milliseconds, start, end));
        // Each copy takes at least its latency; the upper bound depends on the machine.
        assert!(milliseconds >= 40.0, "{milliseconds}");
        ok!(cuEventElapsedTime_v2(&raw mut milliseconds, end, start));
        assert!(milliseconds <= -40.0, "{milliseconds}");
    });
}

#[test]
fn event_invalid_use_is_rejected() {
    passes!("", || {
        let (fresh, timed, untimed) = (event(0), event(0), event(2));
        ok!(cuEventQuery(fresh));
        ok!(cuEventRecord(timed, null_mut()));
        ok!(cuEventRecord(untimed, null_mut()));
        ok!(cuCtxSynchronize());
        let mut milliseconds = 0.0;
        let out = &raw mut milliseconds;
        let elapsed = |start, end| cu!(cuEventElapsedTime_v2(out, start, end));
        assert_eq!(elapsed(timed, timed), 0);
        assert_eq!(elapsed(timed, fresh), 400);
        assert_eq!(elapsed(timed, untimed), 400);
        ok!(cuEventDestroy_v2(timed));
        assert_eq!(elapsed(timed, timed), 400);
        fails!(cuEventDestroy_v2(timed) => 400);
        let mut wrong = null_mut();
        fails!(cuEventCreate(&raw mut wrong, 4) => 1, "events for other processes cannot record times");
        let mut wrong = null_mut();
        fails!(cuStreamCreate(&raw mut wrong, 0) => 1, "a stream that waits for the default stream");
    });
}

#[test]
fn event_of_other_device_is_rejected() {
    passes!("gpus=2", || {
        context(0);
        let (first, mark) = (stream(), event(0));
        context(1);
        let second = stream();
        fails!(cuEventRecord(mark, second) => 400);
        ok!(cuEventRecord(mark, first));
        ok!(cuStreamSynchronize(first));
        ok!(cuEventQuery(mark));
    });
}

#[test]
fn graph_replay_repeats_captured_work() {
    passes!("", || {
        let stream = stream();
        let device = allocate(64);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut executable) = (null_mut(), null_mut());
        fails!(cuStreamBeginCapture_v2(null_mut(), mode) => 900);
        fails!(cuStreamEndCapture(stream, &raw mut graph) => 401);
        ok!(cuMemsetD8_v2(device, 0, 64));
        ok!(cuStreamBeginCapture_v2(stream, mode));
        ok!(cuMemcpyDtoDAsync_v2(device + 1, device, 1, stream));
        ok!(cuMemsetD8Async(device, 5, 1, stream));
        ok!(cuMemFree_v2(allocate(64)));
        ok!(cuStreamEndCapture(stream, &raw mut graph));
        ok!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        ok!(cuGraphDestroy(graph));
        // Captured operations are not executed.
        assert_eq!(read(device, 3), [0, 0, 0]);
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(device, 3), [5, 0, 0]);
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(device, 3), [5, 5, 0]);
        ok!(cuGraphExecDestroy(executable));
        fails!(cuGraphLaunch(executable, stream) => 400);
        // Waiting for a captured operation makes the capture invalid.
        ok!(cuStreamBeginCapture_v2(stream, mode));
        fails!(cuStreamSynchronize(stream) => 900);
        fails!(cuMemsetD8Async(device, 5, 1, stream) => 901);
        fails!(cuStreamEndCapture(stream, &raw mut graph) => 901);
        ok!(cuStreamSynchronize(stream));
    }, {"leaks": {"graphs": 0}});
}
