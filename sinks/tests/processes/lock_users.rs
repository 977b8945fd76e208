//! Checks that a lock file of another user is respected, even if it is readable but not writable.

use daq_sinks::lock::{LockError, StemLock};
use daq_testkit::{test_process, this_test};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

const UNPRIVILEGED_UID: u32 = 65534;

/// Checks, in a process of the other user, what the sinks do with the lock file.
fn check_lock(dir: &Path, holder: &str) {
    let lock = dir.join(".adc.lock");
    assert!(
        std::fs::File::options().write(true).open(&lock).is_err(),
        "this user must not be able to write to the lock file"
    );
    if holder.is_empty() {
        let held = StemLock::take(dir, "adc").unwrap();
        let second = StemLock::take(dir, "adc");
        assert!(matches!(second, Err(LockError::Held { .. })), "{second:?}");
        drop(held);
        // A user who may create files in the directory may also remove them.
        assert!(!lock.exists());
    } else {
        let error = StemLock::take(dir, "adc").unwrap_err();
        let pid = Some(holder.parse().unwrap());
        assert!(
            matches!(error, LockError::Held { pid: named, .. } if named == pid),
            "{error}"
        );
        assert!(!error.to_string().contains("remove"), "{error}");
    }
}

#[test]
fn lock_of_other_user_is_respected_until_released() {
    if let Some(dir) = std::env::var_os("DAQ_LOCK_DIR") {
        check_lock(Path::new(&dir), &std::env::var("DAQ_LOCK_HOLDER").unwrap());
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let test = this_test!();
    let other_user = |holder: &str| {
        let run = test_process(test)
            .env("DAQ_LOCK_DIR", dir.path())
            .env("DAQ_LOCK_HOLDER", holder)
            .current_dir("/")
            .uid(UNPRIVILEGED_UID)
            .gid(UNPRIVILEGED_UID)
            .output();
        match run {
            Ok(run) => {
                let output = String::from_utf8_lossy(&run.stdout).into_owned()
                    + &String::from_utf8_lossy(&run.stderr);
                assert!(
                    run.status.success() && output.contains("1 passed"),
                    "{output}"
                );
            }
            Err(error) => {
                println!("skipped: user {UNPRIVILEGED_UID} cannot run this test: {error}");
            }
        }
    };
    let lock = StemLock::take(dir.path(), "adc").unwrap();
    let path = dir.path().join(".adc.lock");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    other_user(&std::process::id().to_string());
    drop(lock);
    // Create the file that a kill leaves behind.
    std::fs::write(&path, "4242\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    other_user("");
}
