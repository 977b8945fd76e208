//! Tests of injected faults.

use crate::sys::{allocate, allocation_code, context, event, stream};
use crate::{cu, fails, ok, passes, run};
use daq_testkit::{assert_contains, this_test};

#[test]
fn fault_injected_into_one_call_fails_only_that_call() {
    passes!("fail=cuMemAlloc_v2@2:2", || {
        assert_eq!([(); 3].map(|()| allocation_code(64)), [0, 2, 0]);
    }, {"errors": {"2": 1}, "calls": {"cuMemAlloc_v2": 3}});
}

#[test]
fn stream_error_is_sticky() {
    passes!("fail-async=COPY@2:719", || {
        let (device, stream, event) = (allocate(64), stream(), event(2));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemcpyDtoDAsync_v2(device, device + 32, 32, stream));
        // Each call may return before or after the failure. The wait must return the error.
        let recorded = cu!(cuEventRecord(event, stream));
        assert!(recorded == 0 || recorded == 719, "{recorded}");
        fails!(cuStreamSynchronize(stream) => 719);
        fails!(cuEventQuery(event) => 719);
        assert_eq!(allocation_code(64), 719);
        fails!(cuCtxSynchronize() => 719);
        // Calls that release objects return the error too, but the objects do not count as leaks.
        fails!(cuMemFree_v2(device) => 719);
        fails!(cuEventDestroy_v2(event) => 719);
        fails!(cuStreamDestroy_v2(stream) => 719);
        // Calls without a context still work.
        let mut count = 0;
        ok!(cuDeviceGetCount(&raw mut count));
    }, {"leaks": {"streams": 0, "events": 0, "memory": 0}});
}

#[test]
fn fatal_call_breaks_context() {
    passes!("gpus=2,fail=cuCtxSynchronize@1:214", || {
        fails!(cuCtxSynchronize() => 214);
        assert_eq!(allocation_code(64), 214);
        // The other device is not affected.
        context(1);
        assert_eq!(allocation_code(64), 0);
    });
}

#[test]
fn invalid_options_abort_process() {
    if let Some(ended) = run(this_test!(), "", "gpu=2", || {
        context(0);
    }) {
        assert_contains!(ended.stderr() => "option \"gpu=2\" is not understood");
    }
}
