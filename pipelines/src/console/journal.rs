//! Recognises the journal of systemd, which reads the priority of each line.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use tracing::Level;

/// Whether stderr is connected to the journal (`JOURNAL_STREAM`), which reads a priority at the start of each line.
pub(super) fn is_journal(stderr: impl AsFd) -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(stderr).is_ok_and(|stat| {
        let here = format!("{}:{}", stat.st_dev, stat.st_ino);
        stream == OsStr::new(&here)
    })
}

/// Returns the prefix for the journal of a message of `level`, as in `sd-daemon(3)`.
pub(super) const fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    #[test]
    fn journal_is_recognised_by_device_and_inode() {
        // The child process compares its stderr, a file, with the value of the variable.
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        for (inode, expected) in [(metadata.ino(), true), (metadata.ino() + 1, false)] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--ignored", "--exact", "--nocapture"]);
            child.arg("console::journal::tests::child_process_prints_whether_stderr_is_journal");
            child.env("JOURNAL_STREAM", format!("{}:{inode}", metadata.dev()));
            let output = child.stderr(file.reopen().unwrap()).output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(stdout.contains(&format!("journal: {expected}")), "{stdout}");
        }
    }

    #[test]
    #[ignore = "run by journal_is_recognised_by_device_and_inode"]
    fn child_process_prints_whether_stderr_is_journal() {
        println!("journal: {}", is_journal(io::stderr()));
    }
}
