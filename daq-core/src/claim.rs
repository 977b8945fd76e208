//! Resources that only one component may use.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// A resource that only one component may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// A UDP port on an address, such as `0.0.0.0:4950`.
    UdpPort(SocketAddr),
    /// Some streams of a UDP port on an address. Other components may receive other streams of the same kind.
    UdpStreams(SocketAddr, StreamIds),
    /// A TCP port on an address.
    TcpPort(SocketAddr),
    /// A file or directory that the component writes.
    Path(PathBuf),
    /// All files whose path begins with this path and `-`. For example, `out/adc` claims `out/adc-000000`. Other
    /// components may write different files into the same directory.
    Stem(PathBuf),
    /// A PCI device or another device, by its address.
    Device(String),
}

/// Identifiers of streams that arrive at the same port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamIds {
    /// What the identifiers are, such as `thread`.
    kind: &'static str,
    ids: Vec<u32>,
}

impl StreamIds {
    /// Returns the streams `ids` of the kind `kind`, such as `thread`.
    pub fn new(kind: &'static str, ids: impl IntoIterator<Item = u32>) -> Self {
        let ids = ids.into_iter().collect();
        Self { kind, ids }
    }

    /// Returns whether no stream is in both, and both have the same kind.
    fn are_apart(&self, other: &Self) -> bool {
        self.kind == other.kind && !self.ids.iter().any(|id| other.ids.contains(id))
    }
}

impl Claim {
    /// Whether two claims conflict.
    ///
    /// Two claims conflict if they are equal, if one has an unspecified address and both have the same port, or if one
    /// is a directory that contains the other. A stem is inside its directory and contains nothing. Paths are compared
    /// without accessing the file system; `out`, `./out/` and `a/../out` are the same path. To compare relative with
    /// absolute paths, see [`at`](Self::at).
    ///
    /// ```
    /// use daq_core::claim::Claim;
    /// let any = Claim::UdpPort("0.0.0.0:4950".parse().unwrap());
    /// let one = Claim::UdpPort("127.0.0.1:4950".parse().unwrap());
    /// let other = Claim::UdpPort("127.0.0.1:4951".parse().unwrap());
    /// assert!(any.conflicts(&one) && !one.conflicts(&other));
    /// let path = |path: &str| Claim::Path(path.into());
    /// assert!(path("out").conflicts(&path("a/.././out/")) && !path("out").conflicts(&path("output")));
    /// let stem = |path: &str| Claim::Stem(path.into());
    /// assert!(stem("out/adc").conflicts(&stem("./out/adc")) && !stem("out/adc").conflicts(&stem("out/adc/raw")));
    /// ```
    pub fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::UdpStreams(a, ours), Self::UdpStreams(b, theirs)) => {
                overlap(a, b) && (a != b || !ours.are_apart(theirs))
            }
            (
                Self::UdpPort(a) | Self::UdpStreams(a, _),
                Self::UdpPort(b) | Self::UdpStreams(b, _),
            )
            | (Self::TcpPort(a), Self::TcpPort(b)) => overlap(a, b),
            (Self::Path(a), Self::Path(b)) => {
                let (a, b) = (normal(a), normal(b));
                contains(&a, &b) || contains(&b, &a)
            }
            (Self::Stem(a), Self::Stem(b)) => normal(a) == normal(b),
            (Self::Path(path), Self::Stem(stem)) | (Self::Stem(stem), Self::Path(path)) => {
                contains(&normal(path), &normal(stem))
            }
            (Self::Device(a), Self::Device(b)) => a == b,
            _ => false,
        }
    }

    /// Returns how to avoid that this claim conflicts with `other`.
    pub fn remedy(&self, other: &Self) -> String {
        match (self, other) {
            (Self::UdpStreams(a, ours), Self::UdpStreams(b, theirs))
                if a == b && ours.kind == theirs.kind =>
            {
                format!("let them select different streams ({})", ours.kind)
            }
            (
                Self::UdpPort(_) | Self::UdpStreams(..),
                Self::UdpPort(_) | Self::UdpStreams(..),
            ) => "give one of them another address; sources that select different streams of a format, such as `thread` of VDIF, \
                  can share an address if they have `sockets = 1`"
                .to_owned(),
            _ => "give one of them another address, path, name or device".to_owned(),
        }
    }

    /// Returns the claim with a relative path resolved against `directory`.
    ///
    /// ```
    /// use daq_core::claim::Claim;
    /// let (there, here) = (Claim::Path("/data/out".into()), Claim::Path("out".into()));
    /// assert!(!there.conflicts(&here) && there.conflicts(&here.at("/data".as_ref())));
    /// ```
    #[must_use]
    pub fn at(&self, directory: &Path) -> Self {
        match self {
            Self::Path(path) => Self::Path(directory.join(path)),
            Self::Stem(stem) => Self::Stem(directory.join(stem)),
            other => other.clone(),
        }
    }
}

/// Whether two addresses have the same port, and packets to one may arrive at the other.
fn overlap(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.port() == b.port()
        && a.port() != 0
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

/// Returns `path` without `.` components, and without `..` components that follow a directory name.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match normal.components().next_back() {
                Some(Component::Normal(_)) => {
                    normal.pop();
                }
                // The parent of the root directory is the root directory.
                Some(Component::RootDir | Component::Prefix(_)) => {}
                Some(Component::ParentDir | Component::CurDir) | None => normal.push(component),
            },
            _ => normal.push(component),
        }
    }
    normal
}

