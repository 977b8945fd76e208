//! Checks a mapping that is revoked: its state, its event, and what is still held.

use crate::Check;
use crate::data::attach;
use crate::machine::{Edu, Memory, Why, folder, held, nothing_held, put, why};
use daq_drivers::fpga::transports::dmabuf::{
    Attachment, Direction, Function, Module, Reason, State,
};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Checks for every kind of boot.
pub const CHECKS: &[Check] = &[
    ("the exporter moves its memory", moved),
    ("a driver is bound to the device", bound),
    ("the device's driver is unbound", unbound),
    ("the device is bound to vfio-pci", given_to_vfio),
    ("the device is removed", removed),
];

/// Returns how often the event was raised since the last call.
fn events(attachment: &Attachment) -> Result<u64, Why> {
    let mut count = [0; 8];
    match rustix::io::read(attachment.revoked(), &mut count) {
        Ok(_) => Ok(u64::from_ne_bytes(count)),
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) => Err(format!("the event: {errno}")),
    }
}

/// Returns an error unless the mapping was revoked because of `reason`, and this was reported exactly once.
fn revoked(attachment: &Attachment, reason: Reason) -> Result<(), Why> {
    let state = attachment.state().map_err(why("state"))?;
    if state != State::Revoked(reason) {
        return Err(format!(
            "the mapping must be revoked because of {reason:?}, but its state is {state:?}"
        ));
    }
    match events(attachment)? {
        1 => Ok(()),
        count => Err(format!("expected 1 revocation event, found {count}")),
    }
}

fn live(attachment: &Attachment) -> Result<(), Why> {
    match (
        attachment.state().map_err(why("state"))?,
        events(attachment)?,
    ) {
        (State::Live, 0) => Ok(()),
        other => Err(format!(
            "the mapping must be live without events, but is {other:?}"
        )),
    }
}

/// Binds a device to a driver.
pub fn bind(device: Function, driver: &str) -> Result<(), Why> {
    put(folder(device).join("driver_override"), driver)?;
    put("/sys/bus/pci/drivers_probe", &device.to_string())?;
    let bound = folder(device).join("driver").read_link();
    let bound = bound.map_err(|error| format!("cannot bind {device} to {driver}: {error}"))?;
    if bound.file_name().is_some_and(|name| name == driver) {
        return Ok(());
    }
    Err(format!(
        "{device} must be bound to {driver}, but is bound to {}",
        bound.display()
    ))
}

/// Unbinds a device from its driver.
pub fn unbind(device: Function) -> Result<(), Why> {
    let unbind = folder(device).join("driver/unbind");
    put(unbind, &device.to_string())?;
    put(folder(device).join("driver_override"), "\n")
}

fn moved() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    let second = attach(&edu, &dmabuf)?;
    live(&attachment)?;
    for _ in 0..2 {
        crate::sys::move_bar(dmabuf.as_fd()).map_err(why("move"))?;
    }
    revoked(&attachment, Reason::Moved)?;
    revoked(&second, Reason::Moved)?;
    // The module must not unmap, because the owner of the mapping must first stop the DMA engine.
    match held()? {
        [2, _, 2] => {}
        other => {
            return Err(format!(
                "the numbers of attachments and maps must be 2; attachments, pins and maps are {other:?}"
            ));
        }
    }
    if !edu.is_master()? {
        return Err("bus mastering must stay on, but is off".to_owned());
    }
    drop(attachment);
    drop(second);
    nothing_held("unmapped")
}

fn bound() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    live(&attachment)?;
    bind(edu.at, "edu_driver")?;
    let result = revoked(&attachment, Reason::Rebound).and_then(|()| nothing_held("bound"));
    unbind(edu.at)?;
    result
}

fn unbound() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    bind(edu.at, "edu_driver")?;
    let module = Module::open().map_err(why("open"))?;
    let map = module.map(dmabuf.as_fd(), edu.at, Direction::Both, None);
    let attachment = map.map_err(why("map with a driver"));
    let held = held()?;
    unbind(edu.at)?;
    let attachment = attachment?;
    if held[0] != 1 {
        return Err(format!(
            "the number of attachments must be 1; attachments, pins and maps were {held:?}"
        ));
    }
    revoked(&attachment, Reason::Rebound)?;
    if edu.is_master()? {
        return Err("bus mastering is still on".to_owned());
    }
    nothing_held("unbound")
}

fn given_to_vfio() -> Result<(), Why> {
    let edu = Edu::open()?;
    if !folder(edu.at).join("iommu_group").exists() {
        return Err(format!(
            "{}VFIO needs an IOMMU, but this machine has none",
            crate::SKIP
        ));
    }
    let (dmabuf, _memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    bind(edu.at, "vfio-pci")?;
    let result =
        revoked(&attachment, Reason::Rebound).and_then(|()| nothing_held("bound to vfio-pci"));
    unbind(edu.at)?;
    result
}

fn removed() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (dmabuf, _memory) = Memory::bar(0)?;
    let attachment = attach(&edu, &dmabuf)?;
    let second = attach(&edu, &dmabuf)?;
    put(folder(edu.at).join("remove"), "1")?;
    let result = revoked(&attachment, Reason::Removed)
        .and_then(|()| revoked(&second, Reason::Removed))
        .and_then(|()| nothing_held("removed"));
    let module = Module::open().map_err(why("open"))?;
    let gone = module.map(dmabuf.as_fd(), edu.at, Direction::Both, None);
    drop(edu);
    put("/sys/bus/pci/rescan", "1")?;
    result?;
    if gone.is_ok() {
        return Err("mapping memory for a removed device must fail".to_owned());
    }
    // The old attachments must not apply to the device that was plugged in again.
    let edu = Edu::open()?;
    let third = attach(&edu, &dmabuf)?;
    drop(attachment);
    drop(second);
    live(&third)?;
    if held()?[0] != 1 {
        return Err(format!(
            "the number of attachments must be 1; attachments, pins and maps are {:?}",
            held()?
        ));
    }
    drop(third);
    nothing_held("unmapped")
}
