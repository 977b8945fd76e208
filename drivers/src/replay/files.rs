//! Finds the metadata files of a SigMF recording.

use daq_core::config::Problem;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Appends the metadata files of `path` to `metas`, in order.
pub(super) fn find(
    path: &Path,
    name: Option<&str>,
    metas: &mut Vec<PathBuf>,
) -> Result<(), Problem> {
    if !path.is_dir() {
        let meta = path.with_extension("sigmf-meta");
        if !path.exists() && !meta.exists() {
            let message = format!("{} does not exist", path.display());
            return Err(Problem::at("path", message)
                .help("correct `path`; relative paths start from the working directory"));
        }
        metas.push(meta);
        return Ok(());
    }
    let unreadable = |why: std::io::Error| {
        let message = format!("cannot read the directory {}: {why}", path.display());
        Problem::at("path", message).help("set a readable directory")
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        if entry
            .extension()
            .is_some_and(|extension| extension == "sigmf-meta")
        {
            found.push(entry);
        }
    }
    found.sort();
    let stems: BTreeSet<String> = found.iter().map(|path| stem(path)).collect();
    let list = || {
        stems
            .iter()
            .map(|stem| format!("\"{stem}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(name) = name {
        found.retain(|path| stem(path) == name);
        if found.is_empty() && !stems.is_empty() {
            let message = format!("{} contains no recording \"{name}\"", path.display());
            return Err(
                Problem::at("name", message).help(format!("available recordings: {}", list()))
            );
        }
    } else if stems.len() > 1 {
        let message = format!("{} contains {} recordings", path.display(), stems.len());
        return Err(
            Problem::at("path", message).help(format!("select one with `name`: {}", list()))
        );
    }
    if found.is_empty() {
        let message = format!("no .sigmf-meta file in {}", path.display());
        return Err(Problem::at("path", message)
            .help("set the directory of a recording, or a capture file"));
    }
    metas.append(&mut found);
    Ok(())
}

/// Returns the common start of the names of a recording's segments: everything before the number.
fn stem(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = stem.len() < name.len();
    let stem = stem
        .strip_suffix(['-', '_', '.'])
        .filter(|stem| numbered && !stem.is_empty());
    stem.unwrap_or(&name).to_owned()
}
