//! The user-supplied command that programs the card, and its input.

use daq_core::dma::Slots;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fpga::wait::{SlowWait, wait_until};

/// Maximum number of bytes of the command's output that an error contains.
const MAX_OUTPUT: usize = 2048;

/// The action that the command must perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Start the card.
    Start,
    /// Stop the card, and exit when no write is in flight.
    Stop,
}

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
        }
    }
}

/// A memory range in bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryRange {
    /// Bus address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
}

/// The command's standard input, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CommandInput {
    /// The action to perform.
    pub action: Action,
    /// The card's PCI address.
    pub device: String,
    /// The slots in the order in which the card fills them. After the last slot it continues with the first.
    pub slots: Vec<MemoryRange>,
    /// Index of the slot that is filled first.
    pub first: usize,
    /// Memory to which the card writes the number of slots filled since the start: 64 bits, little-endian.
    pub count: MemoryRange,
    /// Memory from which the card reads the number of slots that it may fill since the start; `null` without
    /// backpressure.
    pub credits: Option<MemoryRange>,
}

impl CommandInput {
    /// Creates the input for `slots`, with counters at `count` and `credits`.
    pub(crate) fn new(
        action: Action,
        device: &str,
        slots: &Slots,
        count: u64,
        credits: Option<u64>,
    ) -> Self {
        let word = |address| MemoryRange { address, bytes: 8 };
        let bytes = slots.bytes;
        Self {
            action,
            device: device.to_owned(),
            slots: slots
                .addresses
                .iter()
                .map(|&address| MemoryRange { address, bytes })
                .collect(),
            first: slots.first,
            count: word(count),
            credits: credits.map(word),
        }
    }
}

/// Reason why the command did not succeed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The command failed.
    Failed(String),
    /// The pipeline stops, so the command was killed.
    Cancelled,
}

impl From<String> for CommandError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// The user-supplied command, with its arguments, its directory and its timeout.
#[derive(Clone, Debug)]
pub(crate) struct ExternalCommand {
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    timeout: Duration,
}

impl ExternalCommand {
    /// Creates the command from `words`, to run in `directory`. Returns `None` if `words` is empty.
    pub(crate) fn new(words: &[String], directory: &Path, timeout: Duration) -> Option<Self> {
        let (program, arguments) = words.split_first()?;
        let directory = std::path::absolute(directory).ok()?;
        Some(Self {
            // A name without `/` is searched in PATH.
            program: if program.contains('/') {
                directory.join(program)
            } else {
                program.into()
            },
            arguments: arguments.to_vec(),
            directory,
            timeout,
        })
    }

    /// Returns the maximum run time.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs the command with `input` on its standard input, and waits until the command exits with status 0. An error contains
    /// the command's output. If `is_stopping` returns true, the command is killed.
    pub(crate) fn run(
        &self,
        input: &CommandInput,
        is_stopping: &dyn Fn() -> bool,
    ) -> Result<(), CommandError> {
        let action = input.action.name();
        let program = self.program.display();
        let cannot =
            |what: &str, error: &io::Error| format!("{program} ({action}) {what}: {error}");
        let document = serde_json::to_vec(input).map_err(|error| {
            cannot(
                "was not run, because its input could not be written",
                &io::Error::other(error),
            )
        })?;
        // Files instead of pipes: neither side blocks, and a process that inherits them does not delay the end.
        let files = || -> io::Result<(File, File)> {
            let mut input = memory_file()?;
            input.write_all(&document)?;
            input.rewind()?;
            Ok((input, memory_file()?))
        };
        let (input, mut log) = files().map_err(|error| {
            cannot(
                "was not run, because its input could not be written",
                &error,
            )
        })?;
        let output = || log.try_clone().map(Stdio::from);
        let run = || -> io::Result<Child> {
            Command::new(&self.program)
                .args(&self.arguments)
                .current_dir(&self.directory)
                .stdin(Stdio::from(input))
                .stdout(output()?)
                .stderr(output()?)
                // The command runs in its own process group, so that its child processes can be killed too, and Ctrl-C
                // does not reach it.
                .process_group(0)
                .spawn()
        };
        let mut child = run().map_err(|error| {
            cannot("cannot be started", &error)
                + "; correct `command`: check that the file exists and is executable"
        })?;
        let mut ended = None;
        let (mut slow, mut is_cancelled) = (SlowWait::start(), false);
        let in_time = wait_until(self.timeout, || match child.try_wait() {
            Ok(None) => {
                slow.log(|| format!("{program} ({action})"));
                is_cancelled = is_stopping();
                is_cancelled
            }
            Ok(Some(status)) => {
                ended = Some(Ok(status));
                true
            }
            Err(error) => {
                ended = Some(Err(error));
                true
            }
        });
        if !in_time || is_cancelled {
            kill(&mut child);
        }
        if is_cancelled {
            return Err(CommandError::Cancelled);
        }
        let output = output_tail(&mut log);
        match ended {
            Some(Ok(status)) if status.success() => {
                if !output.is_empty() {
                    tracing::info!("{program} ({action}){output}");
                }
                Ok(())
            }
            Some(Ok(status)) => Err(format!("{program} ({action}): {status}{output}").into()),
            Some(Err(error)) => {
                Err(cannot("was started, but waiting for its exit failed", &error).into())
            }
            None => Err(format!(
                "{program} ({action}) did not exit within {:?} and was killed; raise `timeout` if the command needs \
                 more time{output}",
                self.timeout
            )
            .into()),
        }
    }
}

