//! The measured performance of a machine's copies, and the file that stores it.

use super::Tuning;
use crate::staging::Direction;
use crate::topology::pci::{Bridge, Lanes, Link};
use crate::topology::{Gpu, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file name inside the state directory.
const FILE: &str = "staging.json";
/// Minimum total duration of all copies in flight, so that the thread can sleep meanwhile.
const SLACK: Duration = Duration::from_micros(400);
/// The CPU-store threshold in bytes if it was not measured; typical of most machines.
pub(crate) const DEFAULT_CPU_STORE_THRESHOLD: usize = 128 << 10;
/// Maximum plausible CPU-store threshold in bytes.
const MAX_CPU_STORE_THRESHOLD: usize = 1 << 30;
/// Maximum useful number of copies in flight.
const MAX_DEPTH: usize = 8;

/// The measured rates of one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Data rate of the largest copies in bytes per second.
    pub bytes_per_second: f64,
    /// Time of a small copy from the call to its end, in nanoseconds.
    pub latency_ns: u64,
    /// Rates with several copies in flight, by size: `(bytes, bytes per second)`, ascending.
    pub by_size: Vec<(usize, f64)>,
}

impl Rates {
    /// Returns the assumed rates of copies between two GPUs that were not measured: those of NVLink between two H100.
    pub fn assumed_between_gpus() -> Self {
        Self {
            bytes_per_second: 350e9,
            latency_ns: 12_000,
            by_size: vec![(16 << 20, 350e9)],
        }
    }

    /// Returns the tuning with the smallest chunk size within 1.5 % of the fastest rate, and the number of copies in
    /// flight that keeps the device busy. The CPU-store threshold is 0.
    ///
    /// ```
    /// use daq_core::staging::Rates;
    /// let rates = Rates {
    ///     bytes_per_second: 50e9,
    ///     latency_ns: 8_000,
    ///     by_size: vec![(1 << 20, 45e9), (4 << 20, 49.5e9), (16 << 20, 50e9)],
    /// };
    /// let tuning = rates.tuning();
    /// assert_eq!(tuning.chunk, 4 << 20);
    /// assert_eq!(tuning.depth, 6);
    /// ```
    pub fn tuning(&self) -> Tuning {
        self.tuning_for(None, None)
    }

    /// Returns the tuning as [`tuning`](Self::tuning) does, but with a given chunk size or number of copies in flight.
    /// If only the chunk size is given, the number of copies in flight is calculated for this chunk size.
    ///
    /// ```
    /// # use daq_core::staging::Rates;
    /// # let rates = Rates { bytes_per_second: 50e9, latency_ns: 8_000, by_size: vec![(4 << 20, 50e9)] };
    /// assert_eq!(rates.tuning_for(Some(64 << 10), None).depth, 8);
    /// assert_eq!(rates.tuning_for(Some(64 << 20), None).depth, 3);
    /// assert_eq!(rates.tuning_for(Some(64 << 20), Some(2)).depth, 2);
    /// ```
    pub fn tuning_for(&self, chunk: Option<usize>, depth: Option<usize>) -> Tuning {
        let chunk = chunk.unwrap_or_else(|| self.chunk()).max(1);
        let rate = self.bytes_per_second.max(1.0);
        let takes = chunk as f64 / rate;
        let wanted = (SLACK.as_secs_f64() / takes).ceil() + 1.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is small and positive"
        )]
        let fits = (wanted as usize).clamp(3, MAX_DEPTH);
        Tuning {
            chunk,
            depth: depth.unwrap_or(fits).max(1),
            rate,
            overhead: Duration::from_nanos(self.latency_ns / 4),
            cpu_store_threshold: 0,
        }
    }

    /// Returns the smallest copy size within 1.5 % of the fastest rate.
    fn chunk(&self) -> usize {
        let best = self
            .by_size
            .iter()
            .map(|(_, rate)| *rate)
            .fold(0.0, f64::max);
        let near = |(_, rate): &&(usize, f64)| *rate >= 0.985 * best;
        self.by_size
            .iter()
            .find(near)
            .map_or(4 << 20, |(bytes, _)| *bytes)
    }

    /// Whether the rates are plausible, because the file may contain invalid values.
    fn is_possible(&self) -> bool {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let sizes = &mut self.by_size.iter();
        is_rate(self.bytes_per_second) && sizes.all(|(bytes, rate)| *bytes > 0 && is_rate(*rate))
    }
}

