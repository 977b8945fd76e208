//! A run that a test observes while it runs.

use super::daq::{Outcome, Process};
use super::{TIMEOUT, ledger, wait_for, wait_for_ok};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A running `daq run`. Dropping it kills it.
#[derive(Debug)]
pub struct Live {
    process: Process,
}

/// The reply of an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// The header lines.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Live {
    pub(crate) const fn new(process: Process) -> Self {
        Self { process }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns the log so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        self.process.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends SIGINT: the run drains its rings and exits.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Sends SIGKILL, waits until the process is gone, and returns its log.
    pub fn kill(mut self) -> String {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        self.stderr()
    }

    /// Waits until the run exits.
    pub fn wait(mut self) -> Outcome {
        Outcome::of(self.process.wait())
    }

    /// Sends SIGINT and waits until the run exits.
    pub fn stop(self) -> Outcome {
        self.interrupt();
        self.wait()
    }

    /// Waits until the log contains `text`.
    pub fn wait_log(&mut self, text: &str) {
        wait_for_ok(&format!("{text:?}"), || {
            let log = self.stderr();
            if log.contains(text) {
                return Ok(());
            }
            assert!(
                self.is_running(),
                "the run ended without logging {text:?}:\n{}",
                self.stderr()
            );
            Err(log)
        });
    }

    /// Returns the address of its HTTP server from the log; the configured port may be 0.
    pub fn address(&mut self) -> SocketAddr {
        self.wait_log("serving http://");
        let log = self.stderr();
        let after = log.split("serving http://").nth(1).unwrap();
        after.split('/').next().unwrap().parse().unwrap()
    }

    /// Waits until every source has started, according to `/-/ready`.
    pub fn wait_ready(&mut self) {
        let address = self.address();
        wait_for("readiness", || {
            assert!(self.is_running(), "the run ended:\n{}", self.stderr());
            get(address, "/-/ready")
                .ok()
                .filter(|answer| answer.code == 200)
        });
    }

    /// Sends a GET request to its HTTP server.
    pub fn get(&mut self, path: &str) -> Answer {
        let address = self.address();
        get(address, path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.stderr()))
    }

    /// Returns the report that `/status` shows; panics if its ledgers do not balance.
    pub fn report(&mut self) -> Value {
        let answer = self.get("/status");
        assert_eq!(answer.code, 200, "{}", answer.body);
        let status: Value = serde_json::from_str(&answer.body).unwrap();
        let report = status["report"].clone();
        let wrong = ledger::violations_while_running(&report);
        assert!(wrong.is_empty(), "{wrong:#?}\n{report:#}");
        report
    }

    /// Waits until the number at `path` of the report is at least `min`.
    pub fn wait_count(&mut self, path: &str, min: u64) -> Value {
        wait_for_ok(&format!("{path} >= {min}"), || {
            let report = self.report();
            let count = ledger::count(&report, path);
            if count >= min {
                return Ok(report);
            }
            let log = self.stderr();
            Err(format!("{count}\n{log}\n{report:#}"))
        })
    }
}

/// Sends one GET request over HTTP/1.0.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or(std::io::ErrorKind::InvalidData)?;
    let code = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(Answer {
        code,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
