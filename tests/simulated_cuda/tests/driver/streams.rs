//! Tests of streams, events and graphs.

use crate::sys::{context, gate};
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::{CUevent, CUstream, CUstreamCaptureMode};
use std::ptr::null_mut;
use std::time::Duration;

fn stream() -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&raw mut stream, 1));
    stream
}

fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&raw mut event, flags));
    event
}

fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&raw mut address, bytes));
    address
}

#[test]
fn copy_that_hangs_blocks_only_its_stream() {
    let report = passes!("hang=copy@1", || {
        context(0);
        let (hung, waiting, free) = (stream(), stream(), stream());
        let (before, after, end) = (event(0), event(0), event(2));
        let device = allocate(64);
        ok!(cuEventRecord(before, hung));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, hung));
        ok!(cuEventRecord(after, hung));
        ok!(cuStreamWaitEvent(waiting, after, 0));
        ok!(cuEventRecord(end, waiting));
        ok!(cuEventSynchronize(before));
        // By the end of the following operations the waiting stream would be done too, if it were not blocked.
        let (mut to, done) = ([0_u8; 4], event(0));
        ok!(cuMemsetD8Async(device, 3, 4, free));
        ok!(cuMemcpyDtoHAsync_v2(
            to.as_mut_ptr().cast(),
            device,
            4,
            free
        ));
        ok!(cuEventRecord(done, free));
        ok!(cuEventSynchronize(done));
        ok!(cuStreamQuery(free));
        assert_eq!(to, [3; 4]);
        fails!(cuEventQuery(after) => 600);
        fails!(cuEventQuery(end) => 600);
        fails!(cuStreamQuery(hung) => 600);
        fails!(cuStreamQuery(waiting) => 600);
        let mut milliseconds = 0.0;
        fails!(cuEventElapsedTime_v2(&raw mut milliseconds, before, after) => 600);
    });
    if let Some(report) = report {
        assert_eq!(report["copies"], 2);
        assert_eq!(report["leaks"]["streams"], 3);
        assert_eq!(report["leaks"]["events"], 4);
        assert_eq!(report["leaks"]["memory"], 1);
    }
}

#[test]
fn async_copies_run_in_stream_order() {
    passes!("latency=2000,gbps=1", || {
        context(0);
        let stream = stream();
        let (start, end) = (event(0), event(0));
        let device = allocate(4096);
        let mut host = vec![0_u8; 2 * 4096];
        let (from, to) = (host.as_mut_ptr(), host.as_mut_ptr().wrapping_add(4096));
        ok!(cuMemHostRegister_v2(from.cast(), 2 * 4096, 0));
        ok!(cuEventRecord(start, stream));
        for n in 0..20_u8 {
            ok!(cuMemsetD8Async(device, n, 4096, stream));
            ok!(cuMemcpyDtoHAsync_v2(
                to.wrapping_add(usize::from(n) * 200).cast(),
                device,
                200,
                stream
            ));
        }
        ok!(cuEventRecord(end, stream));
        ok!(cuEventSynchronize(end));
        ok!(cuEventQuery(end));
        ok!(cuStreamQuery(stream));
        for n in 0..20_u8 {
            assert_eq!(host[4096 + usize::from(n) * 200..][..200], [n; 200]);
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
        context(0);
        let (fresh, timed, untimed) = (event(0), event(0), event(2));
        ok!(cuEventQuery(fresh));
        ok!(cuEventSynchronize(fresh));
        ok!(cuEventRecord(timed, null_mut()));
        ok!(cuEventRecord(untimed, null_mut()));
        ok!(cuCtxSynchronize());
        let mut milliseconds = 0.0;
        let mut elapsed =
            |start, end| cu!(cuEventElapsedTime_v2(&raw mut milliseconds, start, end));
        assert_eq!(elapsed(timed, timed), 0);
        assert_eq!(elapsed(timed, fresh), 400);
        assert_eq!(elapsed(timed, untimed), 400);
        ok!(cuEventDestroy_v2(timed));
        assert_eq!(elapsed(timed, timed), 400);
        fails!(cuEventDestroy_v2(timed) => 400);
        let mut wrong = null_mut();
        fails!(
            cuEventCreate(&raw mut wrong, 4) => 1,
            "events for other processes cannot record times"
        );
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
        ok!(cuStreamWaitEvent(second, mark, 0));
        ok!(cuStreamSynchronize(second));
        ok!(cuEventQuery(mark));
    });
}

#[test]
fn default_stream_and_blocking_streams_serialise() {
    passes!("", || {
        context(0);
        let mut blocking = null_mut();
        ok!(cuStreamCreate(&raw mut blocking, 0));
        for (first, second) in [(blocking, null_mut()), (null_mut(), blocking)] {
            let held = event(0);
            gate::shut();
            ok!(cuLaunchHostFunc(first, Some(gate::pass), null_mut()));
            ok!(cuEventRecord(held, second));
            // A stream that does not wait is usually detected within 20 attempts. A stream that waits is never
            // reported.
            for _ in 0..20 {
                fails!(cuEventQuery(held) => 600);
                std::thread::sleep(Duration::from_millis(1));
            }
            // Other streams do not wait.
            let done = event(0);
            ok!(cuEventRecord(done, stream()));
            ok!(cuEventSynchronize(done));
            gate::open();
            ok!(cuEventSynchronize(held));
        }
    });
}

#[test]
fn graph_replay_repeats_captured_work() {
    let report = passes!("", || {
        context(0);
        let stream = stream();
        let device = allocate(64);
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let (mut graph, mut executable) = (null_mut(), null_mut());
        fails!(cuStreamBeginCapture_v2(null_mut(), relaxed) => 900);
        fails!(cuStreamEndCapture(stream, &raw mut graph) => 401);
        ok!(cuMemsetD8_v2(device, 0, 64));
        ok!(cuStreamBeginCapture_v2(stream, relaxed));
        ok!(cuMemcpyDtoDAsync_v2(device + 1, device, 1, stream));
        ok!(cuMemsetD8Async(device, 5, 1, stream));
        ok!(cuMemFree_v2(allocate(64)));
        ok!(cuStreamEndCapture(stream, &raw mut graph));
        ok!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        ok!(cuGraphDestroy(graph));
        let mut to = [9_u8; 3];
        let mut read = || {
            ok!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), device, 3));
            to
        };
        assert_eq!(
            read(),
            [0, 0, 0],
            "captured operations must not be executed"
        );
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(), [5, 0, 0]);
        ok!(cuGraphLaunch(executable, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(), [5, 5, 0]);
        ok!(cuGraphExecDestroy(executable));
        fails!(cuGraphLaunch(executable, stream) => 400);
        // Waiting for a captured operation makes the capture invalid.
        ok!(cuStreamBeginCapture_v2(stream, relaxed));
        fails!(cuStreamSynchronize(stream) => 900);
        fails!(cuMemsetD8Async(device, 5, 1, stream) => 901);
        fails!(cuStreamEndCapture(stream, &raw mut graph) => 901);
        ok!(cuStreamSynchronize(stream));
    });
    if let Some(report) = report {
        assert_eq!(report["leaks"]["graphs"], 0);
    }
}
