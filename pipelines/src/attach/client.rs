//! The client side of the attach protocol.

use super::protocol;
use super::socket::{self, MAX_PACKET};
use daq_core::layout::Layout;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time after which a daemon that sends no reply counts as unresponsive.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The process that created the socket has ended.
    #[error("{}: the daemon was killed; its next run replaces this socket", path.display())]
    Killed {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The socket cannot be opened.
    #[error("cannot connect to {}: {source}; use the account that runs the pipeline, root, or a member of the group in `attach = {{ group = \"…\" }}`", path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The daemon has closed the connection.
    #[error("{}: the daemon has closed the connection", path.display())]
    Closed {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The connection failed.
    #[error("{}: {source}", path.display())]
    Failed {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The daemon does not respond.
    #[error("{}: the daemon has not responded for {} s; check whether it is stopped (ps -o state)", path.display(), TIMEOUT.as_secs())]
    Timeout {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The daemon has refused a request.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the daemon with the socket `path`.
    ///
    /// # Errors
    /// If no daemon serves this socket, or this user must not connect.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let owned = path.to_owned();
        let socket = socket::connect(path).map_err(|error| match error {
            Errno::CONNREFUSED => ClientError::Killed { path: owned },
            error => ClientError::Connect {
                path: owned,
                source: error.into(),
            },
        })?;
        let client = Self {
            path: path.to_owned(),
            socket,
            buffer: vec![0; MAX_PACKET],
        };
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&client.socket, direction, Some(TIMEOUT))
                .map_err(|error| client.failed(error))?;
        }
        Ok(client)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: Errno) -> ClientError {
        let path = self.path.clone();
        match error {
            Errno::AGAIN => ClientError::Timeout { path },
            Errno::PIPE | Errno::CONNRESET => ClientError::Closed { path },
            error => ClientError::Failed {
                path,
                source: error.into(),
            },
        }
    }

    /// Sends a request; returns the reply and its file descriptors.
    fn request(&mut self, request: &Value) -> Result<(Value, Vec<OwnedFd>), ClientError> {
        socket::send(&self.socket, request.to_string().as_bytes(), &[], true)
            .map_err(|error| self.failed(error))?;
        let received =
            socket::receive(&self.socket, &mut self.buffer).map_err(|error| self.failed(error))?;
        if received.length == 0 {
            return Err(self.failed(Errno::PIPE));
        }
        let reply: Value = serde_json::from_slice(&self.buffer[..received.length])
            .map_err(|error| ClientError::Refused(format!("unknown reply: {error}")))?;
        if reply["ok"] == true {
            return Ok((reply, received.files));
        }
        if reply["ended"] == true {
            return Err(self.failed(Errno::PIPE));
        }
        let error = reply["error"].as_str().unwrap_or("unknown reply");
        Err(ClientError::Refused(error.to_owned()))
    }

    /// Returns the description of the pipeline and its rings.
    ///
    /// # Errors
    /// If the daemon does not reply.
    pub fn list(&mut self) -> Result<Value, ClientError> {
        Ok(self.request(&json!({ "request": "list" }))?.0)
    }

    /// Returns the newest frame of `ring`, or `None` if no frame after `after` was published.
    ///
    /// # Errors
    /// If the pipeline has no such ring, or the daemon does not reply.
    pub fn tap(&mut self, ring: &str, after: Option<u64>) -> Result<Option<Tapped>, ClientError> {
        let mut request = json!({ "request": "tap", "ring": ring });
        if let Some(after) = after {
            request["after"] = after.into();
        }
        let (mut reply, files) = self.request(&request)?;
        let Value::Object(properties) = reply["frame"].take() else {
            let has_ended = reply["closed"] == true;
            return if has_ended {
                Err(self.failed(Errno::PIPE))
            } else {
                Ok(None)
            };
        };
        let unknown =
            || ClientError::Refused("the reply to `tap` is unknown; update daq".to_owned());
        let index = properties.get("index").and_then(Value::as_u64);
        let file = files.into_iter().next().map(File::from);
        let layout = protocol::received_layout(&reply["layout"]);
        Ok(Some(Tapped {
            index: index.ok_or_else(unknown)?,
            properties,
            layout: layout.ok_or_else(unknown)?,
            file: file.ok_or_else(unknown)?,
        }))
    }
}

/// A copy of a frame.
#[derive(Debug)]
pub struct Tapped {
    /// Number of the frame in the ring.
    pub index: u64,
    /// The description of the frame.
    pub properties: Map<String, Value>,
    /// The layout of a whole frame.
    pub layout: Layout,
    /// The bytes of the frame, in a sealed file. All clients share its position, so read it with `pread`.
    pub file: File,
}
