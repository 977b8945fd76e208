//! A small disk.

use crate::{print_uncaptured, test_process};
use std::path::PathBuf;
use std::process::Command;

const MOUNT: &str = r#"mount -t tmpfs -o size="$1" daq-test "$0" || exit 90; shift; exec "$@""#;

/// Runs the calling test `test`, [`this_test!`](crate::this_test), again in a child process with a filesystem of `size`,
/// as in `16m`. In the child process, returns a directory in that filesystem.
pub fn small_disk(test: &str, size: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("DAQ_SMALL_DIR") {
        let dir = PathBuf::from(dir).join(test.replace("::", "-"));
        std::fs::create_dir(&dir).unwrap();
        return Some(dir);
    }
    let dir = tempfile::tempdir().unwrap();
    for namespaces in [&["-m"][..], &["-r", "-m"]] {
        let mounted = |program: &Command| {
            let mut command = Command::new("unshare");
            command
                .args(namespaces)
                .args(["sh", "-c", MOUNT])
                .arg(dir.path())
                .arg(size);
            command.arg(program.get_program()).args(program.get_args());
            command.env("DAQ_SMALL_DIR", dir.path()).output()
        };
        if mounted(&Command::new("true")).is_ok_and(|probe| probe.status.success()) {
            let run = mounted(&test_process(test)).unwrap();
            let printed = [run.stdout, run.stderr].concat();
            let printed = String::from_utf8_lossy(&printed);
            assert!(
                run.status.success() && printed.contains("1 passed"),
                "{}\n{printed}",
                run.status
            );
            return None;
        }
    }
    print_uncaptured(
        "skipped: neither `unshare -m` nor `unshare -rm` can mount a tmpfs on this machine",
    );
    None
}
