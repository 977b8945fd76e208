//! Moves the debug sections of the release binary into `target/release/daq.debug` if gcc and objcopy are installed.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

const SCRIPT: &str = "split-debug";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SCRIPT}");
    if env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let wrapper = format!("sh,{}", Path::new(&folder).join(SCRIPT).display());
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    // clang does not support `-wrapper`.
    let accepts_wrapper = succeeds(Command::new(linker).args(["-wrapper", &wrapper]).args([
        "-x",
        "c",
        "-E",
        "/dev/null",
    ]));
    if accepts_wrapper && succeeds(Command::new("objcopy").arg("--version")) {
        println!("cargo::rustc-link-arg-bin=daq=-wrapper");
        println!("cargo::rustc-link-arg-bin=daq={wrapper}");
    } else {
        println!(
            "cargo::warning=gcc or objcopy is not installed; the binary keeps its debug sections"
        );
    }
}

fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}
