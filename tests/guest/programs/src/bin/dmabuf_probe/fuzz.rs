//! Makes random calls with random arguments, while drivers are bound and unbound, memory moves, and the device is
//! unplugged. Nothing may remain mapped or pinned.

use crate::machine::{Memory, Why, find, folder, nothing_held, put, why};
use crate::revoke::{bind, unbind};
use crate::sys::{ARGUMENT, To, move_bar, raw};
use daq_drivers::fpga::transports::dmabuf::Function;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Runs the fuzzing for `seconds`.
pub fn fuzz(seconds: &str) -> Result<(), Why> {
    let limit = Duration::from_secs(seconds.parse().map_err(why("SECONDS"))?);
    let edu = find("0x1234", "0x11e8")?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let event = event.map_err(why("eventfd"))?;
    let kinds = [0, 1 << 1, 1 << 2, 1 << 3, 1 << 4].map(Memory::bar);
    let mut memory = kinds
        .into_iter()
        .map(|kind| kind.map(|(memory, _)| memory))
        .collect::<Result<Vec<_>, _>>()?;
    memory.push(Memory::host()?.0);
    let shared = open()?;
    let (stop, mapped) = (AtomicBool::new(false), AtomicU64::new(0));
    let (calls, turns) = thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|seed| {
                let (memory, event, shared) = (&memory, &event, &shared);
                let (stop, mapped) = (&stop, &mapped);
                scope.spawn(move || caller(seed, edu, memory, event, shared, stop, mapped))
            })
            .collect();
        let world = scope.spawn(|| world(edu, &memory, &stop));
        thread::sleep(limit);
        stop.store(true, Ordering::Relaxed);
        let calls: Result<u64, Why> = callers
            .into_iter()
            .map(|caller| caller.join().expect("a thread that makes calls panicked"))
            .sum();
        (
            calls,
            world
                .join()
                .expect("the thread that changes the machine panicked"),
        )
    });
    let (calls, turns, mapped) = (calls?, turns?, mapped.into_inner());
    println!(
        "{calls} calls, {mapped} successful maps, {turns} changes of driver, memory or device"
    );
    drop(shared);
    nothing_held("closed")?;
    // If nothing was mapped or changed, the fuzzing has tested nothing.
    if mapped == 0 || turns == 0 {
        return Err(
            "the fuzzing must map memory at least once and change the machine at least once"
                .to_owned(),
        );
    }
    Ok(())
}

fn open() -> Result<File, Why> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/daq_dmabuf")
        .map_err(why("/dev/daq_dmabuf"))
}

/// Makes random calls, on its own file and on a file shared with other threads.
fn caller(
    seed: u64,
    edu: Function,
    memory: &[OwnedFd],
    event: &OwnedFd,
    shared: &File,
    stop: &AtomicBool,
    mapped: &AtomicU64,
) -> Result<u64, Why> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut own = open()?;
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        calls += 1;
        if random.random_ratio(1, 64) {
            own = open()?;
        }
        let call = random.random_range(0..5);
        let mut argument = [0; ARGUMENT];
        let memory = &memory[random.random_range(0..memory.len())];
        let words: &[u32] = match call {
            0 => &[
                40,
                random.random_range(1..4),
                memory.as_raw_fd().cast_unsigned(),
                event.as_raw_fd().cast_unsigned(),
                edu.domain,
                u32::from(edu.bus) | u32::from(edu.devfn) << 8 | 64 << 16,
            ],
            1 => &[24, random.random_range(0..24), 0, 64],
            2 => &[24, random.random_range(0..24)],
            _ => &[8, random.random_range(0..24)],
        };
        for (at, word) in words.iter().enumerate() {
            argument[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        // Two of three calls have valid arguments, but may be made at a wrong time. In the third call, one byte is
        // random. The bytes that name the device are never changed: closing a file with another device mapped would
        // stop that device, for example the guest's disk.
        if random.random_ratio(1, 3) {
            let at = random.random_range(0..42);
            argument[if at < 16 { at } else { at + 6 }] = random.random();
        }
        let to = [To::Null, To::Kernel, To::Here][random.random_range(0..3)];
        let file = if random.random() { &own } else { shared };
        let answer = raw(file, call, &mut argument, to);
        if call == 0 && answer.is_ok() {
            mapped.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(calls)
}

/// Moves the memory, binds and unbinds the driver, and unplugs and plugs the device in turn. Leaves the device without
/// a driver.
fn world(edu: Function, memory: &[OwnedFd], stop: &AtomicBool) -> Result<u64, Why> {
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) || turns % 8 != 0 {
        match turns % 8 {
            0..5 => move_bar(memory[0].as_fd()).map_err(why("move"))?,
            5 => bind(edu, "edu_driver")?,
            6 => unbind(edu)?,
            _ => {
                put(folder(edu).join("remove"), "1")?;
                put("/sys/bus/pci/rescan", "1")?;
            }
        }
        turns += 1;
        thread::yield_now();
    }
    Ok(turns)
}
