//! What the programs of daq share: exit codes, output, the state directory, and how they find each other.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Exit codes, as defined by `sysexits.h` of BSD.
pub mod exit {
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// Required hardware, a port, a program or a library is not available.
    pub const UNAVAILABLE: u8 = 69;
    /// A defect of daq.
    pub const INTERNAL: u8 = 70;
    /// Reading or writing failed.
    pub const IO: u8 = 74;
    /// The configuration is wrong.
    pub const CONFIG: u8 = 78;

    /// Returns 128 + the number of the signal called `name`, as shells do.
    pub fn of_signal(name: &str) -> u8 {
        match name {
            "SIGHUP" => 129,
            "SIGINT" => 130,
            _ => 143,
        }
    }
}

/// Prints text to stdout and returns the exit code. A closed pipe is not an error.
pub fn show(text: &str) -> u8 {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => exit::IO,
        _ => 0,
    }
}

/// Returns the path of the program `name` beside this program. If that program does not exist, returns `name`, which is searched
/// in PATH.
pub fn companion(name: &str) -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.map(|own| own.with_file_name(name));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// The environment variable in which `daq` gives its version to a companion.
pub const CALLER_VERSION: &str = "DAQ_BENCH_CALLER_VERSION";

/// Returns an error if another version of `daq` has started this program, which is called `name`.
pub fn check_caller(name: &str) -> Result<(), String> {
    let own = env!("CARGO_PKG_VERSION");
    match std::env::var(CALLER_VERSION) {
        Ok(caller) if caller != own => Err(format!(
            "{name} has version {own}, but daq has version {caller}; install the same version of both"
        )),
        _ => Ok(()),
    }
}

/// Returns the configured state directory, or the default derived from the environment.
pub fn state_directory(declared: Option<&Path>) -> Option<PathBuf> {
    let declared = declared.map(Path::to_owned);
    declared.or_else(|| directory(|name| std::env::var_os(name)))
}

/// Returns the default directory according to systemd and XDG: `$STATE_DIRECTORY`, `$XDG_STATE_HOME/daq` or
/// `~/.local/state/daq`.
fn directory(get: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let get = |name: &str| {
        get(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    // systemd separates several directories by colons.
    if let Some(first) = get("STATE_DIRECTORY") {
        let first = first.to_string_lossy();
        return Some(PathBuf::from(first.split(':').next().unwrap_or_default()));
    }
    get("XDG_STATE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(get("HOME")?.join(".local/state")))
        .map(|path| path.join("daq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directory_follows_precedence_systemd_xdg_home() {
        let with = |pairs: &'static [(&'static str, &'static str)]| {
            directory(move |name| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| OsString::from(value))
            })
        };
        assert_eq!(
            with(&[("STATE_DIRECTORY", "/var/lib/daq:/x"), ("HOME", "/h")]),
            Some("/var/lib/daq".into())
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]),
            Some("/s/daq".into())
        );
        assert_eq!(
            with(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]),
            Some("/h/.local/state/daq".into())
        );
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn program_beside_this_one_precedes_path() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(companion(name), own);
        assert_eq!(companion("not-installed"), Path::new("not-installed"));
    }
}
