//! Functions of the driver that describe the driver and its devices.

use super::context::device;
use super::{INITIALISED, Out, call, require};
use crate::attributes;
use crate::code::{Code, Result};
use crate::faults::OPTIONS;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Code {
    call!(cuInit).anytime(|| {
        require(flags == 0)?;
        match OPTIONS.no_init {
            0 if OPTIONS.gpus == 0 => Err(crate::code::NO_DEVICE),
            0 => {
                INITIALISED.store(true, Ordering::Release);
                Ok(())
            }
            code => Err(code),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    call!(cuDriverGetVersion).anytime(|| version.set(OPTIONS.version))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    call!(cuDeviceGetCount).initialised(|| count.set(OPTIONS.gpus))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(out: Out<c_int>, ordinal: c_int) -> Code {
    call!(cuDeviceGet).initialised(|| out.set(device(ordinal)?.ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<c_char>, room: c_int, ordinal: c_int) -> Code {
    call!(cuDeviceGetName).initialised(|| {
        device(ordinal)?;
        name.text("Simulated GPU", room)
    })
}

/// Returns 16 bytes that differ between devices only in the last byte.
fn uuid(ordinal: c_int) -> Result<[u8; 16]> {
    device(ordinal)?;
    let mut uuid = *b"daq simulated  0";
    uuid[15] += u8::try_from(ordinal).map_err(|_| crate::code::INVALID_DEVICE)?;
    Ok(uuid)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, ordinal: c_int) -> Code {
    call!(cuDeviceGetUuid).initialised(|| out.set(uuid(ordinal)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, ordinal: c_int) -> Code {
    call!(cuDeviceGetUuid_v2).initialised(|| out.set(uuid(ordinal)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, ordinal: c_int) -> Code {
    call!(cuDeviceGetAttribute).initialised(|| {
        require(attribute > 0)?;
        let ordinal = device(ordinal)?.ordinal;
        value.set(attributes::value(&OPTIONS, ordinal, attribute))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: c_int) -> Code {
    call!(cuDeviceTotalMem_v2).initialised(|| {
        device(ordinal)?;
        bytes.set(OPTIONS.memory)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(id: Out<c_char>, room: c_int, ordinal: c_int) -> Code {
    call!(cuDeviceGetPCIBusId).initialised(|| {
        let bus = attributes::bus(device(ordinal)?.ordinal);
        // Room for domain, bus, device, function and the terminating NUL.
        require(room >= 13)?;
        id.text(&format!("0000:{bus:02X}:00.0"), room)
    })
}
