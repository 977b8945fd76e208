//! Checks that the committed bindings of libibverbs and librdmacm are equal to bindings generated from the headers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMMITTED: &str = "src/sys/ffi/bindings.rs";
/// The rdma-core version of the committed file. Later versions append functions and values.
const HEADERS: &str = "44";

/// Returns the reason why the bindings cannot be generated on this machine, if any.
fn missing() -> Option<String> {
    let header = Path::new("/usr/include/rdma/rdma_cma.h");
    if !header.exists() {
        return Some(format!("{} is absent", header.display()));
    }
    let pkgconfig = Path::new("/usr/lib/x86_64-linux-gnu/pkgconfig/libibverbs.pc");
    let text = fs::read_to_string(pkgconfig).unwrap_or_default();
    // The line has the form `Version: 1.14.44.0`.
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("Version: ")?.split('.').nth(2));
    if version != Some(HEADERS) {
        return Some(format!(
            "the headers are of rdma-core {}, the bindings of {HEADERS}",
            version.unwrap_or("?")
        ));
    }
    if !has_libclang() {
        return Some("libclang is absent".to_owned());
    }
    None
}

/// Returns true if libclang with its C interface is installed. `libclang-cpp.so` is a different library.
fn has_libclang() -> bool {
    let named = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let llvm = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let llvm = llvm.filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-"));
    let folders = llvm
        .map(|entry| entry.path().join("lib"))
        .chain([PathBuf::from("/usr/lib/x86_64-linux-gnu")])
        .chain(named);
    folders.into_iter().any(|folder| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.into_iter().any(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            name.starts_with("libclang.so")
                || name.strip_prefix("libclang-").is_some_and(|rest| {
                    rest.starts_with(|first: char| first.is_ascii_digit()) && rest.contains(".so")
                })
        })
    })
}

#[test]
fn committed_bindings_regenerated_from_headers_are_equal() {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut generator = Command::new(env!("CARGO"));
    generator
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(here.join("bindings/Cargo.toml"))
        .arg("--target-dir")
        .arg(here.join("../../target/bindings"));
    let output = generator.output().expect("cargo runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let generated = String::from_utf8(output.stdout).expect("bindings are UTF-8");
    let committed = here.join(COMMITTED);
    if env::var_os("DAQ_UPDATE").is_some() {
        fs::write(&committed, &generated).expect("the bindings can be written");
    }
    let text = fs::read_to_string(&committed).expect("the bindings can be read");
    if let Some((number, (was, is))) = (1..)
        .zip(text.lines().zip(generated.lines()))
        .find(|(_, (was, is))| was != is)
    {
        panic!("{COMMITTED}:{number}: committed `{was}`, generated `{is}`; run with DAQ_UPDATE=1");
    }
    assert_eq!(
        text.len(),
        generated.len(),
        "the lengths differ; run with DAQ_UPDATE=1"
    );
}
