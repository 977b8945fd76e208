//! Functions of the driver that describe the driver and its devices.

use super::context::device;
use super::{INITIALISED, Out, driver, require};
use crate::attributes;
use crate::code::{INVALID_DEVICE, NO_DEVICE, NOT_SUPPORTED};
use crate::faults::OPTIONS;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

driver! {
    anytime() fn cuInit(flags: c_uint) {
        require(flags == 0)?;
        match OPTIONS.no_init {
            0 if OPTIONS.gpus == 0 => Err(NO_DEVICE),
            0 => {
                INITIALISED.store(true, Ordering::Release);
                Ok(())
            }
            code => Err(code),
        }
    }

    anytime() fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(OPTIONS.version)
    }

    initialised() fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(OPTIONS.gpus)
    }

    initialised() fn cuDeviceGet(out: Out<c_int>, ordinal: c_int) {
        out.set(device(ordinal)?.ordinal)
    }

    initialised() fn cuDeviceGetName(name: Out<c_char>, room: c_int, ordinal: c_int) {
        device(ordinal)?;
        name.text("Simulated GPU", room)
    }

    /// Returns 16 bytes that differ between devices only in the last byte.
    initialised() fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, ordinal: c_int) {
        let mut uuid = *b"daq simulated  0";
        uuid[15] += u8::try_from(device(ordinal)?.ordinal).map_err(|_| INVALID_DEVICE)?;
        out.set(uuid)
    }

    initialised() fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, ordinal: c_int) {
        require(attribute > 0)?;
        device(ordinal)?;
        value.set(attributes::value(&OPTIONS, attribute))
    }

    initialised() fn cuDeviceCanAccessPeer(value: Out<c_int>, ordinal: c_int, peer: c_int) {
        value.set(device(ordinal)?.can_access(device(peer)?).into())
    }

    initialised() fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, ordinal: c_int, peer: c_int) {
        const ACCESS: c_int = 2;
        const NATIVE_ATOMICS: c_int = 3;
        let can_access = device(ordinal)?.can_access(device(peer)?);
        require(ordinal != peer)?;
        match attribute {
            ACCESS => value.set(can_access.into()),
            NATIVE_ATOMICS => value.set((can_access && OPTIONS.nvlink).into()),
            _ => Err(NOT_SUPPORTED),
        }
    }

    initialised() fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: c_int) {
        device(ordinal)?;
        bytes.set(OPTIONS.memory)
    }

    initialised() fn cuDeviceGetPCIBusId(id: Out<c_char>, room: c_int, ordinal: c_int) {
        let bus = attributes::bus(device(ordinal)?.ordinal);
        // Room for domain, bus, device, function and the terminating NUL.
        require(room >= 13)?;
        id.text(&format!("0000:{bus:02X}:00.0"), room)
    }
}
