//! A run that is watched.

use super::daq::{Outcome, Process};
use super::{TIMEOUT, ledger, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A running `daq run`. Dropping it kills it.
#[derive(Debug)]
pub struct Live {
    process: Process,
}

/// What an HTTP server answered.
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

    /// The process.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// What it has told until now.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGINT: the run drains and ends.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// SIGKILL, and waits until the process is gone; what it told.
    pub fn kill(mut self) -> String {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        self.stderr()
    }

    /// Waits for the end.
    pub fn wait(mut self) -> Outcome {
        Outcome::of(self.process.wait())
    }

    /// SIGINT, and waits for the end.
    pub fn stop(self) -> Outcome {
        self.interrupt();
        self.wait()
    }

    /// Waits until it has told `text`.
    pub fn wait_log(&mut self, text: &str) {
        wait_for(&format!("{text:?}"), || {
            let log = self.stderr();
            if log.contains(text) {
                return Some(());
            }
            assert!(
                self.is_running(),
                "the run ended without telling {text:?}:\n{}",
                self.stderr()
            );
            None
        });
    }

    /// The address of its HTTP side, as it told it; the configuration's port may be 0.
    pub fn address(&mut self) -> SocketAddr {
        self.wait_log("serving http://");
        let log = self.stderr();
        let after = log.split("serving http://").nth(1).unwrap();
        after.split('/').next().unwrap().parse().unwrap()
    }

    /// Waits until every source has started: `/-/ready` says so.
    pub fn wait_ready(&mut self) {
        let address = self.address();
        wait_for("readiness", || {
            assert!(self.is_running(), "the run ended:\n{}", self.stderr());
            get(address, "/-/ready")
                .ok()
                .filter(|answer| answer.code == 200)
        });
    }

    /// Asks its HTTP side.
    pub fn get(&mut self, path: &str) -> Answer {
        let address = self.address();
        get(address, path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.stderr()))
    }

    /// The report that `/status` shows, with ledgers that balance.
    pub fn report(&mut self) -> Value {
        let answer = self.get("/status");
        assert_eq!(answer.code, 200, "{}", answer.body);
        let status: Value = serde_json::from_str(&answer.body).unwrap();
        let report = status["report"].clone();
        let wrong = ledger::violations_while_running(&report);
        assert!(wrong.is_empty(), "{wrong:#?}\n{report:#}");
        report
    }

    /// Waits until the number at `path` of the report is at least `least`.
    pub fn wait_count(&mut self, path: &str, least: u64) -> Value {
        wait_for(&format!("{path} >= {least}"), || {
            let report = self.report();
            (ledger::count(&report, path) >= least).then_some(report)
        })
    }
}

/// One GET over HTTP/1.0.
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
