//! Tests of device memory, host memory and rejected calls.

use crate::peers::memory_of;
use crate::sys::{
    access, allocate, allocation_code, context, dereference, mapped, properties, read, stream,
};
use crate::{cu, fails, ok, passes, run};
use cudarc::driver::sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemRangeHandleType,
};
use daq_testkit::this_test;
use std::os::unix::process::ExitStatusExt;

const GRANULE: usize = 2 << 20;

#[test]
fn device_address_accessed_by_cpu_faults() {
    const SEGV: i32 = 11;
    if let Some(ended) = run(this_test!(), "", "", || {
        context(0);
        println!("read {}", dereference(allocate(4096)));
    }) {
        assert_eq!(
            ended.output.status.signal(),
            Some(SEGV),
            "{}",
            ended.stderr()
        );
    }
}

#[test]
fn allocated_memory_is_poisoned() {
    passes!("", || {
        let address = allocate(5000);
        assert_eq!(read(address, 5000), [0xa5; 5000]);
        // Small allocations have no larger alignment guarantee.
        assert_eq!(address % 1024, 512);
    });
}

#[test]
fn allocation_beyond_device_memory_is_rejected() {
    passes!("memory=4MiB", || {
        let first = allocate(3 << 20);
        assert_eq!(allocation_code((1 << 20) + 1), 2);
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free, total), (1 << 20, 4 << 20));
        fails!(cuMemFree_v2(first + 1) => 1);
        ok!(cuMemFree_v2(first));
        fails!(cuMemFree_v2(first) => 1);
        assert_eq!(allocation_code(4 << 20), 0);
        assert_eq!(allocation_code(0), 1);
    });
}

#[test]
fn virtual_memory_calls_out_of_order_are_rejected() {
    passes!("", || {
        let (properties, access) = (properties(), access());
        let mut granularity = 0;
        let (result, wanted) = (&raw mut granularity, &raw const properties);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        ok!(cuMemGetAllocationGranularity(result, wanted, minimum));
        assert_eq!(granularity, GRANULE);
        let (mut handle, mut address) = (0, 0);
        fails!(cuMemCreate(&raw mut handle, GRANULE + 1, wanted, 0) => 1);
        ok!(cuMemCreate(&raw mut handle, GRANULE, wanted, 0));
        fails!(cuMemAddressReserve(&raw mut address, GRANULE / 2, 0, 0, 0) => 1);
        ok!(cuMemAddressReserve(&raw mut address, 2 * GRANULE, 0, 0, 0));
        fails!(cuMemMap(address + 4096, GRANULE, 0, handle, 0) => 1, "unaligned");
        fails!(cuMemMap(address, 2 * GRANULE, 0, handle, 0) => 1, "the range exceeds the memory");
        fails!(cuMemMap(address + 2 * GRANULE as u64, GRANULE, 0, handle, 0) => 1, "outside");
        fails!(cuMemMap(address, GRANULE, 0, handle + 1, 0) => 1, "unknown");
        fails!(cuMemSetAccess(address, GRANULE, &raw const access, 1) => 1, "not mapped");
        // Maps the same memory twice in a row, as rings do.
        let second = address + GRANULE as u64;
        ok!(cuMemMap(address, GRANULE, 0, handle, 0));
        fails!(cuMemMap(address, GRANULE, 0, handle, 0) => 1, "the range is already mapped");
        ok!(cuMemMap(second, GRANULE, 0, handle, 0));
        fails!(cuMemsetD8_v2(address, 1, 16) => 1, "access is not allowed yet");
        ok!(cuMemSetAccess(address, 2 * GRANULE, &raw const access, 1));
        assert_eq!(read(address, 32), [0xa5; 32]);
        // This fill crosses the boundary between the two mappings.
        ok!(cuMemsetD8_v2(second - 16, 9, 32));
        assert_eq!(read(address, 17), [&[9; 16][..], &[0xa5]].concat());
        let around = [&[0xa5; 4][..], &[9; 32], &[0xa5; 4]].concat();
        assert_eq!(read(second - 20, 40), around);
        fails!(cuMemFree_v2(address) => 1, "the memory was not allocated with an address");
        fails!(cuMemAddressFree(address, 2 * GRANULE) => 1, "mapped");
        let mut file = -1_i32;
        let out = (&raw mut file).cast();
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        ok!(cuMemExportToShareableHandle(out, handle, kind, 0));
        assert_eq!(mapped(file, 17), [&[9; 16][..], &[0xa5]].concat());
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        ok!(cuMemGetHandleForAddressRange(out, address, GRANULE, kind, 0));
        assert_eq!(mapped(file, 17), [&[9; 16][..], &[0xa5]].concat());
        ok!(cuMemRelease(handle));
        fails!(cuMemRelease(handle) => 1, "the handle was already released");
        // The mapping keeps the memory allocated.
        assert_eq!(read(address, 1), [9]);
        fails!(cuMemUnmap(address, GRANULE / 2) => 1, "a part");
        ok!(cuMemUnmap(address, GRANULE));
        ok!(cuMemUnmap(second, GRANULE));
        fails!(cuMemUnmap(second, GRANULE) => 1);
        fails!(cuMemsetD8_v2(address, 1, 16) => 1);
        fails!(cuMemAddressFree(address, GRANULE) => 1, "a part of a reservation");
        ok!(cuMemAddressFree(address, 2 * GRANULE));
    }, {"leaks": {"memory": 0, "reservations": 0}});
}