/// The measured performance of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Rates from host memory to the GPU.
    #[serde(rename = "in")]
    pub inward: Rates,
    /// Rates from the GPU to host memory.
    #[serde(rename = "out")]
    pub outward: Rates,
    /// Size in bytes from which the copy engine is faster than CPU stores; 0 if the copy engine is always faster.
    /// `None` if the CPU could not store to the GPU's memory during the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_store_threshold: Option<usize>,
    /// Measured results of NICs that send frames from the GPU's memory, by name of the NIC.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards: BTreeMap<String, Sending>,
    /// Measured rates of copies to other GPUs, by their UUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, Rates>,
}

/// The measured performance of a NIC that sends frames from a GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Frame size in bytes from which sending through a copy in host memory is as fast as sending from GPU memory; 0 if
    /// it always is, `None` if it never is.
    pub staged_from: Option<usize>,
    /// The largest measured frame size in bytes. Nothing is known about larger frames.
    pub max_bytes: usize,
    /// The hardware that the result depends on ([`Topology::measurement_basis`]).
    pub basis: String,
}

impl Profile {
    /// Returns the assumed performance of a machine that was not measured: PCIe 3.0 with 16 lanes.
    pub fn assumed() -> Self {
        let rates = Rates {
            bytes_per_second: 12e9,
            latency_ns: 10_000,
            by_size: vec![(4 << 20, 12e9)],
        };
        Self {
            inward: rates.clone(),
            outward: rates,
            cpu_store_threshold: None,
            cards: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    /// Returns the maximum size in bytes of bursts that the CPU stores if it can write the ring: the measured
    /// threshold, or 128 KiB.
    pub fn cpu_store_threshold(&self) -> usize {
        self.cpu_store_threshold
            .unwrap_or(DEFAULT_CPU_STORE_THRESHOLD)
    }

    /// Returns the tuning of copies in `direction`.
    pub fn tuning(&self, direction: Direction) -> Tuning {
        self.tuning_for(direction, None, None)
    }

    /// Returns the tuning of copies in `direction` with a given chunk size or depth; see [`Rates::tuning_for`].
    pub fn tuning_for(
        &self,
        direction: Direction,
        chunk: Option<usize>,
        depth: Option<usize>,
    ) -> Tuning {
        match direction {
            Direction::In => Tuning {
                cpu_store_threshold: self.cpu_store_threshold(),
                ..self.inward.tuning_for(chunk, depth)
            },
            Direction::Out => self.outward.tuning_for(chunk, depth),
        }
    }

    fn is_possible(&self) -> bool {
        let is_threshold_possible = self
            .cpu_store_threshold
            .is_none_or(|bytes| bytes <= MAX_CPU_STORE_THRESHOLD);
        let mut rates = [&self.inward, &self.outward]
            .into_iter()
            .chain(self.peers.values());
        rates.all(Rates::is_possible) && is_threshold_possible
    }
}

/// Profiles of a machine's GPUs. They are valid until the hardware changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiles {
    /// The profiles, by [`Basis::fingerprint`].
    gpus: BTreeMap<String, Profile>,
}

/// The file with the profiles exists and could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the measured copy rates in {}: {source}; run `daq tune` to measure them again", path.display())]
pub struct ProfilesError {
    /// Path of the file.
    pub path: PathBuf,
    /// The error of the system call, or of the parser.
    pub source: io::Error,
}

/// The hardware and software that a profile depends on.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// NUMA nodes and cores.
    pub topology: &'a Topology,
    /// The GPU and its link.
    pub gpu: &'a Gpu,
    /// The bridges between the GPU and the processor.
    pub bridges: &'a [Bridge],
    /// The CUDA version that the driver supports, in the driver's encoding.
    pub cuda: i32,
    /// The version text of the driver's Linux module; `None` if it has none.
    pub module: Option<&'a str>,
}

