//! Access control for a listener: only peers with an allowed address and the shared token may connect.
//!
//! The token follows the greeting of each rail and is not encrypted. The token keeps out senders that can connect to
//! the port, but not senders that can also read the network traffic.

use crate::wire::Hello;
use daq_core::ledger::Counter;
use daq_core::log_limit::LogLimit;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Valid lengths of a token in bytes.
pub(super) const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// Predicate that decides whether a peer's address is allowed. The listener calls this predicate for every peer that
/// connects.
pub type Allows = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// A secret that both sides of a connection share. The `Debug` form does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Returns a token of these bytes without the white space around them; `None` if the length of the token is not
    /// 16 to 64 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.trim_ascii();
        TOKEN_BYTES
            .contains(&bytes.len())
            .then(|| Self(bytes.to_owned()))
    }

    /// Returns the greetings with the token after each.
    pub(super) fn appended(&self, greetings: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let greetings = greetings.iter();
        greetings
            .map(|greeting| [greeting.as_slice(), &self.0].concat())
            .collect()
    }

    /// Compares two tokens in constant time: the duration does not depend on the position of a difference.
    fn is(&self, other: &[u8]) -> bool {
        let pairs = self.0.iter().zip(other);
        let differs = pairs.fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b)));
        self.0.len() == other.len() && std::hint::black_box(differs) == 0
    }
}

/// A token as it is written in a configuration. The `Debug` form does not show the token.
#[derive(Clone, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The configuration keys `token` and `token_file` of a section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenKeys {
    /// The key `token`: the text of the token.
    pub token: Option<Secret>,
    /// The key `token_file`: the path of the file that contains the token.
    pub file: Option<PathBuf>,
}

impl TokenKeys {
    /// Returns what is wrong with the keys and how to fix it, or `None` if the keys are valid. The text never contains
    /// the token.
    pub fn problem(&self, is_tcp: bool) -> Option<(&'static str, &'static str)> {
        let (min, max) = (TOKEN_BYTES.start(), TOKEN_BYTES.end());
        debug_assert_eq!((*min, *max), (16, 64));
        let is_short = |token: &Secret| Token::new(token.0.as_bytes()).is_none();
        if self.token.is_some() && self.file.is_some() {
            Some((
                "`token` and `token_file` cannot both be set",
                "remove one of them",
            ))
        } else if self.token.as_ref().is_some_and(is_short) {
            let help = "create a token with `openssl rand -hex 32`, or set `token_file` to a file that contains the token";
            Some(("`token` must have 16 to 64 bytes", help))
        } else if (self.token.is_some() || self.file.is_some()) && !is_tcp {
            let help = "use connection = \"tcp\" on both hosts, or remove the token";
            Some((
                "the connection requests of rdma_cm cannot carry a token",
                help,
            ))
        } else {
            None
        }
    }

    /// Returns the token, read from its file if `token_file` is set; `None` if neither key is set.
    ///
    /// # Errors
    /// If the file cannot be read or contains no valid token; [`daq_core::file::is_configuration`] classifies the error.
    pub fn read(&self, directory: &Path) -> io::Result<Option<Token>> {
        let bytes = match (&self.token, &self.file) {
            (Some(token), _) => token.0.clone().into_bytes(),
            (None, Some(file)) => {
                let path = directory.join(file);
                daq_core::file::read(&path).map_err(|error| {
                    let text = format!("token_file {}: {error}", path.display());
                    io::Error::new(error.kind(), text)
                })?
            }
            (None, None) => return Ok(None),
        };
        Token::new(&bytes).map(Some).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "token_file must contain a token of 16 to 64 bytes: create one with `openssl rand -hex 32`",
            )
        })
    }
}

/// Requirements that a listener sets for its peers.
pub struct Access {
    /// Name of the listener's component, for the log.
    pub name: String,
    /// Predicate for the addresses that may connect; `None` allows every address.
    pub allows: Option<Allows>,
    /// The token that a peer must send; `None` if no token is required.
    pub token: Option<Token>,
    /// Counter of rejected peers.
    pub refused: Counter,
}

/// Counts and logs rejected peers.
struct Refusals {
    name: String,
    count: Counter,
    limit: LogLimit,
}

impl Refusals {
    fn add(&self, peer: &str, why: &str) {
        self.count.add_shared(1);
        self.limit.run(|suppressed| {
            let name = &self.name;
            tracing::warn!("{name}: refused a connection from {peer}: {why}{suppressed}");
        });
    }
}

/// Checks the tokens of peers, and counts and logs the peers that are rejected.
pub(super) struct Guard {
    token: Option<Token>,
    refusals: Arc<Refusals>,
}

