//! Registry entries: what a driver, a kernel or a sink tells of itself.
//!
//! The lists of entries are plain slices (`daq_drivers::SOURCES`, `daq_sinks::SINKS`,
//! `daq_pipelines::kernels::KERNELS`). `daq list`, `daq new`, the JSON schema and the reference pages are
//! derived from them.

use crate::config::{Diagnostics, Problem, Section};
use crate::dma::FrameSequence;
use crate::examine::NamedFile;
use crate::kernel::KernelSpec;
use crate::layout::Layout;
use crate::ledger::{Counts, Rejections};
use crate::mapped::Writer;
use crate::sink::SinkSpec;
use crate::source::{Producers, SourceError};
use crate::topology::Wish;
use crate::window::{Arrival, Geometry};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Something that only one component may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    /// A UDP port on an address, as in `0.0.0.0:4950`.
    UdpPort(std::net::SocketAddr),
    /// A TCP port on an address.
    TcpPort(std::net::SocketAddr),
    /// A file or directory that is written.
    Path(PathBuf),
    /// Files whose names begin with this one and `-`, as `out/adc` of `out/adc-000000`, in a directory that others may
    /// write to as well.
    Stem(PathBuf),
    /// A PCI device or another device by its address.
    Device(String),
}

impl Claim {
    /// Whether both want the same thing: equal, or an unspecified address beside any other on one port, or
    /// a directory beside something inside it; a stem is inside its directory and has nothing inside. Paths are compared as they are written, without looking at
    /// any file system, so that `out`, `./out/` and `a/../out` are one; see [`at`](Self::at) for relative
    /// beside absolute ones.
    ///
    /// ```
    /// use daq_core::entry::Claim;
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
            (Self::UdpPort(a), Self::UdpPort(b)) | (Self::TcpPort(a), Self::TcpPort(b)) => {
                a.port() == b.port()
                    && a.port() != 0
                    && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
            }
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

    /// The same claim with a relative path starting from `directory`.
    ///
    /// ```
    /// use daq_core::entry::Claim;
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

/// `path` without `.` and, as far as it names what they lead out of, without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match normal.components().next_back() {
                Some(Component::Normal(_)) => {
                    normal.pop();
                }
                // There is nothing above the root.
                Some(Component::RootDir | Component::Prefix(_)) => {}
                Some(Component::ParentDir | Component::CurDir) | None => normal.push(component),
            },
            _ => normal.push(component),
        }
    }
    normal
}

/// Whether `inner` is `directory` or lies in it; both are [`normal`].
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
            Self::TcpPort(address) => write!(f, "TCP {address}"),
            Self::Path(path) => write!(f, "path {}", path.display()),
            Self::Stem(stem) => write!(f, "files {}-*", stem.display()),
            Self::Device(device) => write!(f, "device {device}"),
        }
    }
}

/// What a component of one kind tells of itself.
#[derive(Clone, Copy)]
pub struct Entry<S: ?Sized> {
    /// The name in configuration.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub summary: &'static str,
    /// A commented, valid section with the name `NAME` and, where it needs them, rings named `INPUT` and
    /// `OUTPUT`.
    pub example: &'static str,
    /// The JSON schema of the section's own keys.
    pub schema: fn() -> schemars::Schema,
    /// Reads the section's own keys; touches no hardware. `None` when errors were reported.
    pub parse: fn(&mut Section, &mut Diagnostics) -> Option<Box<S>>,
}

impl<S: ?Sized> fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The entry of a source's driver.
pub type SourceEntry = Entry<dyn SourceSpec>;
/// The entry of a kernel.
pub type KernelEntry = Entry<dyn KernelSpec>;
/// The entry of a sink's driver.
pub type SinkEntry = Entry<dyn SinkSpec>;

/// What a source is told when it is built.
#[derive(Clone, Debug)]
pub struct SourceContext {
    /// The source's name.
    pub name: String,
    /// The directory that relative paths start from.
    pub directory: std::path::PathBuf,
    /// The geometry that [`SourceSpec::geometry`] gave for the ring's slots.
    pub geometry: Geometry,
    /// The network card that `auto` stands for ([`EngineNeeds::device`]).
    pub nic: Option<String>,
    /// The counters that [`SourceSpec::counts`] named.
    pub counts: Counts,
    /// Where it counts rejected packets by reason.
    pub rejections: Rejections,
}

/// Says where to look when a source receives nothing. Called when that is logged, not on a data thread.
pub type SilenceHint = Box<dyn Fn() -> String + Send>;