impl Basis<'_> {
    /// Returns a text of all properties that a profile depends on: the GPU, its slot, link and bridges, the driver, the
    /// CPU cores and NUMA nodes. If the text changes, the profile is not valid any more.
    ///
    /// The text contains the maximum supported link speeds, because an idle link lowers its speed, and the current link
    /// widths.
    pub fn fingerprint(&self) -> String {
        let Self { topology, gpu, .. } = self;
        let as_wide = |link: Link| Lanes {
            width: link.current.width,
            ..link.max
        };
        let describe =
            |link: Option<Lanes>| link.map_or_else(|| "?".to_owned(), |lanes| lanes.to_string());
        let nodes = topology.nodes.iter();
        let nodes: Vec<_> = nodes.map(|node| format!("{:?}", node.cores)).collect();
        // `daq tune` may run on other cores than `daq run`. Therefore use the cores of this process only if the cores
        // of the NUMA nodes are unknown.
        let cores = match topology.nodes.iter().map(|node| node.cores.len()).sum() {
            0 => topology.cores.len(),
            all => all,
        };
        let bridges = self.bridges.iter().filter_map(|bridge| bridge.link);
        format!(
            "{}|{}|{}|node {:?}|link {}|bridge {}|CUDA {}|module {}|nodes {}|{cores} cores",
            gpu.uuid.as_deref().unwrap_or("?"),
            gpu.name,
            gpu.pci.as_deref().unwrap_or("?"),
            gpu.node,
            describe(gpu.link.map(as_wide)),
            describe(bridges.map(as_wide).min_by_key(|lanes| lanes.rate())),
            self.cuda,
            self.module.unwrap_or("?"),
            nodes.join(","),
        )
    }
}

