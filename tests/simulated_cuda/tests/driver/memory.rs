//! Tests of device memory, host memory and rejected calls.

use crate::sys::{access, context, dereference, gate, mapped, properties};
use crate::{alone, cu, fails, ok, passes};
use cudarc::driver::sys::{CUmemAllocationHandleType, CUmemRangeHandleType};
use std::os::unix::process::ExitStatusExt;
use std::ptr::null_mut;

const GRANULE: usize = 2 << 20;

fn allocate(bytes: usize) -> (i32, u64) {
    let mut address = 0;
    (cu!(cuMemAlloc_v2(&raw mut address, bytes)), address)
}

fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    ok!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), address, bytes));
    to
}

#[test]
fn device_address_accessed_by_cpu_faults() {
    let ended = alone!("", || {
        context(0);
        let (_, address) = allocate(4096);
        println!("read {}", dereference(address));
    });
    if let Some(ended) = ended {
        const SEGV: i32 = 11;
        assert_eq!(
            ended.output.status.signal(),
            Some(SEGV),
            "{:?}",
            ended.output
        );
    }
}

#[test]
fn allocated_memory_is_poisoned() {
    passes!("", || {
        context(0);
        let (code, address) = allocate(5000);
        assert_eq!(code, 0);
        assert_eq!(read(address, 5000), [0xa5; 5000]);
        // Small allocations have no larger alignment guarantee.
        assert_eq!(address % 1024, 512);
    });
}

#[test]
fn allocation_beyond_device_memory_is_rejected() {
    passes!("memory=4MiB", || {
        context(0);
        let (code, first) = allocate(3 << 20);
        assert_eq!(code, 0);
        assert_eq!(allocate((1 << 20) + 1).0, 2);
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free, total), (1 << 20, 4 << 20));
        fails!(cuMemFree_v2(first + 1) => 1);
        ok!(cuMemFree_v2(first));
        fails!(cuMemFree_v2(first) => 1);
        assert_eq!(allocate(4 << 20).0, 0);
        assert_eq!(allocate(0).0, 1);
    });
}

#[test]
fn virtual_memory_calls_out_of_order_are_rejected() {
    let report = passes!("", || {
        context(0);
        let (properties, access) = (properties(), access());
        let mut granularity = 0;
        let minimum =
            cudarc::driver::sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        ok!(cuMemGetAllocationGranularity(
            &raw mut granularity,
            &raw const properties,
            minimum
        ));
        assert_eq!(granularity, GRANULE);
        let (mut handle, mut address) = (0, 0);
        fails!(cuMemCreate(&raw mut handle, GRANULE + 1, &raw const properties, 0) => 1);
        ok!(cuMemCreate(
            &raw mut handle,
            GRANULE,
            &raw const properties,
            0
        ));
        fails!(cuMemAddressReserve(&raw mut address, GRANULE / 2, 0, 0, 0) => 1);
        ok!(cuMemAddressReserve(&raw mut address, 2 * GRANULE, 0, 0, 0));
        fails!(cuMemMap(address + 4096, GRANULE, 0, handle, 0) => 1, "unaligned");
        fails!(
            cuMemMap(address, 2 * GRANULE, 0, handle, 0) => 1,
            "the range exceeds the memory"
        );
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
        assert_eq!(
            read(second - 20, 40),
            [&[0xa5; 4][..], &[9; 32], &[0xa5; 4]].concat()
        );
        fails!(cuMemFree_v2(address) => 1, "the memory was not allocated with an address");
        fails!(cuMemAddressFree(address, 2 * GRANULE) => 1, "mapped");
        let mut file = -1_i32;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        ok!(cuMemExportToShareableHandle(
            (&raw mut file).cast(),
            handle,
            kind,
            0
        ));
        assert_eq!(mapped(file, 17), [&[9; 16][..], &[0xa5]].concat());
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        ok!(cuMemGetHandleForAddressRange(
            (&raw mut file).cast(),
            address,
            GRANULE,
            kind,
            0
        ));
        assert_eq!(mapped(file, 17), [&[9; 16][..], &[0xa5]].concat());
        ok!(cuMemRelease(handle));
        fails!(cuMemRelease(handle) => 1, "the handle was already released");
        assert_eq!(
            read(address, 1),
            [9],
            "the mapping keeps the memory allocated"
        );
        fails!(cuMemUnmap(address, GRANULE / 2) => 1, "a part");
        ok!(cuMemUnmap(address, GRANULE));
        ok!(cuMemUnmap(second, GRANULE));
        fails!(cuMemUnmap(second, GRANULE) => 1);
        fails!(cuMemsetD8_v2(address, 1, 16) => 1);
        fails!(
            cuMemAddressFree(address, GRANULE) => 1,
            "a part of a reservation cannot be freed"
        );
        ok!(cuMemAddressFree(address, 2 * GRANULE));
    });
    if let Some(report) = report {
        assert_eq!(report["leaks"]["memory"], 0);
        assert_eq!(report["leaks"]["reservations"], 0);
    }
}

