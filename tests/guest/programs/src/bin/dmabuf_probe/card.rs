//! `edu` as a card that daq does not program: the command of `engine = "external"`, the design that it starts, and what must
//! have come of it.
//!
//! `edu` moves one block on command, so a process plays the design: it makes each frame in a page of its own, has
//! the device fetch it, and write it, and then the count.

use crate::machine::{Edu, Memory, TRANSFER, Why, address, find, why};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Direction, Module};
use serde_json::Value;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the design reads while it runs; it removes it at its end.
const JOB: &str = "/run/card.json";
/// Being there, it ends the design.
const STOP: &str = "/run/card.stop";
/// Where, in the design's own page, a frame, a word to write and a word that was read lie.
const FRAME: usize = 0;
const WORD: usize = TRANSFER;
const READ: usize = TRANSFER + 1024;

/// The bytes of a frame.
fn frame(number: u64) -> Vec<u8> {
    (0..TRANSFER as u64 / 8)
        .flat_map(|word| {
            (number << 32 | word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        })
        .collect()
}

/// The command: reads daq's input from standard input.
pub fn external() -> Result<(), Why> {
    let job: Value = serde_json::from_reader(std::io::stdin()).map_err(why("standard input"))?;
    match job["action"].as_str() {
        Some("start") => {
            let _ = fs::remove_file(STOP);
            fs::write(JOB, job.to_string()).map_err(why(JOB))?;
            let program = std::env::current_exe().map_err(why("own program"))?;
            let log = fs::File::create("/run/card.log").map_err(why("log"))?;
            Command::new(program)
                .arg("card")
                .stdin(Stdio::null())
                .stdout(log.try_clone().map_err(why("log"))?)
                .stderr(log)
                .spawn()
                .map_err(why("the design"))?;
            Ok(())
        }
        Some("stop") => stop(),
        other => Err(format!("action {other:?}")),
    }
}

/// Ends the design and waits until it has; daq says how long that may take.
pub fn stop() -> Result<(), Why> {
    fs::write(STOP, "").map_err(why(STOP))?;
    while Path::new(JOB).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// What the design has.
struct Design {
    edu: Edu,
    memory: Memory,
    own: Attachment,
}

impl Design {
    /// Bytes from the own page to bus address `to`.
    fn put(&self, offset: usize, bytes: &[u8], to: u64) -> Result<(), Why> {
        self.memory.write(offset, bytes)?;
        self.edu.fetch(address(&self.own, offset)?, bytes.len());
        self.edu.store(to, bytes.len());
        Ok(())
    }

    /// The word at bus address `from`.
    fn get(&self, from: u64) -> Result<u64, Why> {
        self.edu.fetch(from, 8);
        // Copied whole by the device before it says that it is done.
        self.edu.store(address(&self.own, READ)?, 8);
        let bytes = self.memory.read(READ, 8)?;
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| "a word of 8 bytes")?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The design: fills slot after slot until it is stopped.
pub fn card() -> Result<(), Why> {
    let job = fs::read_to_string(JOB).map_err(why(JOB))?;
    let result = serde_json::from_str(&job)
        .map_err(why("job"))
        .and_then(|job: Value| run(&job));
    fs::remove_file(JOB).map_err(why(JOB))?;
    result
}

fn run(job: &Value) -> Result<(), Why> {
    let number = |value: &Value| value.as_u64().ok_or_else(|| format!("{value} in {job}"));
    let slots = job["slots"].as_array().ok_or("no slots")?;
    let slots: Vec<u64> = slots
        .iter()
        .map(|slot| number(&slot["address"]))
        .collect::<Result<_, _>>()?;
    let first = usize::try_from(number(&job["first"])?).map_err(why("first"))?;
    let count = number(&job["count"]["address"])?;
    let credits = job["credits"]["address"].as_u64();
    // Not opened again, which would make it a master where it must not be one any more.
    let edu = Edu::look()?;
    let (dmabuf, memory) = Memory::host()?;
    let module = Module::open().map_err(why("module"))?;
    let own = module
        .map(dmabuf.as_fd(), edu.at, Direction::Both, None)
        .map_err(why("own page"))?;
    let design = Design { edu, memory, own };
    for n in 0.. {
        while let Some(credits) = credits
            && design.get(credits)? <= n
        {
            if Path::new(STOP).exists() {
                return Ok(());
            }
        }
        if Path::new(STOP).exists() {
            return Ok(());
        }
        let slot = (first + usize::try_from(n).map_err(why("frame"))?) % slots.len();
        design.put(FRAME, &frame(n), slots[slot])?;
        design.put(WORD, &(n + 1).to_le_bytes(), count)?;
    }
    Ok(())
}

/// Whether the files below `folder` hold at least `least` frames in their order, byte by byte: all from the first one on, or
/// some that `may_miss` up to as many between two.
pub fn check(folder: &str, least: &str, may_miss: &str) -> Result<(), Why> {
    let may_miss: u64 = may_miss.parse().map_err(why("frames"))?;
    let least: usize = least.parse().map_err(why("frames"))?;
    let mut files = Vec::new();
    collect(Path::new(folder), &mut files)?;
    files.sort();
    let mut bytes = Vec::new();
    for file in &files {
        bytes.extend(fs::read(file).map_err(why("file"))?);
    }
    if bytes.len() < least * TRANSFER || !bytes.len().is_multiple_of(TRANSFER) {
        return Err(format!(
            "{} bytes in {} files of {folder}, at least {least} frames of {TRANSFER} should be there",
            bytes.len(),
            files.len()
        ));
    }
    let mut next = 0;
    for found in bytes.chunks_exact(TRANSFER) {
        let number = (next..=next + may_miss).find(|n| frame(*n) == found);
        next = number.ok_or_else(|| {
            let differs = frame(next).iter().zip(found).position(|(a, b)| a != b);
            format!("what should be frame {next} differs from byte {differs:?} on")
        })? + 1;
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<(), Why> {
    for entry in fs::read_dir(folder).map_err(why("folder"))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "sigmf-data") {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether the device may do DMA.
pub fn is_master() -> Result<(), Why> {
    if Edu::look()?.is_master()? {
        Ok(())
    } else {
        Err(format!(
            "bus mastering of {} is off",
            find("0x1234", "0x11e8")?
        ))
    }
}
