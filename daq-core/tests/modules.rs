//! Tests that the modules of daq-core depend on each other in one direction only.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use std::fs;
use std::path::{Path, PathBuf};

/// Groups of modules, the lowest group first. A module may use modules of earlier groups and of its own group.
const ORDER: &[&[&str]] = &[
    &["sys"],
    &["sync", "file", "leak", "log_limit", "thread", "units"],
    &["frame", "layout", "config", "claim"],
    &["gpu"],
    &["region"],
    &["doorbell", "topology", "notify", "ledger"],
    &["ring"],
    &["reorder", "staging", "dma"],
    &["check", "sigmf"],
    &["source", "kernel", "sink", "outgoing", "recognise"],
    &["entry"],
    &["plan"],
];

fn rank(module: &str) -> usize {
    ORDER
        .iter()
        .position(|group| group.contains(&module))
        .unwrap_or_else(|| panic!("module {module} has no rank in ORDER"))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn modules_use_only_lower_modules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 100, "{} files", files.len());
    let mut upward = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&root).unwrap();
        let first = relative.components().next().unwrap().as_os_str();
        let module = Path::new(first).file_stem().unwrap().to_str().unwrap();
        if module == "lib" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_');
                let (used, rest) = used.split_at(end.unwrap_or(used.len()));
                // Exported macros belong to no module.
                if !rest.starts_with('!') && rank(used) > rank(module) {
                    upward.push(format!("{} uses {used}", relative.display()));
                }
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}