/// What a DMA engine asks of the plan, as far as it is known without opening its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNeeds {
    /// Its device's place in the PCI tree, as in `0000:3b:00.0`, or the name of a network card for RDMA, as in `mlx5_0`,
    /// `auto` for the one that suits its ring; `None` for a model that has no place.
    pub device: Option<String>,
    /// What it is to a GPU's memory: a card behind VFIO or a network card.
    pub writer: Writer,
    /// Whether it is to write into a GPU's memory.
    pub wish: Wish,
    /// Why its device cannot be given a GPU's memory; `None` where it can.
    pub host_only: Option<String>,
    /// Whether the CPU must reach the memory that it writes, to look at what has come.
    pub looked_at: bool,
    /// Whether its last write can ring the doorbell of a kernel that stays on its GPU.
    pub rings: bool,
    /// The faults that it can report by name ([`Engine::faults`](crate::dma::Engine::faults)).
    pub faults: &'static [&'static str],
    /// Slots are a multiple of so many bytes, a power of two.
    pub alignment: usize,
    /// Most bytes of a slot.
    pub max_slot: usize,
    /// Most slots of its ring.
    pub max_slots: usize,
}

/// A source's declared and checked configuration.
pub trait SourceSpec: Send + Sync {
    /// What it claims.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Where its data comes from, for the plan: what it claims, unless it knows more, such as the groups
    /// that it joins or the file that it reads.
    fn origins(&self) -> Vec<String> {
        self.claims().iter().map(Claim::to_string).collect()
    }

    /// The files that it reads.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }

    /// Payload bytes of a slot if the ring's section does not say.
    fn preferred_slot(&self) -> Option<usize> {
        None
    }

    /// How frames are made of places in slots of `slot_bytes`, or why they cannot be.
    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem>;

    /// What the geometry is learned from at run time, as in "the first heaps": [`geometry`](Self::geometry) is then an upper
    /// bound, and each frame's record has its own. `None` where it is exact.
    fn learned_from(&self) -> Option<&'static str> {
        None
    }

    /// Whether the length of frames is learned, too: they can then be shorter than the geometry's.
    fn learns_frame_size(&self) -> bool {
        false
    }

    /// What a frame of `geometry` means, or why the declared samples do not fit it.
    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem>;

    /// Whether it waits for slots (a file, a free-running simulator) or must go on without (a socket).
    fn holdable(&self) -> bool;

    /// How packets reach its window, which the plan then sizes; `None` where [`geometry`](Self::geometry) alone decides.
    fn arrival(&self) -> Option<Arrival> {
        None
    }

    /// What its DMA engine asks of the plan; `None` for sources that are no engines.
    fn engine(&self) -> Option<EngineNeeds> {
        None
    }

    /// Where its engine's frames carry sequence numbers; `None` where they carry none, or it is no engine.
    fn frame_sequence(&self) -> Option<FrameSequence> {
        None
    }

    /// What it counts beside its ledger, by name; in reports and, as `daq_source_counts_total`, in metrics.
    fn counts(&self) -> &'static [&'static str] {
        &[]
    }

    /// Threads that it runs on.
    fn threads(&self) -> usize {
        1
    }

    /// Cores for those threads, as declared; empty = any.
    fn cores(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Bytes that it will allocate beside its ring; for the plan's memory total.
    fn memory(&self, _geometry: &Geometry) -> usize {
        0
    }

    /// Sentences for the plan: defaults that were assumed, limits that were found.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why this machine cannot run it, as far as is seen without opening its device; not called for other machines.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Where to look when nothing arrives: addresses, firewalls, groups, links.
    fn silence_hint(&self) -> SilenceHint {
        Box::new(|| "check that its sender runs, and `daq doctor`".to_owned())
    }

    /// Opens sockets, files or devices.
    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError>;
}

/// The lists of everything that a configuration can name.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    /// Drivers of sources.
    pub sources: &'static [SourceEntry],
    /// Built-in kernels.
    pub kernels: &'static [KernelEntry],
    /// Drivers of sinks.
    pub sinks: &'static [SinkEntry],
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
    fn a_place_has_many_spellings() {
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
    fn stems_share_directories() {
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
        // Whoever claims a directory claims what is in it, whoever claims a stem nothing below.
        let path = |path: &str| Claim::Path(path.into());
        assert!(conflict(&adc, &path("out")) && conflict(&adc, &path(".")));
        assert!(!conflict(&adc, &path("out/adc/x")) && !conflict(&adc, &path("out2")));
        assert!(conflict(
            &stem("/data/out/adc"),
            &adc.at(Path::new("/data"))
        ));
    }

    #[test]
    fn relative_paths_start_somewhere() {
        let at = |path: &str| Claim::Path(path.into()).at(Path::new("/data/run"));
        let there = Claim::Path("/data/out".into());
        assert!(there.conflicts(&at("../out")) && there.conflicts(&at("/data/run/../out")));
        assert!(!there.conflicts(&at("out")) && !there.conflicts(&at("../../out")));
        let port = Claim::UdpPort(([0, 0, 0, 0], 4950).into());
        assert_eq!(port.at(Path::new("/data")), port);
    }
}
