//! Messages between the two sides of a measurement. Each message is one line of JSON, sent over TCP.

use crate::BenchError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Maximum line length in bytes.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Requests of the connecting side. Every measurement ends with [`Request::End`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// A queue pair writes to memory. Of these writes, `round_trips` carry an immediate value. The other side answers
    /// each such write with a write that also carries an immediate value.
    Raw {
        is_gpu: bool,
        size: usize,
        round_trips: usize,
    },
    /// A source `stream` receives frames into a ring.
    Stream {
        is_gpu: bool,
        size: usize,
        path: String,
    },
    /// The requested measurement has ended.
    End,
    /// There are no more requests.
    Bye,
}

/// Replies of the listening side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The listening side waits for a connection at this port.
    Ready { port: u16 },
    /// The listening side has finished the request.
    Done,
    /// The listening side cannot serve the request.
    Refused { why: String },
}

/// The control connection between the two sides.
pub(super) struct ControlConnection {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

fn failed(what: &str, why: impl std::fmt::Display) -> BenchError {
    BenchError::Thread(format!(
        "control connection to the other side failed: {what}: {why}"
    ))
}

impl ControlConnection {
    pub(super) fn new(stream: TcpStream) -> Result<Self, BenchError> {
        let output = stream
            .try_clone()
            .map_err(|error| failed("cannot duplicate the socket", error))?;
        Ok(Self {
            input: BufReader::new(stream),
            output,
        })
    }

    /// Returns the addresses of this side and of the other side.
    pub(super) fn ends(&self) -> Result<[SocketAddr; 2], BenchError> {
        let ends = self.output.local_addr().and_then(|here| {
            let there = self.output.peer_addr()?;
            Ok([here, there])
        });
        ends.map_err(|error| failed("cannot read the addresses of the connection", error))
    }

    pub(super) fn send(&mut self, what: &impl Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(what)
            .map_err(|error| failed("cannot encode a message", error))?;
        line.push('\n');
        let sent = self.output.write_all(line.as_bytes());
        sent.map_err(|error| failed("sending", error))
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut line = String::new();
        let read = (&mut self.input).take(MAX_LINE_BYTES).read_line(&mut line);
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
