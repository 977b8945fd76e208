//! `daq ls` lists the running pipelines of this user, and their rings.

use super::{exit, show};
use clap::Args as ClapArgs;
use daq_core::units::ByteSize;
use daq_pipelines::attach::client::{Client, ClientError};
use daq_pipelines::attach::{directories, sockets};
use daq_pipelines::console::print_error;
use daq_pipelines::program::state_directory;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Arguments of `daq ls`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// State directory of the pipelines, as given to `daq run`. Default: set by systemd or XDG variables.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Headings of the table of rings.
const HEADINGS: [&str; 9] = [
    "RING",
    "MEMORY",
    "SLOTS",
    "FRAME",
    "SAMPLES",
    "PUBLISHED",
    "CLIENTS",
    "GUARANTEE",
    "ATTACHABLE",
];

pub(super) fn ls(args: &Args) -> u8 {
    let directories = socket_directories(args.state_dir.as_deref());
    let mut pipelines = Vec::new();
    let mut code = 0;
    for path in sockets(&directories) {
        match Client::connect(&path).and_then(|mut client| client.list()) {
            Ok(mut pipeline) => {
                if let Some(members) = pipeline.as_object_mut() {
                    members.shift_remove("ok");
                }
                pipeline["socket"] = path.display().to_string().into();
                pipelines.push(pipeline);
            }
            // This is no pipeline, only a file that is left.
            Err(error @ ClientError::Killed { .. }) => print_error!("{error}"),
            Err(error) => {
                print_error!("error: {error}");
                code = exit::UNAVAILABLE;
            }
        }
    }
    if args.json {
        return show(&format!("{:#}\n", json!(pipelines))).max(code);
    }
    if pipelines.is_empty() && code == 0 {
        print_error!("{}", no_sockets(&directories));
        if unreadable(&directories).is_some() {
            code = exit::UNAVAILABLE;
        }
    }
    show(&pipelines.iter().map(table).collect::<Vec<_>>().join("\n")).max(code)
}

/// Returns the directories in which the sockets of pipelines can be.
pub(super) fn socket_directories(state_dir: Option<&Path>) -> Vec<PathBuf> {
    directories(state_directory(state_dir).as_deref())
}

/// Explains which of `directories` cannot be read; `None` if all that exist can.
pub(super) fn unreadable(directories: &[PathBuf]) -> Option<String> {
    directories.iter().find_map(|path| match path.read_dir() {
        Err(error) if error.kind() != ErrorKind::NotFound => Some(format!(
            "cannot read {}: {error}; use the account that runs the pipeline, root, or a member of the group in \
             `attach = {{ group = \"…\" }}`",
            path.display()
        )),
        _ => None,
    })
}

/// Explains why there is no socket in `directories`.
pub(super) fn no_sockets(directories: &[PathBuf]) -> String {
    if let Some(why) = unreadable(directories) {
        return why;
    }
    let searched: Vec<_> = directories
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    format!(
        "no pipeline runs: no sockets in {}; start one with `daq run`, or set --state-dir to the directory of a pipeline",
        searched.join(" and ")
    )
}

/// Formats a pipeline with a table of its rings.
fn table(pipeline: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for ring in pipeline["rings"].as_array().into_iter().flatten() {
        let layout = &ring["layout"];
        let complex = if layout["complex"] == true {
            "complex "
        } else {
            ""
        };
        let shape: Vec<_> = layout["shape"].as_array().into_iter().flatten().collect();
        let shape = shape.iter().map(ToString::to_string).collect::<Vec<_>>();
        let yes = |value: &Value| match value {
            Value::Bool(true) => "yes".to_owned(),
            Value::String(reason) => reason.clone(),
            _ => "no".to_owned(),
        };
        rows.push([
            text(&ring["name"]),
            text(&ring["memory"]),
            ring["slots"].to_string(),
            ByteSize(layout["frame_bytes"].as_u64().unwrap_or(0))
                .rounded()
                .to_string(),
            format!("{complex}{} [{}]", text(&layout["type"]), shape.join(", ")),
            ring["published"].to_string(),
            ring["clients"].to_string(),
            yes(&ring["guarantee"]),
            yes(&ring["attachable"]),
        ]);
    }
    let mut widths = [0; HEADINGS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let http = pipeline["http"].as_str();
    let http = http
        .map(|http| format!(", http://{http}/"))
        .unwrap_or_default();
    let mut table = format!(
        "pipeline {}: process {}, daq {}{http}, {}\n",
        text(&pipeline["pipeline"]),
        pipeline["pid"],
        text(&pipeline["version"]),
        text(&pipeline["socket"])
    );
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        table.push_str(&format!("  {}\n", line.trim_end()));
    }
    table
}