#[test]
fn memory_freed_during_pending_copy_breaks_context() {
    passes!("", || {
        context(0);
        let (properties, access) = (properties(), access());
        let (mut handle, mut address) = (0, 0);
        ok!(cuMemCreate(
            &raw mut handle,
            GRANULE,
            &raw const properties,
            0
        ));
        ok!(cuMemAddressReserve(&raw mut address, GRANULE, 0, 0, 0));
        ok!(cuMemMap(address, GRANULE, 0, handle, 0));
        ok!(cuMemSetAccess(address, GRANULE, &raw const access, 1));
        let mut stream = null_mut();
        ok!(cuStreamCreate(&raw mut stream, 1));
        let (_, first) = allocate(64);
        ok!(cuLaunchHostFunc(stream, Some(gate::pass), null_mut()));
        ok!(cuMemcpyDtoDAsync_v2(address, first, 16, stream));
        ok!(cuMemUnmap(address, GRANULE));
        gate::open();
        fails!(cuStreamSynchronize(stream) => 700);
        assert_eq!(allocate(64).0, 700);
    });
}

#[test]
fn host_memory_registered_twice_is_rejected() {
    let report = passes!("", || {
        context(0);
        let mut host = vec![0_u8; 10_000];
        let at = |offset: usize| (host.as_ptr() as usize + offset) as *mut _;
        ok!(cuMemHostRegister_v2(at(0), 5000, 0));
        fails!(cuMemHostRegister_v2(at(4999), 10, 0) => 712);
        fails!(cuMemHostRegister_v2(at(0), 5000, 0) => 712);
        ok!(cuMemHostRegister_v2(at(5000), 5000, 1));
        fails!(cuMemHostUnregister(at(1)) => 713);
        let mut address = 0;
        ok!(cuMemHostGetDevicePointer_v2(&raw mut address, at(9), 0));
        assert_eq!(address, at(9) as u64);
        ok!(cuMemHostUnregister(at(0)));
        fails!(cuMemHostUnregister(at(0)) => 713);
        fails!(cuMemHostGetDevicePointer_v2(&raw mut address, at(9), 0) => 1);
        fails!(cuMemHostRegister_v2(4096 as *mut _, 10, 0) => 1, "not mapped");
        let mut pinned = null_mut();
        ok!(cuMemHostAlloc(&raw mut pinned, 100, 0));
        fails!(cuMemHostUnregister(pinned) => 1);
        fails!(cuMemFreeHost(at(5000)) => 1);
        ok!(cuMemFreeHost(pinned));
        host.clear();
    });
    if let Some(report) = report {
        assert_eq!(report["leaks"]["host"], 1);
    }
}

#[test]
fn unsupported_feature_is_rejected() {
    passes!("rdma=0,posix-fd=0", || {
        context(0);
        let mut properties = properties();
        let mut handle = 0;
        let mut create = |properties: &_| cu!(cuMemCreate(&raw mut handle, GRANULE, properties, 0));
        assert_eq!(create(&properties), 801);
        properties.allocFlags.gpuDirectRDMACapable = 0;
        assert_eq!(create(&properties), 801);
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        assert_eq!(create(&properties), 0);
        let (_, address) = allocate(2 << 20);
        let mut file = 0_i32;
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let handle = (&raw mut file).cast();
        fails!(cuMemGetHandleForAddressRange(handle, address, 2 << 20, kind, 0) => 801);
    });
}

#[test]
fn virtual_memory_disabled_is_rejected() {
    passes!("vmm=0", || {
        context(0);
        let (mut handle, mut address) = (0, 0);
        let properties = properties();
        fails!(cuMemCreate(&raw mut handle, GRANULE, &raw const properties, 0) => 801);
        fails!(cuMemAddressReserve(&raw mut address, GRANULE, 0, 0, 0) => 801);
    });
}
