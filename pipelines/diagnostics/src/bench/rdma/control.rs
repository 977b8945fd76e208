//! What the two sides of a measurement tell each other: a line of JSON each, over TCP.

use crate::bench::BenchError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Most bytes of a line.
const LINE: u64 = 64 << 10;

/// What the dialling side asks for. What is asked for ends with [`Request::End`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Memory to be written by a queue; `round_trips` writes come with an immediate and are answered by the same.
    Raw {
        is_gpu: bool,
        size: usize,
        round_trips: usize,
    },
    /// A source `rdma` into a ring.
    Stream {
        is_gpu: bool,
        size: usize,
        path: String,
    },
    /// What was asked for is measured.
    End,
    /// There is nothing more.
    Bye,
}

/// What the listening side answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// It waits at this port.
    Ready { port: u16 },
    /// It has ended what was asked for.
    Done,
    /// It cannot.
    Refused { why: String },
}

/// The control connection of the two sides.
pub(super) struct Wire {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

fn failed(what: &str, why: impl std::fmt::Display) -> BenchError {
    BenchError::Thread(format!("the other side of the measurement: {what}: {why}"))
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Result<Self, BenchError> {
        let output = stream
            .try_clone()
            .map_err(|error| failed("its connection", error))?;
        Ok(Self {
            input: BufReader::new(stream),
            output,
        })
    }

    /// This side's address, and the other's.
    pub(super) fn ends(&self) -> Result<[SocketAddr; 2], BenchError> {
        let ends = self.output.local_addr().and_then(|here| {
            let there = self.output.peer_addr()?;
            Ok([here, there])
        });
        ends.map_err(|error| failed("its address", error))
    }

    pub(super) fn send(&mut self, what: &impl Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(what).map_err(|error| failed("a line", error))?;
        line.push('\n');
        let sent = self.output.write_all(line.as_bytes());
        sent.map_err(|error| failed("sending", error))
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut line = String::new();
        let read = (&mut self.input).take(LINE).read_line(&mut line);
        read.map_err(|error| failed("receiving", error))?;
        if line.is_empty() {
            return Err(failed(
                "receiving",
                "connection closed; see the error of the other side",
            ));
        }
        serde_json::from_str(&line).map_err(|error| {
            failed(
                "unknown message; run the same daq version on both sides",
                error,
            )
        })
    }
}
