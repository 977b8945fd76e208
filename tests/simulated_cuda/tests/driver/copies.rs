//! Tests that copies preserve the bytes.

use crate::sys::context;
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemcpyAttributes, CUmemorytype};
use std::ptr::null_mut;

fn bytes(count: usize) -> Vec<u8> {
    (0..count)
        .map(|n| u8::try_from(n * 31 % 251).unwrap())
        .collect()
}

fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&raw mut address, bytes));
    address
}

#[test]
fn copy_to_within_and_from_device_preserves_bytes() {
    let report = passes!("", || {
        context(0);
        let (one, other) = (allocate(10_000), allocate(10_000));
        let mut from = bytes(10_000);
        let mut to = vec![0_u8; 10_000];
        // The source is registered with the driver, the destination is not.
        ok!(cuMemHostRegister_v2(from.as_mut_ptr().cast(), 10_000, 0));
        let mut stream = null_mut();
        ok!(cuStreamCreate(&raw mut stream, 1));
        ok!(cuMemcpyHtoDAsync_v2(
            one,
            from.as_ptr().cast(),
            10_000,
            stream
        ));
        ok!(cuMemcpyDtoDAsync_v2(other + 1000, one, 9000, stream));
        ok!(cuMemsetD8Async(other, 7, 500, stream));
        ok!(cuMemsetD32Async(other + 500, 0x0403_0201, 125, stream));
        ok!(cuMemcpyDtoHAsync_v2(
            to.as_mut_ptr().cast(),
            other,
            10_000,
            stream
        ));
        // Copies from unregistered memory are complete when the call returns.
        assert_eq!(to[..500], [7; 500]);
        assert_eq!(to[500..1000], [1, 2, 3, 4].repeat(125));
        assert_eq!(to[1000..], from[..9000]);
        ok!(cuMemcpyAsync(
            from.as_ptr() as u64 + 5000,
            one,
            5000,
            stream
        ));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(from[5000..], bytes(10_000)[..5000]);
        ok!(cuMemHostUnregister(from.as_mut_ptr().cast()));
        ok!(cuStreamDestroy_v2(stream));
        ok!(cuMemFree_v2(one));
        ok!(cuMemFree_v2(other));
    });
    let Some(report) = report else { return };
    let copied = &report["copied"];
    assert_eq!(copied["host_to_device"], 10_000);
    assert_eq!(copied["device_to_device"], 9000);
    assert_eq!(copied["device_to_host"], 15_000);
    assert_eq!(report["unregistered"]["copies"], 1);
    assert_eq!(report["unregistered"]["bytes"], 10_000);
    assert_eq!(report["copies"], 4);
    assert_eq!(report["fills"], 2);
    assert_eq!(report["calls"]["cuMemFree_v2"], 2);
    assert_eq!(report["leaks"]["memory"], 0);
    assert_eq!(report["leaks"]["host"], 0);
    assert_eq!(report["leaks"]["streams"], 0);
    assert_eq!(report["leaks"]["contexts"], 1);
    assert_eq!(report["errors"].as_object().unwrap().len(), 0);
}

#[test]
fn copy_2d_keeps_row_pitch() {
    passes!("", || {
        context(0);
        let (width, rows, pitch) = (100, 20, 256);
        let device = allocate(pitch * rows);
        ok!(cuMemsetD8_v2(device, 0, pitch * rows));
        let from = bytes(width * rows);
        let plan = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: from.as_ptr().cast(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: width,
            dstXInBytes: 8,
            dstY: 2,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: device,
            dstArray: null_mut(),
            dstPitch: pitch,
            WidthInBytes: width,
            Height: rows - 2,
        };
        ok!(cuMemcpy2DAsync_v2(&raw const plan, null_mut()));
        let mut to = vec![1; pitch * rows];
        ok!(cuMemcpyDtoH_v2(
            to.as_mut_ptr().cast(),
            device,
            pitch * rows
        ));
        for (n, row) in to.chunks(pitch).enumerate() {
            let mut expected = vec![0; pitch];
            if n >= 2 {
                expected[8..8 + width].copy_from_slice(&from[(n - 2) * width..][..width]);
            }
            assert_eq!(row, expected, "row {n}");
        }
        let wrong = CUDA_MEMCPY2D {
            srcPitch: width - 1,
            ..plan
        };
        fails!(cuMemcpy2DAsync_v2(&raw const wrong, null_mut()) => 1);
        let outside = CUDA_MEMCPY2D {
            Height: rows,
            ..plan
        };
        fails!(cuMemcpy2DAsync_v2(&raw const outside, null_mut()) => 1);
    });
}

#[test]
fn copy_batch_copies_every_entry() {
    passes!("", || {
        context(0);
        let device = allocate(8192);
        let mut from = bytes(8192);
        ok!(cuMemHostRegister_v2(from.as_mut_ptr().cast(), 8192, 0));
        let (mut targets, mut sources, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..8_u64 {
            targets.push(device + 1024 * n);
            sources.push(from.as_ptr() as u64 + 1024 * (7 - n));
            sizes.push(1024);
        }
        let zero = crate::sys::location();
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder:
                cudarc::driver::sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: zero,
            dstLocHint: zero,
            flags: 0,
        };
        let mut firsts = [0];
        let mut stream = null_mut();
        ok!(cuStreamCreate(&raw mut stream, 1));
        let mut batch = |count, stream| {
            cu!(cuMemcpyBatchAsync_v2(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                sizes.as_mut_ptr(),
                count,
                &raw mut attributes,
                firsts.as_mut_ptr(),
                1,
                stream,
            ))
        };
        assert_eq!(batch(8, stream), 0);
        assert_eq!(batch(0, stream), 1);
        assert_eq!(
            batch(8, null_mut()),
            1,
            "the default stream must be rejected"
        );
        ok!(cuStreamSynchronize(stream));
        let mut to = vec![0; 8192];
        ok!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), device, 8192));
        for (n, part) in to.chunks(1024).enumerate() {
            assert_eq!(part, &from[1024 * (7 - n)..][..1024]);
        }
    });
}

#[test]
fn copy_out_of_range_is_rejected() {
    passes!("", || {
        context(0);
        let device = allocate(1000);
        let mut host = vec![0_u8; 2000];
        let pointer = host.as_mut_ptr();
        let to = |to, count| cu!(cuMemcpyHtoDAsync_v2(to, pointer.cast(), count, null_mut()));
        assert_eq!(to(device, 1000), 0);
        assert_eq!(to(device, 1001), 1);
        assert_eq!(to(device + 1, 1000), 1);
        assert_eq!(to(device - 1, 10), 1);
        assert_eq!(
            to(pointer as u64 + 1000, 10),
            1,
            "the address is not a device address"
        );
        fails!(cuMemcpyHtoDAsync_v2(device, device as *const _, 10, null_mut()) => 1);
        // A partly registered range is neither registered nor pageable memory.
        ok!(cuMemHostRegister_v2(pointer.cast(), 500, 0));
        assert_eq!(to(device, 1000), 1);
        assert_eq!(to(device, 500), 0);
        ok!(cuMemFree_v2(device));
        assert_eq!(to(device, 10), 1);
    });
}