/// Kills the process group of the command.
fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // The child was not waited for yet, so its ID is still valid.
    if let Some(group) = group
        && let Err(error) = kill_process_group(group, Signal::KILL)
    {
        tracing::debug!("cannot kill process group {group:?}: {error}");
    }
    if let Err(error) = child.wait() {
        tracing::warn!("process {}: {error}", child.id());
    }
}

fn memory_file() -> io::Result<File> {
    let file = rustix::fs::memfd_create("daq-command", MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// Returns the end of the output in `log`, formatted as the end of a sentence.
fn output_tail(log: &mut File) -> String {
    let mut bytes = Vec::new();
    if log.rewind().is_err() || log.read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let from = bytes.len().saturating_sub(MAX_OUTPUT);
    let text = String::from_utf8_lossy(&bytes[from..]);
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!("; output: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> CommandInput {
        let slots = Slots {
            addresses: vec![0x1_0000_0000, 0x2000],
            bytes: 4096,
            first: 1,
            doorbell: None,
            placement: daq_core::region::Placement::Host,
        };
        CommandInput::new(Action::Start, "0000:3b:00.0", &slots, 0x9000, Some(0x9040))
    }

    fn shell(script: &str, timeout: Duration) -> Result<(), String> {
        let words = ["sh", "-c", script].map(str::to_owned);
        let command = ExternalCommand::new(&words, Path::new("."), timeout).unwrap();
        run(&command, &input())
    }

    fn run(command: &ExternalCommand, input: &CommandInput) -> Result<(), String> {
        command.run(input, &|| false).map_err(|error| match error {
            CommandError::Failed(why) => why,
            CommandError::Cancelled => panic!("cancelled"),
        })
    }

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn command_input_matches_guide() {
        let document = serde_json::to_value(input()).unwrap();
        let expected = serde_json::json!({
            "action": "start",
            "device": "0000:3b:00.0",
            "slots": [
                { "address": 4_294_967_296_u64, "bytes": 4096 },
                { "address": 8192, "bytes": 4096 },
            ],
            "first": 1,
            "count": { "address": 36864, "bytes": 8 },
            "credits": { "address": 36928, "bytes": 8 },
        });
        assert_eq!(document, expected);
        let mut stop = input();
        (stop.action, stop.credits) = (Action::Stop, None);
        let input = serde_json::to_value(stop).unwrap();
        assert_eq!(input["action"], "stop");
        assert!(input["credits"].is_null());
    }

    #[test]
    fn command_reads_document_from_stdin() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["sh", "-c", "cat >input"].map(str::to_owned);
        let command = ExternalCommand::new(&words, folder.path(), LONG).unwrap();
        // The input is longer than a pipe can hold.
        let mut long = input();
        long.slots = vec![long.slots[0]; 10_000];
        run(&command, &long).unwrap();
        let input = std::fs::read(folder.path().join("input")).unwrap();
        assert_eq!(input, serde_json::to_vec(&long).unwrap());
    }

    #[test]
    fn command_path_is_relative_and_name_uses_search_path() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("program-card");
        std::fs::write(&script, "#!/bin/sh\necho \"$1\" >said\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let words = ["./program-card", "word"].map(str::to_owned);
        let command = ExternalCommand::new(&words, folder.path(), LONG).unwrap();
        // A concurrent test that starts a process may briefly have the script open for writing, so retry.
        let ran = (0..1000).find_map(|_| match run(&command, &input()) {
            Err(why) if why.contains("busy") => None,
            ran => Some(ran),
        });
        assert_eq!(ran, Some(Ok(())));
        let word = std::fs::read_to_string(folder.path().join("said")).unwrap();
        assert_eq!(word, "word\n");
        assert!(ExternalCommand::new(&[], folder.path(), LONG).is_none());
    }

    #[test]
    fn command_error_output_is_reported() {
        let why = shell("echo no card; exit 3", LONG).unwrap_err();
        assert!(why.contains("(start)") && why.contains("no card"), "{why}");
        assert!(why.contains("exit status: 3"), "{why}");
        let words = ["./not-there".to_owned()];
        let command = ExternalCommand::new(&words, Path::new("."), LONG).unwrap();
        let why = run(&command, &input()).unwrap_err();
        assert!(why.contains("correct `command`"), "{why}");
    }

    #[test]
    fn stop_kills_command_that_takes_long() {
        let words = ["sh", "-c", "sleep 3600 & sleep 3600"].map(str::to_owned);
        let command = ExternalCommand::new(&words, Path::new("."), LONG * 60).unwrap();
        let ran = command.run(&input(), &|| true);
        assert_eq!(ran, Err(CommandError::Cancelled));
    }

    #[test]
    fn command_timeout_kills_process_group() {
        // The command's child would run for an hour if it were not killed.
        let why = shell("sleep 3600 & sleep 3600", Duration::ZERO).unwrap_err();
        assert!(why.contains("raise `timeout`"), "{why}");
    }
}
