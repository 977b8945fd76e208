//! Checks the kernel module `daq_dmabuf` in the test guest (tests/guest), with QEMU's `edu` as the DMA device. Usage:
//! `dmabuf_probe GROUP [OPTION...]`. Prints a line `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for each check.

mod machine;
mod sys;

mod card;
mod data;
mod ends;
mod fuzz;
mod refusals;
mod revoke;

use machine::Why;

/// One check: its name, and the function that performs it.
type Check = (&'static str, fn() -> Result<(), Why>);

/// Prefix of the reason of a check that does not apply.
const SKIP: &str = "skip: ";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["data"] => run(data::CHECKS),
        ["data", "translated"] => run(data::TRANSLATED),
        ["data", "bare"] => run(data::BARE),
        ["refusals"] => run(refusals::CHECKS),
        ["refusals", "translated"] => run(refusals::TRANSLATED),
        ["refusals", "vfio"] => run(refusals::VFIO),
        ["refusals", "bounce"] => run(refusals::BOUNCE),
        ["ends"] => run(ends::CHECKS),
        ["revoke"] => run(revoke::CHECKS),
        ["fuzz", seconds] => run_one(
            "random calls with random arguments while drivers, memory and device change",
            &|| fuzz::fuzz(seconds),
        ),
        ["open"] => match daq_drivers::fpga::transports::dmabuf::Module::open() {
            Ok(_) => println!("opened"),
            Err(error) => println!("{error}"),
        },
        ["hold"] => {
            if let Err(why) = ends::hold() {
                println!("FAIL hold: {why}");
            }
        }
        ["external"] => exit(card::external()),
        ["card"] => exit(card::card()),
        ["stop"] => exit(card::stop()),
        ["master"] => exit(card::is_master()),
        ["frames", folder, min, may_miss] => exit(card::check(folder, min, may_miss)),
        _ => {
            eprintln!(
                "usage: dmabuf_probe data|refusals|ends|revoke|fuzz|open|hold|external|card|stop|master|frames [OPTION]"
            );
            std::process::exit(64);
        }
    }
}

/// Exits. If `result` is an error, prints the reason first.
fn exit(result: Result<(), Why>) {
    if let Err(why) = result {
        println!("{why}");
        std::process::exit(1);
    }
}

fn run(checks: &[Check]) {
    for (name, check) in checks {
        run_one(name, check);
    }
}

fn run_one(name: &str, check: &dyn Fn() -> Result<(), Why>) {
    match check() {
        Ok(()) => println!("ok {name}"),
        Err(why) => match why.strip_prefix(SKIP) {
            Some(why) => println!("skip {name}: {why}"),
            None => println!("FAIL {name}: {why}"),
        },
    }
}
