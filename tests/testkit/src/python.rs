//! Python with packages from PyPI: third-party senders and readers.

use super::{TIMEOUT, repository};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An interpreter with the packages that a test needs.
#[derive(Clone, Debug)]
pub struct Python(PathBuf);

impl Python {
    /// Returns the interpreter that `DAQ_TEST_PYTHON` names, else `.venv/bin/python` of the repository, if it can
    /// import `packages`; otherwise the reason for [`skip!`](crate::skip).
    pub fn with(packages: &[&str]) -> Result<Self, String> {
        let given = std::env::var_os("DAQ_TEST_PYTHON").filter(|path| !path.is_empty());
        let path = given.map_or_else(|| repository().join(".venv/bin/python"), PathBuf::from);
        if !path.is_file() {
            return Err(format!(
                "no Python at {}; run tests/run to install it",
                path.display()
            ));
        }
        for package in packages {
            let output = Command::new(&path)
                .args(["-c", &format!("import {package}")])
                .output();
            if !output.is_ok_and(|output| output.status.success()) {
                return Err(format!(
                    "{} cannot import `{package}`; run tests/run to install it",
                    path.display()
                ));
            }
        }
        Ok(Self(path))
    }

    /// The interpreter.
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }

    /// Runs `script` with `arguments` until it exits and returns its output. Panics if it fails.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, script: &str, arguments: &[S]) -> String {
        let child = self.spawn(script, arguments);
        let pid = child.id();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        let start = Instant::now();
        let output = receiver.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!(
                "the script has been hanging since {:?}",
                start.elapsed().max(Duration::ZERO)
            );
        });
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{}\n{out}{err}", output.status);
        out.into_owned()
    }

    /// Runs `script` with `arguments`. Returns the JSON value in each line of its output.
    pub fn json_lines<S: AsRef<std::ffi::OsStr>>(
        &self,
        script: &str,
        arguments: &[S],
    ) -> Vec<serde_json::Value> {
        let output = self.run(script, arguments);
        let lines = output.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Starts `script` with `arguments` and pipes its output.
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(&self, script: &str, arguments: &[S]) -> Child {
        Command::new(&self.0)
            .arg("-c")
            .arg(script)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}