impl Guard {
    /// Returns the guard and its address filter.
    pub(super) fn new(access: Access) -> (Self, Option<Allows>) {
        let refusals = Arc::new(Refusals {
            name: access.name,
            count: access.refused,
            limit: LogLimit::new(),
        });
        let guard = Self {
            token: access.token,
            refusals: refusals.clone(),
        };
        let allows = access.allows.map(|allows| -> Allows {
            Arc::new(move |peer| {
                let is_allowed = allows(peer);
                if !is_allowed {
                    refusals.add(&peer.to_string(), "the sender's address is not in `from`");
                }
                is_allowed
            })
        });
        (guard, allows)
    }

    /// Returns why a peer with these greetings is rejected, or `None` if the peer is accepted.
    pub(super) fn check(&self, peer: &str, greetings: &[Vec<u8>]) -> Option<&'static str> {
        self.refuses(greetings)
            .inspect(|why| self.refusals.add(peer, why))
    }

    fn refuses(&self, greetings: &[Vec<u8>]) -> Option<&'static str> {
        let token = self.token.as_ref()?;
        let sent = |greeting: &Vec<u8>| {
            greeting
                .get(Hello::BYTES..)
                .is_some_and(|sent| token.is(sent))
        };
        let has_none = greetings
            .iter()
            .all(|greeting| greeting.len() <= Hello::BYTES);
        // All tokens are compared, so that the duration does not reveal which rail's token is wrong.
        let is_right = greetings
            .iter()
            .fold(true, |right, greeting| sent(greeting) & right);
        match (is_right && !greetings.is_empty(), has_none) {
            (true, _) => None,
            (false, true) => Some(
                "the sender sent no token: set the `token` of this source in the sender's sink",
            ),
            (false, false) => Some(
                "the sender sent a wrong token: set the `token` of this source in the sender's sink",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::{Accepted, mock};
    use std::time::Duration;

    #[test]
    fn peer_without_token_is_rejected_and_counted() {
        let token = |text: &str| Token::new(text.as_bytes()).unwrap();
        let hello = vec![1; Hello::BYTES];
        let with = |text: &str| [&hello, text.as_bytes()].concat();
        let right = "0123456789abcdef";
        let peers = vec![
            hello.clone(),
            with("0123456789abcdeX"),
            with("0123456789abcdef0"),
            with("0"),
            with(right),
        ];
        let access = Access {
            name: "source link".to_owned(),
            allows: None,
            token: Some(token(right)),
            refused: Counter::default(),
        };
        let refused = access.refused.clone();
        let (listener, rejections) = mock::listener(peers.into_iter().map(Ok));
        let mut guarded = listener.with_access(access);
        let nics = mock::nics(1);
        let none = guarded.accept(&nics, Duration::ZERO).unwrap();
        assert!(
            matches!(none, Accepted::None),
            "accept returns at the limit even after a rejection"
        );
        assert_eq!(refused.get(), 1);
        let incoming = guarded.accept(&nics, Duration::from_mins(5)).unwrap();
        assert_eq!(incoming.connector().unwrap().greetings(), [with(right)]);
        let output = rejections.lock().unwrap();
        assert_eq!((refused.get(), output.len()), (4, 4));
        assert!(
            output[0].contains("no token") && output[1..].iter().all(|why| why.contains("wrong"))
        );
        assert!(output.iter().all(|why| !why.contains(right)));
    }

    #[test]
    fn token_from_key_or_file_is_never_printed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("token"), "0123456789abcdef\n").unwrap();
        std::fs::write(directory.path().join("short"), "0123456789\n").unwrap();
        let keys = |token: Option<&str>, file: Option<&str>| TokenKeys {
            token: token.map(|token| Secret(token.to_owned())),
            file: file.map(PathBuf::from),
        };
        let by_key = keys(Some("0123456789abcdef"), None).read(directory.path());
        let by_file = keys(None, Some("token")).read(directory.path());
        let by_key = by_key.unwrap();
        assert_eq!(by_key, by_file.unwrap());
        assert_eq!(format!("{by_key:?}"), "Some(Token(…))");
        assert_eq!(keys(None, None).read(directory.path()).unwrap(), None);
        for file in ["short", "absent"] {
            let error = keys(None, Some(file)).read(directory.path()).unwrap_err();
            assert!(daq_core::file::is_configuration(&error), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("token_file") && !text.contains("0123456789"),
                "{text}"
            );
        }
        assert!(keys(Some("short"), None).problem(true).is_some());
        let padded = format!("{:20}", "short");
        assert!(keys(Some(&padded), None).problem(true).is_some());
        assert!(
            keys(Some("0123456789abcdef"), Some("token"))
                .problem(true)
                .is_some()
        );
        assert!(
            keys(Some("0123456789abcdef"), None)
                .problem(false)
                .is_some()
        );
        assert_eq!(keys(Some("0123456789abcdef"), None).problem(true), None);
    }
}
