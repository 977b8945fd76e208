//! Tests of the functions that describe the machine.

use crate::sys::context;
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::ffi::CStr;
use std::ptr::null_mut;

#[test]
fn devices_have_distinct_attributes() {
    passes!("gpus=2,memory=64MiB,version=12080,rdma=0", || {
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
        assert_eq!(
            cudarc::driver::result::device::get_name(0).unwrap(),
            "Simulated GPU"
        );
        let attribute = |attribute| {
            let mut value = -1;
            ok!(cuDeviceGetAttribute(&raw mut value, attribute, 0));
            value
        };
        assert_eq!(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            9
        );
        assert_eq!(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            132
        );
        assert_eq!(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            0
        );
        assert_eq!(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            1
        );
        let mut bytes = 0;
        ok!(cuDeviceTotalMem_v2(&raw mut bytes, 1));
        assert_eq!(bytes, 64 << 20);
    });
}

#[test]
fn calls_before_init_or_context_are_rejected() {
    passes!("", || {
        let (mut count, mut address) = (0, 0);
        fails!(cuDeviceGetCount(&raw mut count) => 3);
        fails!(cuInit(1) => 1);
        ok!(cuInit(0));
        fails!(cuMemAlloc_v2(&raw mut address, 1) => 201);
        let context = context(0);
        ok!(cuMemAlloc_v2(&raw mut address, 1));
        // A context belongs to the thread that made it current.
        let elsewhere = move || cu!(cuMemAlloc_v2(&raw mut address, 1));
        assert_eq!(std::thread::spawn(elsewhere).join().unwrap(), 201);
        let (mut flags, mut is_active) = (0, 0);
        fails!(cuDevicePrimaryCtxSetFlags_v2(0, 3) => 1);
        ok!(cuDevicePrimaryCtxSetFlags_v2(0, 4));
        ok!(cuDevicePrimaryCtxGetState(
            0,
            &raw mut flags,
            &raw mut is_active
        ));
        assert_eq!((flags, is_active), (4, 1));
        let mut current = null_mut();
        ok!(cuCtxGetCurrent(&raw mut current));
        assert_eq!(current, context);
        ok!(cuCtxSetCurrent(null_mut()));
        fails!(cuMemFree_v2(address) => 201);
    });
}

#[test]
fn machine_without_device_reports_none() {
    passes!("no-init=100", || {
        fails!(cuInit(0) => 100);
        let mut count = 0;
        fails!(cuDeviceGetCount(&raw mut count) => 3);
        let mut text = std::ptr::null();
        ok!(cuGetErrorName(
            cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE,
            &raw mut text
        ));
        let error = cudarc::driver::result::init().unwrap_err();
        assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_NO_DEVICE");
    });
}