/// Whether `inner` is equal to `directory` or inside `directory`. Both paths must be [`normal`].
fn contains(directory: &Path, inner: &Path) -> bool {
    directory.is_absolute() == inner.is_absolute()
        && inner
            .strip_prefix(directory)
            .is_ok_and(|rest| !rest.components().any(|part| part == Component::ParentDir))
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UdpPort(address) => write!(f, "UDP {address}"),
            Self::UdpStreams(address, streams) => {
                let ids: Vec<_> = streams.ids.iter().map(|id| format!("{id:#x}")).collect();
                write!(f, "UDP {address}, {} {}", streams.kind, ids.join(", "))
            }
            Self::TcpPort(address) => write!(f, "TCP {address}"),
            Self::Path(path) => write!(f, "path {}", path.display()),
            Self::Stem(stem) => write!(f, "files {}-*", stem.display()),
            Self::Device(device) => write!(f, "device {device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(a: &str, b: &str) -> bool {
        let (a, b) = (Claim::Path(a.into()), Claim::Path(b.into()));
        assert_eq!(a.conflicts(&b), b.conflicts(&a), "{a} and {b}");
        a.conflicts(&b)
    }

    #[test]
    fn different_streams_share_a_port() {
        let claim = |address: &str, kind, ids: &[u32]| {
            let streams = StreamIds::new(kind, ids.iter().copied());
            Claim::UdpStreams(address.parse().unwrap(), streams)
        };
        let own = claim("127.0.0.1:4950", "thread", &[0, 2]);
        for (other, conflicts) in [
            (claim("127.0.0.1:4950", "thread", &[1, 3]), false),
            (claim("127.0.0.1:4951", "thread", &[0]), false),
            (claim("127.0.0.1:4950", "thread", &[1, 2]), true),
            (claim("127.0.0.1:4950", "stream_id", &[1]), true),
            // Linux prefers the socket with the more specific address.
            (claim("0.0.0.0:4950", "thread", &[1]), true),
            (Claim::UdpPort("0.0.0.0:4950".parse().unwrap()), true),
        ] {
            assert_eq!(own.conflicts(&other), conflicts, "{other}");
            assert_eq!(other.conflicts(&own), conflicts, "{other}");
        }
        assert_eq!(own.to_string(), "UDP 127.0.0.1:4950, thread 0x0, 0x2");
        let same = claim("127.0.0.1:4950", "thread", &[2]);
        assert_eq!(
            own.remedy(&same),
            "let them select different streams (thread)"
        );
        let port = Claim::UdpPort("127.0.0.1:4950".parse().unwrap());
        assert!(port.remedy(&own).contains("`sockets = 1`"));
    }

    #[test]
    fn path_claims_with_different_spelling_conflict() {
        for other in [
            "out",
            "./out",
            "out/",
            "out//",
            "out/.",
            "a/../out",
            "./a/./b/../../out/",
            "out/deep",
            "out/deep/..",
            ".",
            "x/..",
        ] {
            assert!(conflict("out", other), "{other}");
        }
        for other in [
            "output",
            "a/out",
            "../out",
            "out/../other",
            "a/../../out",
            "/out",
            "..out",
        ] {
            assert!(!conflict("out", other), "{other}");
        }
        assert!(conflict("/a", "/../a") && conflict("/", "/a") && conflict("../a", "./../a/b"));
        assert!(!conflict(".", "../a") && !conflict("../a", "../../a"));
    }

    #[test]
    fn stem_claims_in_one_directory_do_not_conflict() {
        let stem = |path: &str| Claim::Stem(path.into());
        let conflict = |a: &Claim, b: &Claim| {
            assert_eq!(a.conflicts(b), b.conflicts(a), "{a} and {b}");
            a.conflicts(b)
        };
        let adc = stem("out/adc");
        assert_eq!(adc.to_string(), "files out/adc-*");
        for same in ["out/adc", "./out//adc", "out/x/../adc"] {
            assert!(conflict(&adc, &stem(same)), "{same}");
        }
        for other in ["out/adc/adc", "out/adc2", "out", "adc", "/out/adc"] {
            assert!(!conflict(&adc, &stem(other)), "{other}");
        }
        // A claim of a directory includes its contents; a claim of a stem includes nothing below it.
        let path = |path: &str| Claim::Path(path.into());
        assert!(conflict(&adc, &path("out")) && conflict(&adc, &path(".")));
        assert!(!conflict(&adc, &path("out/adc/x")) && !conflict(&adc, &path("out2")));
        assert!(conflict(
            &stem("/data/out/adc"),
            &adc.at(Path::new("/data"))
        ));
    }

    #[test]
    fn relative_path_claims_are_resolved_against_directory() {
        let at = |path: &str| Claim::Path(path.into()).at(Path::new("/data/run"));
        let there = Claim::Path("/data/out".into());
        assert!(there.conflicts(&at("../out")) && there.conflicts(&at("/data/run/../out")));
        assert!(!there.conflicts(&at("out")) && !there.conflicts(&at("../../out")));
        let port = Claim::UdpPort(([0, 0, 0, 0], 4950).into());
        assert_eq!(port.at(Path::new("/data")), port);
    }
}