impl Profiles {
    /// Reads the profiles in `directory`; returns no profiles if there is no file. Implausible profiles are dropped.
    pub fn load(directory: &Path) -> Result<Self, ProfilesError> {
        let path = directory.join(FILE);
        let bytes = match crate::file::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read,
        };
        let kept = bytes.and_then(|bytes| Ok(serde_json::from_slice::<Self>(&bytes)?));
        let mut kept = kept.map_err(|source| ProfilesError { path, source })?;
        kept.gpus.retain(|_, profile| profile.is_possible());
        Ok(kept)
    }

    /// Writes the profiles to `directory`, which is created if necessary.
    pub fn save(&self, directory: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(directory)?;
        let file = directory.join(FILE);
        let next = directory.join(format!("{FILE}.{}", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        crate::file::replace(&file, &next, (text + "\n").as_bytes())?;
        Ok(file)
    }

    /// Returns the profile for a fingerprint, if it is valid.
    pub fn get(&self, fingerprint: &str) -> Option<&Profile> {
        self.gpus.get(fingerprint)
    }

    /// Stores a profile, keeping the NIC results of a valid earlier one. Removes outdated profiles of the same GPU.
    pub fn set(&mut self, fingerprint: String, mut profile: Profile) {
        if let Some(known) = self.gpus.get(&fingerprint) {
            for (card, sending) in &known.cards {
                let entry = profile.cards.entry(card.clone());
                entry.or_insert_with(|| sending.clone());
            }
        }
        let gpu = fingerprint.split('|').next().unwrap_or_default().to_owned();
        self.gpus
            .retain(|other, _| other.split('|').next() != Some(&gpu));
        self.gpus.insert(fingerprint, profile);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let rates = Rates {
            bytes_per_second: 12.5e9,
            latency_ns: 7000,
            by_size: vec![(1 << 20, 12.4e9)],
        };
        Profile {
            inward: rates.clone(),
            outward: rates,
            cpu_store_threshold: Some(96 << 10),
            cards: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    #[test]
    fn profile_of_older_version_uses_default_threshold() {
        let directory = tempfile::tempdir().unwrap();
        let rates =
            "{\"bytes_per_second\": 5e10, \"latency_ns\": 7000, \"by_size\": [[4194304, 5e10]]}";
        let text = format!("{{\"gpus\": {{\"GPU-1|\": {{\"in\": {rates}, \"out\": {rates}}}}}}}");
        std::fs::write(directory.path().join(FILE), text).unwrap();
        let kept = Profiles::load(directory.path()).unwrap();
        let profile = kept.get("GPU-1|").unwrap();
        assert_eq!(profile.cpu_store_threshold, None);
        assert_eq!(
            profile.tuning(Direction::In).cpu_store_threshold,
            DEFAULT_CPU_STORE_THRESHOLD
        );
        assert_eq!(profile.tuning(Direction::Out).cpu_store_threshold, 0);
    }

    #[test]
    fn measured_threshold_applies_to_host_to_gpu_only() {
        assert_eq!(
            profile().tuning(Direction::In).cpu_store_threshold,
            96 << 10
        );
        assert_eq!(profile().tuning(Direction::Out).cpu_store_threshold, 0);
    }

    #[test]
    fn saved_profile_is_valid_until_machine_changes() {
        let directory = tempfile::tempdir().unwrap();
        let print = "GPU-1|driver 1".to_owned();
        let mut profiles = Profiles::load(directory.path()).unwrap();
        assert_eq!(profiles, Profiles::default());
        profiles.set(print.clone(), profile());
        profiles.save(&directory.path().join("daq")).unwrap();
        let mut profiles = Profiles::load(&directory.path().join("daq")).unwrap();
        assert_eq!(profiles.get(&print), Some(&profile()));
        let newer = "GPU-1|driver 2".to_owned();
        assert_eq!(profiles.get(&newer), None);
        profiles.set(newer, profile());
        assert_eq!(
            profiles.get(&print),
            None,
            "the outdated profile is removed"
        );
    }

    #[test]
    fn nic_profile_is_kept_until_measured_again() {
        let with = |cards: &[(&str, Option<usize>)]| Profile {
            cards: cards
                .iter()
                .map(|(name, staged_from)| {
                    let sending = Sending {
                        staged_from: *staged_from,
                        max_bytes: 1 << 20,
                        basis: "0000:81:00.0".to_owned(),
                    };
                    ((*name).to_owned(), sending)
                })
                .collect(),
            ..profile()
        };
        let mut profiles = Profiles::default();
        let both = with(&[("mlx5_0", Some(4096)), ("mlx5_1", None)]);
        profiles.set("GPU-1|".to_owned(), both);
        profiles.set("GPU-1|".to_owned(), profile());
        profiles.set("GPU-1|".to_owned(), with(&[("mlx5_0", Some(64))]));
        let known = &profiles.get("GPU-1|").unwrap().cards;
        assert_eq!(known["mlx5_0"].staged_from, Some(64));
        assert_eq!(known["mlx5_1"].staged_from, None);
        let text = serde_json::to_string(&profiles).unwrap();
        assert_eq!(serde_json::from_str::<Profiles>(&text).unwrap(), profiles);
    }

    #[test]
    fn invalid_profile_file_is_reported_with_path_and_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, "{\"gpus\": 7}").unwrap();
        let error = Profiles::load(directory.path()).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
        assert!(error.contains("invalid type: integer `7`"), "{error}");
    }

    #[test]
    fn impossible_rates_are_ignored() {
        let wrong: [fn(&mut Profile); 7] = [
            |profile| {
                let rates = Rates {
                    bytes_per_second: 0.0,
                    ..profile.inward.clone()
                };
                profile.peers.insert("GPU-2".to_owned(), rates);
            },
            |profile| profile.cpu_store_threshold = Some(usize::MAX),
            |profile| profile.inward.bytes_per_second = 0.0,
            |profile| profile.outward.bytes_per_second = -1.0,
            |profile| profile.outward.bytes_per_second = f64::NAN,
            |profile| profile.inward.by_size[0].1 = f64::INFINITY,
            |profile| profile.inward.by_size[0].0 = 0,
        ];
        for spoil in wrong {
            let directory = tempfile::tempdir().unwrap();
            let mut profiles = Profiles::default();
            let mut spoiled = profile();
            spoil(&mut spoiled);
            profiles.set("GPU-1|".to_owned(), spoiled.clone());
            profiles.save(directory.path()).unwrap();
            // A rate that is no number cannot be read from the file.
            let loaded = Profiles::load(directory.path()).unwrap_or_default();
            assert_eq!(loaded, Profiles::default(), "{spoiled:?}");
        }
        assert!(profile().is_possible());
    }

    const fn lanes(generation: u32, width: u32) -> Lanes {
        Lanes { generation, width }
    }

    fn bridge(current: Lanes, max: Lanes) -> Bridge {
        Bridge {
            address: "0000:3a:01.0".to_owned(),
            link: Some(Link { current, max }),
        }
    }

    /// The properties of a machine, which the tests change one by one.
    #[derive(Clone)]
    struct Machine {
        topology: Topology,
        gpu: Gpu,
        bridges: Vec<Bridge>,
        cuda: i32,
        module: Option<&'static str>,
    }

    impl Machine {
        fn new() -> Self {
            let cores = vec![0, 1, 2, 3];
            let link = Link {
                current: lanes(5, 16),
                max: lanes(5, 16),
            };
            Self {
                topology: Topology {
                    nodes: vec![crate::topology::Node {
                        id: 0,
                        cores: cores.clone(),
                    }],
                    cores,
                    ..Topology::unknown()
                },
                gpu: Gpu {
                    uuid: Some("GPU-1".to_owned()),
                    pci: Some("0000:3b:00.0".to_owned()),
                    node: Some(0),
                    link: Some(link),
                    ..Gpu::new(0, "Test")
                },
                bridges: vec![bridge(lanes(5, 16), lanes(5, 16)); 2],
                cuda: 13_000,
                module: Some("580.65.06"),
            }
        }

        fn fingerprint(&self) -> String {
            let basis = Basis {
                topology: &self.topology,
                gpu: &self.gpu,
                bridges: &self.bridges,
                cuda: self.cuda,
                module: self.module,
            };
            basis.fingerprint()
        }
    }

    type Change = fn(&mut Machine);

    #[test]
    fn machine_change_alters_fingerprint() {
        let changes: [(&str, Change); 14] = [
            ("card", |m| m.gpu.uuid = Some("GPU-2".to_owned())),
            ("name", |m| m.gpu.name = "Other".to_owned()),
            ("slot", |m| m.gpu.pci = Some("0000:5b:00.0".to_owned())),
            ("node", |m| m.gpu.node = Some(1)),
            ("link", |m| m.gpu.link = None),
            ("width", |m| {
                m.gpu.link.as_mut().unwrap().current = lanes(5, 8);
            }),
            ("capability", |m| {
                m.gpu.link.as_mut().unwrap().max = lanes(4, 16);
            }),
            ("slot's capability", |m| {
                m.bridges[1] = bridge(lanes(3, 16), lanes(3, 16));
            }),
            ("slot's width", |m| {
                m.bridges[0] = bridge(lanes(5, 4), lanes(5, 16));
            }),
            ("CUDA", |m| m.cuda = 13_010),
            ("kernel module", |m| m.module = Some("580.95.05")),
            ("nodes", |m| m.topology.nodes[0].cores = vec![0, 1]),
            ("no nodes", |m| m.topology.nodes.clear()),
            ("cores", |m| {
                m.topology.nodes.clear();
                m.topology.cores = vec![0, 1];
            }),
        ];
        let before = Machine::new();
        let mut seen = vec![before.fingerprint()];
        for (what, change) in changes {
            let mut machine = before.clone();
            change(&mut machine);
            let print = machine.fingerprint();
            assert!(!seen.contains(&print), "{what}: {print}");
            seen.push(print);
        }
    }

    #[test]
    fn idle_link_and_cpu_affinity_keep_fingerprint() {
        let (mut idle, busy) = (Machine::new(), Machine::new());
        idle.topology.cores = vec![2];
        idle.gpu.link.as_mut().unwrap().current = lanes(1, 16);
        idle.bridges[0] = bridge(lanes(1, 16), lanes(5, 16));
        assert_eq!(idle.fingerprint(), busy.fingerprint());
    }
}
