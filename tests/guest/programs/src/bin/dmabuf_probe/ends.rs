//! How a mapping ends: its file closed or its process killed while the device is writing.

use crate::machine::{Edu, Memory, PAGE, TRANSFER, Why, nothing_held, why};
use crate::{Check, SKIP};
use daq_drivers::sys::dmabuf::{self, FROM_DEVICE, Segment};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// In any boot.
pub const CHECKS: &[Check] = &[
    (
        "closed in mid-DMA: nothing lands, bus mastering is off",
        closed,
    ),
    (
        "killed in mid-DMA: nothing lands, bus mastering is off",
        killed,
    ),
];

/// What memory holds that the device must not write.
const SENTINEL: u8 = 0xa5;
/// Tries to meet a transfer in flight; each has a tenth of a second for it.
const TRIES: usize = 20;

/// Maps the BAR on a file that never unmaps it; returns the file and the first bus address.
fn map_for_good(edu: &Edu) -> Result<(File, u64), Why> {
    let (memory, _bar) = Memory::bar(0)?;
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/daq_dmabuf")
        .map_err(why("/dev/daq_dmabuf"))?;
    let mut map = dmabuf::Map {
        flags: FROM_DEVICE,
        dmabuf_fd: memory.as_raw_fd(),
        revoke_eventfd: -1,
        domain: edu.at.domain,
        bus: edu.at.bus,
        devfn: edu.at.devfn,
        address_bits: 64,
        ..dmabuf::Map::default()
    };
    dmabuf::map(file.as_fd(), &mut map).map_err(why("map"))?;
    let mut first = [Segment::default()];
    dmabuf::segments(file.as_fd(), map.handle, 0, &mut first).map_err(why("segments"))?;
    Ok((file, first[0].address))
}

/// Fails if a transfer has reached the first page, or could.
fn nothing_landed(edu: &Edu, bar: &Memory, when: &str) -> Result<(), Why> {
    if edu.is_master()? {
        return Err(format!("{when}: bus mastering is still on"));
    }
    nothing_held(when)?;
    edu.wait();
    let found = bar.read(0, TRANSFER)?;
    match found.iter().position(|byte| *byte != SENTINEL) {
        None => Ok(()),
        Some(at) => Err(format!("{when}: the device still wrote byte {at}")),
    }
}

fn closed() -> Result<(), Why> {
    let (_memory, bar) = Memory::bar(0)?;
    for _ in 0..TRIES {
        let edu = Edu::open()?;
        let (file, to) = map_for_good(&edu)?;
        bar.write(0, &[SENTINEL; PAGE])?;
        edu.start_to(to);
        drop(file);
        // Not over when the file was closed, so the transfer came after that. A slow machine has it over: again.
        if edu.is_running() {
            return nothing_landed(&edu, &bar, "closed");
        }
    }
    Err(format!(
        "{SKIP}every transfer was over before the file was closed"
    ))
}

fn killed() -> Result<(), Why> {
    let (_memory, bar) = Memory::bar(0)?;
    let program = std::env::current_exe().map_err(why("own program"))?;
    let mut child = Command::new(program)
        .arg("hold")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(why("child"))?;
    let said = child.stdout.take().map(BufReader::new);
    let said = said.and_then(|said| said.lines().map_while(Result::ok).next());
    // Its transfers follow each other without a pause: one is in flight now.
    child.kill().map_err(why("kill"))?;
    child.wait().map_err(why("wait"))?;
    if said.as_deref() != Some("writing") {
        return Err(format!("the child did not come to write: {said:?}"));
    }
    bar.write(0, &[SENTINEL; PAGE])?;
    // Opened again, it would be a master again.
    let edu = Edu::look()?;
    nothing_landed(&edu, &bar, "killed")
}

/// Has the device write to the BAR for ever, and says so when the first transfer is under way.
pub fn hold() -> Result<(), Why> {
    let edu = Edu::open()?;
    let (_file, to) = map_for_good(&edu)?;
    edu.start_to(to);
    println!("writing");
    loop {
        edu.wait();
        edu.start_to(to);
    }
}
