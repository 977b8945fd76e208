//! Reads JSON from the HTTP server of a daemon.

use serde_json::Value;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Port of the server without `listen` in `[http]`.
const DEFAULT_PORT: u16 = 9464;
/// Maximum time for one response.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a response.
const MAX_BYTES: u64 = 64 << 20;

/// The address of a daemon's HTTP server: a host with an optional port, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
}

impl Default for Address {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: DEFAULT_PORT,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = |why: &str| {
            format!("`{text}` is not an address: {why}; write HOST, HOST:PORT or http://HOST:PORT/")
        };
        if text.starts_with("https://") {
            return Err(fail("daq serves http, not https"));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
            let (host, after) = inner
                .split_once(']')
                .ok_or_else(|| fail("`]` is missing"))?;
            (host, after.strip_prefix(':'))
        } else if rest.matches(':').count() > 1 {
            // An IPv6 address without a port.
            (rest, None)
        } else {
            match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            }
        };
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        if host.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
            return Err(fail(
                "the host contains a character that host names do not have",
            ));
        }
        let port = port.map_or(Ok(DEFAULT_PORT), |port| {
            port.parse()
                .map_err(|_| fail(&format!("`{port}` is not a port")))
        })?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// The error for a request that returned no JSON.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The host name could not be resolved.
    #[error("cannot resolve `{0}`: {1}")]
    Name(String, io::Error),
    /// No connection, or no response in time.
    #[error("{}", in_words(.0))]
    Io(#[from] io::Error),
    /// The server refused the request.
    #[error("the server answers {code}: {text}")]
    Code {
        /// The status code.
        code: u16,
        /// The first line of the response's body.
        text: String,
    },
    /// The response is not one of daq.
    #[error("the answer is not that of daq: {0}")]
    Answer(String),
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "connection refused: no program listens on this port".to_owned()
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("no answer within {} s", TIMEOUT.as_secs())
        }
        _ => error.to_string(),
    }
}

/// Returns the JSON at `path` of the server at `address`.
pub(super) fn get(address: &Address, path: &str) -> Result<Value, RequestError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // The server closes the connection after the response to an HTTP/1.0 request.
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n"
    )?;
    let (mut bytes, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let read = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..read]);
        if read == 0 {
            break;
        }
        if bytes.len() as u64 > MAX_BYTES {
            return Err(RequestError::Answer("it is too long".to_owned()));
        }
        if Instant::now() > deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }
    parse(&bytes)
}

fn connect(address: &Address) -> Result<TcpStream, RequestError> {
    let name = |error| RequestError::Name(address.host.clone(), error);
    let resolved = (address.host.as_str(), address.port).to_socket_addrs();
    let resolved: Vec<SocketAddr> = resolved.map_err(name)?.collect();
    let mut failure = name(io::ErrorKind::NotFound.into());
    for one in resolved {
        match TcpStream::connect_timeout(&one, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// Parses a response.
fn parse(bytes: &[u8]) -> Result<Value, RequestError> {
    let other = |why: &str| RequestError::Answer(why.to_owned());
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = bytes.split_at(end.ok_or_else(|| other("it is not HTTP"))?);
    let body = &body[4..];
    let head = String::from_utf8_lossy(head);
    let code = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| other("it is not HTTP"))?;
    if code != 200 {
        let text = String::from_utf8_lossy(body);
        let text = printable(text.lines().next().unwrap_or_default());
        return Err(RequestError::Code { code, text });
    }
    serde_json::from_slice(body).map_err(|error| other(&error.to_string()))
}

/// Removes what could change the state of a terminal, and limits the length.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for (text, shown) in [
            ("127.0.0.1:9465", "127.0.0.1:9465"),
            ("daq1", "daq1:9464"),
            (":80", "127.0.0.1:80"),
            ("http://daq1.lab.example:80/", "daq1.lab.example:80"),
            ("[::1]:9465", "[::1]:9465"),
            ("::1", "[::1]:9464"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in [
            "https://daq1",
            "daq1:http",
            "daq1:70000",
            "[::1",
            "a b",
            "daq1/x",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains("write HOST"), "{error}");
        }
    }

    #[test]
    fn responses_are_parsed() {
        let ok = parse(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"a\": 1}").unwrap();
        assert_eq!(ok["a"], 1);
        let error = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert_eq!(
            error(b"HTTP/1.1 421 Misdirected\r\n\r\nno \x1b[2Jname\nmore"),
            "the server answers 421: no [2Jname"
        );
        assert!(error(b"HTTP/1.1 200 OK\r\n\r\n<html>").contains("not that of daq"));
        assert!(error(b"SSH-2.0-OpenSSH").contains("not HTTP"));
        assert!(error(b"HTTP/1.1 \r\n\r\n").contains("not HTTP"));
    }
}
