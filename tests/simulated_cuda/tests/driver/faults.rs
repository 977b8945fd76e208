//! Tests of injected faults.

use crate::sys::context;
use crate::{alone, cu, fails, ok, passes};
use std::ptr::null_mut;

fn allocate() -> (i32, u64) {
    let mut address = 0;
    (cu!(cuMemAlloc_v2(&raw mut address, 64)), address)
}

#[test]
fn fault_injected_into_one_call_fails_only_that_call() {
    let report = passes!("fail=cuMemAlloc_v2@2:2", || {
        context(0);
        assert_eq!(allocate().0, 0);
        assert_eq!(allocate().0, 2);
        assert_eq!(allocate().0, 0);
    });
    if let Some(report) = report {
        assert_eq!(report["errors"], serde_json::json!({"2": 1}));
        assert_eq!(report["calls"]["cuMemAlloc_v2"], 3);
    }
}

#[test]
fn stream_error_is_sticky() {
    let report = passes!("fail-async=COPY@2:719", || {
        context(0);
        let (_, device) = allocate();
        let (mut stream, mut event) = (null_mut(), null_mut());
        ok!(cuStreamCreate(&raw mut stream, 1));
        ok!(cuEventCreate(&raw mut event, 2));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, stream));
        // Each call may return before or after the failure. The wait must return the error.
        let recorded = cu!(cuEventRecord(event, stream));
        assert!(recorded == 0 || recorded == 719, "{recorded}");
        fails!(cuStreamSynchronize(stream) => 719);
        fails!(cuEventQuery(event) => 719);
        fails!(cuEventSynchronize(event) => 719);
        assert_eq!(allocate().0, 719);
        fails!(cuCtxSynchronize() => 719);
        // Calls that release objects return the error too, but the objects do not count as leaks.
        fails!(cuMemFree_v2(device) => 719);
        fails!(cuEventDestroy_v2(event) => 719);
        fails!(cuStreamDestroy_v2(stream) => 719);
        // Calls without a context still work.
        let mut count = 0;
        ok!(cuDeviceGetCount(&raw mut count));
        // A new context works again.
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(allocate().0, 709);
        context(0);
        assert_eq!(allocate().0, 0);
    });
    if let Some(report) = report {
        let leaks = &report["leaks"];
        assert_eq!(
            (&leaks["streams"], &leaks["events"]),
            (&0.into(), &0.into())
        );
        assert_eq!(leaks["memory"], 1);
    }
}

#[test]
fn fatal_call_breaks_context() {
    passes!("gpus=2,fail=cuStreamQuery@1:214", || {
        context(0);
        fails!(cuStreamQuery(null_mut()) => 214);
        assert_eq!(allocate().0, 214);
        // The other device is not affected.
        context(1);
        assert_eq!(allocate().0, 0);
    });
}

#[test]
fn destroyed_context_frees_its_objects() {
    let report = passes!("memory=1MiB", || {
        let first = context(0);
        context(0);
        let (_, device) = allocate();
        let mut stream = null_mut();
        ok!(cuStreamCreate(&raw mut stream, 1));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        fails!(cuMemsetD8_v2(device, 1, 1) => 0, "the context was retained twice");
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        fails!(cuDevicePrimaryCtxRelease_v2(0) => 201);
        assert_eq!(context(0), first);
        fails!(cuMemsetD8_v2(device, 1, 1) => 1);
        fails!(cuStreamQuery(stream) => 400);
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(free, total);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
    });
    if let Some(report) = report {
        let leaks = &report["leaks"];
        assert_eq!(
            (&leaks["memory"], &leaks["memory_bytes"]),
            (&1.into(), &64.into())
        );
        assert_eq!(
            (&leaks["streams"], &leaks["contexts"]),
            (&1.into(), &0.into())
        );
    }
}

#[test]
fn invalid_options_abort_process() {
    let ended = alone!("gpu=2", || {
        context(0);
    });
    if let Some(ended) = ended {
        let stderr = String::from_utf8_lossy(&ended.output.stderr);
        assert!(
            stderr.contains("option \"gpu=2\" is not understood"),
            "{stderr}"
        );
    }
}
