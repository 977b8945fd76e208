//! Checks how a mapping ends: the file is closed, or the process is killed, while the device is writing.

use crate::machine::{Edu, Memory, PAGE, TRANSFER, Why, nothing_held, why};
use crate::{Check, SKIP};
use daq_drivers::sys::dmabuf::{self, FROM_DEVICE, Segment};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// Checks for every kind of boot.
pub const CHECKS: &[Check] = &[
    (
        "file closed during DMA: nothing is written, bus mastering is off",
        closed,
    ),
    (
        "process killed during DMA: nothing is written, bus mastering is off",
        killed,
    ),
];

/// Content of memory that the device must not write.
const SENTINEL: u8 = 0xa5;
/// Number of attempts to end the mapping during a transfer. A transfer takes a tenth of a second.
const TRIES: usize = 20;

/// Maps the BAR with a file that never unmaps it. Returns the file and the first bus address.
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

/// Returns an error if a transfer was written to the first page, or if the device could still write.
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
        // The transfer was not complete when the file was closed, so it ended afterwards. On a slow machine it may have
        // been complete; then try again.
        if edu.is_running() {
            return nothing_landed(&edu, &bar, "closed");
        }
    }
    Err(format!(
        "{SKIP}every transfer ended before the file was closed"
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
    let output = child.stdout.take().map(BufReader::new);
    let output = output.and_then(|output| output.lines().map_while(Result::ok).next());
    // The transfers follow each other without a pause, so one is in flight at this time.
    child.kill().map_err(why("kill"))?;
    child.wait().map_err(why("wait"))?;
    if output.as_deref() != Some("writing") {
        return Err(format!(
            "the child process did not start to write; its output is {output:?}"
        ));
    }
    bar.write(0, &[SENTINEL; PAGE])?;
    // Do not use `Edu::open`, because it would enable bus mastering.
    let edu = Edu::find()?;
    nothing_landed(&edu, &bar, "killed")
}

/// Makes the device write to the BAR forever. Prints a line when the first transfer has started.
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
