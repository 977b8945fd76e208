//! Uses `edu` as a card that daq does not program. Contains the command of `engine = "external"`, the design that the
//! command starts, and the check of the result.
//!
//! `edu` moves one block per command, so a process simulates the design. The process creates each frame in its own
//! page, makes the device read it and write it to a slot, and then makes the device write the count.

use crate::machine::{Edu, Memory, TRANSFER, Why, address, find, why};
use daq_drivers::fpga::transports::dmabuf::{Attachment, Direction, Module};
use serde_json::Value;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// File that the design reads. The design removes it when it ends.
const JOB: &str = "/run/card.json";
/// The design ends when this file exists.
const STOP: &str = "/run/card.stop";
/// Offsets in the design's own page: of a frame, of a word to write, and of a word that was read.
const FRAME: usize = 0;
const WORD: usize = TRANSFER;
const READ: usize = TRANSFER + 1024;

/// Returns the bytes of a frame.
fn frame(number: u64) -> Vec<u8> {
    (0..TRANSFER as u64 / 8)
        .flat_map(|word| {
            (number << 32 | word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        })
        .collect()
}

/// The command. It reads the input of daq from standard input.
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
        other => Err(format!("unknown action {other:?}")),
    }
}

/// Makes the design end and waits for it. daq limits the time for this.
pub fn stop() -> Result<(), Why> {
    fs::write(STOP, "").map_err(why(STOP))?;
    while Path::new(JOB).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The resources of the design.
struct Design {
    edu: Edu,
    memory: Memory,
    own: Attachment,
}

impl Design {
    /// Writes `bytes` to bus address `to`, through the own page.
    fn put(&self, offset: usize, bytes: &[u8], to: u64) -> Result<(), Why> {
        self.memory.write(offset, bytes)?;
        self.edu.fetch(address(&self.own, offset)?, bytes.len());
        self.edu.store(to, bytes.len());
        Ok(())
    }

    /// Reads the word at bus address `from`.
    fn get(&self, from: u64) -> Result<u64, Why> {
        self.edu.fetch(from, 8);
        // The device reports completion only after it has copied the whole word.
        self.edu.store(address(&self.own, READ)?, 8);
        let bytes = self.memory.read(READ, 8)?;
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| "the word must have 8 bytes")?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The design: fills one slot after another until it is stopped.
pub fn card() -> Result<(), Why> {
    let job = fs::read_to_string(JOB).map_err(why(JOB))?;
    let result = serde_json::from_str(&job)
        .map_err(why("job"))
        .and_then(|job: Value| run(&job));
    fs::remove_file(JOB).map_err(why(JOB))?;
    result
}

fn run(job: &Value) -> Result<(), Why> {
    let number = |value: &Value| {
        value
            .as_u64()
            .ok_or_else(|| format!("{value} must be an unsigned integer in {job}"))
    };
    let slots = job["slots"].as_array().ok_or("the job has no slots")?;
    let slots: Vec<u64> = slots
        .iter()
        .map(|slot| number(&slot["address"]))
        .collect::<Result<_, _>>()?;
    let first = usize::try_from(number(&job["first"])?).map_err(why("first"))?;
    let count = number(&job["count"]["address"])?;
    let credits = job["credits"]["address"].as_u64();
    // Do not use `Edu::open`, because it would enable bus mastering again after daq has disabled it.
    let edu = Edu::find()?;
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

/// Checks that the files below `folder` contain at least `min` frames in order, and checks every byte. Up to
/// `may_miss` frames may be missing between two frames; with 0, the frames must begin with the first one.
pub fn check(folder: &str, min: &str, may_miss: &str) -> Result<(), Why> {
    let may_miss: u64 = may_miss.parse().map_err(why("frames"))?;
    let min: usize = min.parse().map_err(why("frames"))?;
    let mut files = Vec::new();
    collect(Path::new(folder), &mut files)?;
    files.sort();
    let mut bytes = Vec::new();
    for file in &files {
        bytes.extend(fs::read(file).map_err(why("file"))?);
    }
    if bytes.len() < min * TRANSFER || !bytes.len().is_multiple_of(TRANSFER) {
        return Err(format!(
            "expected at least {min} whole frames of {TRANSFER} bytes, found {} bytes in {} files of {folder}",
            bytes.len(),
            files.len()
        ));
    }
    let mut next = 0;
    for found in bytes.chunks_exact(TRANSFER) {
        let number = (next..=next + may_miss).find(|n| frame(*n) == found);
        next = number.ok_or_else(|| {
            let differs = frame(next).iter().zip(found).position(|(a, b)| a != b);
            format!("frame {next} is wrong from byte {differs:?} on")
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

/// Checks that bus mastering of the device is enabled.
pub fn is_master() -> Result<(), Why> {
    if Edu::find()?.is_master()? {
        Ok(())
    } else {
        Err(format!(
            "bus mastering of {} is off",
            find("0x1234", "0x11e8")?
        ))
    }
}
