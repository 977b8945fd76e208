//! Tests of the functions that describe the machine.

use crate::sys::context;
use crate::{cu, fails, ok, run};
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult};
use daq_testkit::this_test;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Runs a body in a process of its own, which must succeed.
fn without_context(test: &str, options: &str, body: impl FnOnce()) {
    if let Some(ended) = run(test, "", options, body) {
        assert!(ended.output.status.success(), "{}", ended.stderr());
    }
}

#[test]
fn devices_have_distinct_attributes() {
    without_context(
        this_test!(),
        "gpus=2,memory=64MiB,version=12080,rdma=0",
        || {
            let mut version = 0;
            ok!(cuDriverGetVersion(&raw mut version));
            assert_eq!(version, 12_080);
            ok!(cuInit(0));
            let (mut count, mut device) = (0, 0);
            ok!(cuDeviceGetCount(&raw mut count));
            assert_eq!(count, 2);
            fails!(cuDeviceGet(&raw mut device, 2) => 101);
            let mut seen = Vec::new();
            for ordinal in 0..2 {
                ok!(cuDeviceGet(&raw mut device, ordinal));
                let uuid = cudarc::driver::result::device::get_uuid(device).unwrap();
                let mut place = [1; 16];
                ok!(cuDeviceGetPCIBusId(place.as_mut_ptr(), 16, device));
                let place: Vec<u8> = place.map(i8::cast_unsigned).into();
                let place = CStr::from_bytes_until_nul(&place).unwrap().to_owned();
                seen.push((uuid.bytes, place));
            }
            assert_eq!(seen[0].1.as_c_str(), c"0000:AB:00.0");
            assert_ne!(seen[0], seen[1]);
            let name = cudarc::driver::result::device::get_name(0).unwrap();
            assert_eq!(name, "Simulated GPU");
            for (attribute, expected) in [
                (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
                (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
                (Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0),
                (Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1),
            ] {
                let mut value = -1;
                ok!(cuDeviceGetAttribute(&raw mut value, attribute, 0));
                assert_eq!(value, expected, "{attribute:?}");
            }
            let mut bytes = 0;
            ok!(cuDeviceTotalMem_v2(&raw mut bytes, 1));
            assert_eq!(bytes, 64 << 20);
        },
    );
}

#[test]
fn calls_before_init_or_context_are_rejected() {
    without_context(this_test!(), "", || {
        let (mut count, mut address) = (0, 0);
        fails!(cuDeviceGetCount(&raw mut count) => 3);
        fails!(cuInit(1) => 1);
        ok!(cuInit(0));
        fails!(cuMemAlloc_v2(&raw mut address, 1) => 201);
        context(0);
        ok!(cuMemAlloc_v2(&raw mut address, 1));
        // A context belongs to the thread that made it current.
        let elsewhere = move || cu!(cuMemAlloc_v2(&raw mut address, 1));
        assert_eq!(std::thread::spawn(elsewhere).join().unwrap(), 201);
        ok!(cuCtxSetCurrent(null_mut()));
        fails!(cuMemFree_v2(address) => 201);
    });
}

#[test]
fn machine_without_device_reports_none() {
    without_context(this_test!(), "no-init=100", || {
        fails!(cuInit(0) => 100);
        let mut count = 0;
        fails!(cuDeviceGetCount(&raw mut count) => 3);
        let mut text = std::ptr::null();
        ok!(cuGetErrorName(
            CUresult::CUDA_ERROR_NO_DEVICE,
            &raw mut text
        ));
        let error = cudarc::driver::result::init().unwrap_err();
        assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_NO_DEVICE");
    });
}