#[test]
fn memory_freed_during_pending_copy_breaks_context() {
    // The first copy takes so long that the memory of the second one is freed before it starts.
    passes!("latency=500000", || {
        let address = memory_of(0);
        let (stream, first) = (stream(), allocate(64));
        ok!(cuMemcpyDtoDAsync_v2(first + 32, first, 16, stream));
        ok!(cuMemcpyDtoDAsync_v2(address, first, 16, stream));
        ok!(cuMemUnmap(address, GRANULE));
        fails!(cuStreamSynchronize(stream) => 700);
        assert_eq!(allocation_code(64), 700);
    });
}

#[test]
fn host_memory_registered_twice_is_rejected() {
    passes!("", || {
        let mut host = vec![0_u8; 10_000];
        let at = |offset: usize| (host.as_ptr() as usize + offset) as *mut _;
        ok!(cuMemHostRegister_v2(at(0), 5000, 0));
        fails!(cuMemHostRegister_v2(at(4999), 10, 0) => 712);
        fails!(cuMemHostRegister_v2(at(0), 5000, 0) => 712);
        ok!(cuMemHostRegister_v2(at(5000), 5000, 1));
        fails!(cuMemHostUnregister(at(1)) => 713);
        ok!(cuMemHostUnregister(at(0)));
        fails!(cuMemHostUnregister(at(0)) => 713);
        fails!(cuMemHostRegister_v2(4096 as *mut _, 10, 0) => 1, "not mapped");
        host.clear();
    }, {"leaks": {"host": 1}});
}

#[test]
fn unsupported_feature_is_rejected() {
    passes!("rdma=0,posix-fd=0", || {
        let mut properties = properties();
        let mut handle = 0;
        let mut create = |properties: &_| cu!(cuMemCreate(&raw mut handle, GRANULE, properties, 0));
        assert_eq!(create(&properties), 801);
        properties.allocFlags.gpuDirectRDMACapable = 0;
        assert_eq!(create(&properties), 801);
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        assert_eq!(create(&properties), 0);
        let address = allocate(2 << 20);
        let mut file = 0_i32;
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let handle = (&raw mut file).cast();
        fails!(cuMemGetHandleForAddressRange(handle, address, 2 << 20, kind, 0) => 801);
    });
}

#[test]
fn virtual_memory_disabled_is_rejected() {
    passes!("vmm=0", || {
        let (mut handle, mut address) = (0, 0);
        let properties = properties();
        fails!(cuMemCreate(&raw mut handle, GRANULE, &raw const properties, 0) => 801);
        fails!(cuMemAddressReserve(&raw mut address, GRANULE, 0, 0, 0) => 801);
    });
}
