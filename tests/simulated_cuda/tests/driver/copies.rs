//! Tests that copies preserve the bytes.

use crate::sys::{allocate, location, read, register, stream};
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemorytype,
};
use std::ptr::null_mut;

fn bytes(count: usize) -> Vec<u8> {
    (0..count)
        .map(|n| u8::try_from(n * 31 % 251).unwrap())
        .collect()
}

#[test]
fn copy_to_within_and_from_device_preserves_bytes() {
    passes!("", || {
        let (one, other, stream) = (allocate(10_000), allocate(10_000), stream());
        // The source is registered with the driver, the destination is not.
        let mut from = bytes(10_000);
        register(&from);
        let mut to = vec![0_u8; 10_000];
        let (source, target) = (from.as_mut_ptr(), to.as_mut_ptr().cast());
        ok!(cuMemcpyHtoDAsync_v2(one, source.cast(), 10_000, stream));
        ok!(cuMemcpyDtoDAsync_v2(other + 1000, one, 9000, stream));
        ok!(cuMemsetD8Async(other, 7, 1000, stream));
        ok!(cuMemcpyDtoHAsync_v2(target, other, 10_000, stream));
        // Copies from unregistered memory are complete when the call returns.
        assert_eq!(to[..1000], [7; 1000]);
        assert_eq!(to[1000..], from[..9000]);
        let half = source.wrapping_add(5000).cast();
        ok!(cuMemcpyDtoHAsync_v2(half, one, 5000, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(from[5000..], bytes(10_000)[..5000]);
        ok!(cuMemHostUnregister(from.as_mut_ptr().cast()));
        ok!(cuStreamDestroy_v2(stream));
        ok!(cuMemFree_v2(one));
        ok!(cuMemFree_v2(other));
    }, {
        "copied": {"host_to_device": 10_000, "device_to_device": 9000, "device_to_host": 15_000},
        "unregistered": {"copies": 1, "bytes": 10_000},
        "copies": 4,
        "fills": 1,
        "calls": {"cuMemFree_v2": 2},
        "leaks": {"memory": 0, "host": 0, "streams": 0, "contexts": 1},
        "errors": {},
    });
}

#[test]
fn copy_2d_keeps_row_pitch() {
    passes!("", || {
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
        for (n, row) in read(device, pitch * rows).chunks(pitch).enumerate() {
            let mut expected = vec![0; pitch];
            if n >= 2 {
                expected[8..8 + width].copy_from_slice(&from[(n - 2) * width..][..width]);
            }
            assert_eq!(row, expected, "row {n}");
        }
        let (mut wrong, mut outside) = (plan, plan);
        wrong.srcPitch = width - 1;
        outside.Height = rows;
        fails!(cuMemcpy2DAsync_v2(&raw const wrong, null_mut()) => 1);
        fails!(cuMemcpy2DAsync_v2(&raw const outside, null_mut()) => 1);
    });
}

#[test]
fn copy_batch_copies_every_entry() {
    passes!("", || {
        let device = allocate(8192);
        let from = bytes(8192);
        register(&from);
        let (mut targets, mut sources, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..8_u64 {
            targets.push(device + 1024 * n);
            sources.push(from.as_ptr() as u64 + 1024 * (7 - n));
            sizes.push(1024);
        }
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: location(),
            dstLocHint: location(),
            flags: 0,
        };
        let mut firsts = [0];
        let stream = stream();
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
        // The default stream is rejected.
        assert_eq!(batch(8, null_mut()), 1);
        ok!(cuStreamSynchronize(stream));
        for (n, part) in read(device, 8192).chunks(1024).enumerate() {
            assert_eq!(part, &from[1024 * (7 - n)..][..1024]);
        }
    });
}

#[test]
fn copy_out_of_range_is_rejected() {
    passes!("", || {
        let device = allocate(1000);
        let mut host = vec![0_u8; 2000];
        let pointer = host.as_mut_ptr();
        let to = |to, count| cu!(cuMemcpyHtoDAsync_v2(to, pointer.cast(), count, null_mut()));
        assert_eq!(to(device, 1000), 0);
        assert_eq!(to(device, 1001), 1);
        assert_eq!(to(device + 1, 1000), 1);
        assert_eq!(to(device - 1, 10), 1);
        // A host address is not a device address, and vice versa.
        assert_eq!(to(pointer as u64 + 1000, 10), 1);
        fails!(cuMemcpyHtoDAsync_v2(device, device as *const _, 10, null_mut()) => 1);
        // A partly registered range is neither registered nor pageable memory.
        ok!(cuMemHostRegister_v2(pointer.cast(), 500, 0));
        assert_eq!(to(device, 1000), 1);
        assert_eq!(to(device, 500), 0);
        ok!(cuMemFree_v2(device));
        assert_eq!(to(device, 10), 1);
    });
}
