//! Tests that a device accesses the memory of another device only where the driver allows it.

use crate::sys::{access, context, location, properties, read, stream};
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::{
    CUdevice_P2PAttribute, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation,
};

const GRANULE: usize = 2 << 20;

fn location_of(ordinal: i32) -> CUmemLocation {
    CUmemLocation {
        id: ordinal,
        ..location()
    }
}

fn access_by(ordinal: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location_of(ordinal),
        ..access()
    }
}

/// Grants a device access to memory; returns the code.
fn grant(address: u64, ordinal: i32) -> i32 {
    let access = access_by(ordinal);
    cu!(cuMemSetAccess(address, GRANULE, &raw const access, 1))
}

/// Allocates memory of a device, to which only this device has access.
pub(crate) fn memory_of(ordinal: i32) -> u64 {
    let properties = CUmemAllocationProp {
        location: location_of(ordinal),
        ..properties()
    };
    let (mut handle, mut address) = (0, 0);
    ok!(cuMemCreate(
        &raw mut handle,
        GRANULE,
        &raw const properties,
        0
    ));
    ok!(cuMemAddressReserve(&raw mut address, GRANULE, 0, 0, 0));
    ok!(cuMemMap(address, GRANULE, 0, handle, 0));
    assert_eq!(grant(address, ordinal), 0);
    address
}

fn can_access(ordinal: i32, peer: i32) -> bool {
    let mut can = -1;
    ok!(cuDeviceCanAccessPeer(&raw mut can, ordinal, peer));
    can == 1
}

#[test]
fn copy_to_peer_needs_granted_access() {
    passes!("gpus=2", || {
        context(1);
        let target = memory_of(1);
        ok!(cuMemsetD8_v2(target, 1, 16));
        ok!(cuCtxSynchronize());
        context(0);
        let (source, stream) = (memory_of(0), stream());
        ok!(cuMemsetD8_v2(source, 7, 16));
        ok!(cuCtxSynchronize());
        fails!(cuMemcpyDtoDAsync_v2(target, source, 8, stream) => 1, "no access is granted");
        fails!(cuMemsetD8_v2(target, 2, 8) => 1, "no access is granted");
        assert_eq!(grant(target, 0), 0);
        ok!(cuMemcpyDtoDAsync_v2(target, source, 8, stream));
        ok!(cuStreamSynchronize(stream));
        context(1);
        assert_eq!(read(target, 16), [[7; 8], [1; 8]].concat());
        fails!(cuMemcpyDtoDAsync_v2(target, source, 8, std::ptr::null_mut()) => 1, "access has a direction");
    }, {"copied": {"peer": 8, "device_to_device": 0}});
}

#[test]
fn excluded_pair_gets_no_access() {
    passes!("gpus=3,no-peer=1:0", || {
        for (one, other, expected) in [
            (0, 1, false),
            (1, 0, false),
            (0, 2, true),
            (2, 1, true),
            (0, 0, false),
        ] {
            assert_eq!(can_access(one, other), expected, "{one} to {other}");
        }
        let mut can = -1;
        fails!(cuDeviceCanAccessPeer(&raw mut can, 0, 3) => 101);
        let target = memory_of(1);
        assert_eq!(grant(target, 0), 101);
        assert_eq!(grant(target, 2), 0);
    });
}

/// Returns whether a device has native atomic operations on the memory of a peer.
fn has_atomics(ordinal: i32, peer: i32) -> bool {
    let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut has = -1;
    ok!(cuDeviceGetP2PAttribute(
        &raw mut has,
        attribute,
        ordinal,
        peer
    ));
    has == 1
}

#[test]
fn only_nvlink_has_native_atomics() {
    passes!("gpus=3,no-peer=0:2", || {
        assert!(has_atomics(0, 1));
        assert!(!has_atomics(0, 2));
    });
}

#[test]
fn pcie_peers_have_no_native_atomics() {
    passes!("gpus=2,nvlink=0", || {
        assert!(!has_atomics(0, 1));
        assert!(can_access(0, 1));
    });
}

#[test]
fn copy_to_failed_peer_breaks_context_of_copying_device() {
    passes!("gpus=2,fail=cuMemGetInfo_v2@1:700", || {
        context(1);
        let target = memory_of(1);
        context(0);
        let (source, stream) = (memory_of(0), stream());
        assert_eq!(grant(target, 0), 0);
        context(1);
        let (mut free, mut total) = (0, 0);
        fails!(cuMemGetInfo_v2(&raw mut free, &raw mut total) => 700);
        context(0);
        ok!(cuMemcpyDtoDAsync_v2(target, source, 8, stream));
        fails!(cuStreamSynchronize(stream) => 700);
    });
}
