//! What was measured of a machine's copies, and where it is kept.

use super::Tuning;
use crate::plan::Direction;
use crate::topology::{Gpu, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Where it is kept, inside the state directory.
const FILE: &str = "staging.json";
/// Copies in flight together should take this long, so that a thread can sleep meanwhile.
const SLACK: Duration = Duration::from_micros(400);
/// The most copies in flight that are worth their bookkeeping.
const MOST_DEPTH: usize = 8;

/// What was measured of one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a second of the largest copies.
    pub bytes_per_second: f64,
    /// Nanoseconds that a small copy takes from its call to its end.
    pub latency_ns: u64,
    /// Bytes a second of copies of each size, several in flight: `(bytes, rate)`, ascending.
    pub by_size: Vec<(usize, f64)>,
}

impl Rates {
    /// The smallest copies that come within 1.5 % of the fastest, and as many in flight as keep the device busy.
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
        let best = self
            .by_size
            .iter()
            .map(|(_, rate)| *rate)
            .fold(0.0, f64::max);
        let near = |(_, rate): &&(usize, f64)| *rate >= 0.985 * best;
        let chunk = self
            .by_size
            .iter()
            .find(near)
            .map_or(4 << 20, |(bytes, _)| *bytes);
        let rate = self.bytes_per_second.max(1.0);
        let takes = chunk as f64 / rate;
        let wanted = (SLACK.as_secs_f64() / takes).ceil() + 1.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small and positive"
        )]
        let depth = (wanted as usize).clamp(3, MOST_DEPTH);
        Tuning {
            chunk,
            depth,
            rate,
            overhead: Duration::from_nanos(self.latency_ns / 4),
        }
    }
}

/// What was measured of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// From host memory to the GPU.
    #[serde(rename = "in")]
    pub inward: Rates,
    /// From the GPU to host memory.
    #[serde(rename = "out")]
    pub outward: Rates,
}

impl Profile {
    /// What suits most machines, for one that was not measured: a bus of the third generation with 16 lanes.
    pub fn usual() -> Self {
        let rates = Rates {
            bytes_per_second: 12e9,
            latency_ns: 10_000,
            by_size: vec![(4 << 20, 12e9)],
        };
        Self {
            inward: rates.clone(),
            outward: rates,
        }
    }

    /// How to copy that way.
    pub fn tuning(&self, direction: Direction) -> Tuning {
        match direction {
            Direction::In => self.inward.tuning(),
            Direction::Out => self.outward.tuning(),
        }
    }
}

/// Profiles of a machine's GPUs, valid as long as the machine stays what it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiles {
    /// By [`fingerprint`](Self::fingerprint).
    gpus: BTreeMap<String, Profile>,
}

impl Profiles {
    /// What must not change for a profile to hold: the GPU, its place and link, the driver, the cores and nodes.
    pub fn fingerprint(topology: &Topology, gpu: &Gpu, driver: &str) -> String {
        let nodes = topology
            .nodes
            .iter()
            .map(|node| format!("{:?}", node.cores));
        let link = gpu
            .link
            .map_or_else(String::new, |link| format!("{:?}", link.most));
        format!(
            "{}|{}|{}|node {:?}|{link}|driver {driver}|nodes {}",
            gpu.uuid.as_deref().unwrap_or("?"),
            gpu.name,
            gpu.pci.as_deref().unwrap_or("?"),
            gpu.node,
            nodes.collect::<Vec<_>>().join(","),
        )
    }

    /// What is kept in `directory`; nothing where nothing readable is.
    pub fn load(directory: &Path) -> Self {
        std::fs::read(directory.join(FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    /// Keeps the profiles in `directory`, which is made if it is not there.
    pub fn save(&self, directory: &Path) -> io::Result<std::path::PathBuf> {
        std::fs::create_dir_all(directory)?;
        let file = directory.join(FILE);
        let next = directory.join(format!("{FILE}.{}", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        std::fs::write(&next, text + "\n")?;
        std::fs::rename(&next, &file)?;
        Ok(file)
    }

    /// The profile that is valid for a fingerprint.
    pub fn get(&self, fingerprint: &str) -> Option<&Profile> {
        self.gpus.get(fingerprint)
    }

    /// Keeps a profile; one of the same GPU that is not valid any more goes.
    pub fn set(&mut self, fingerprint: String, profile: Profile) {
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
        }
    }

    #[test]
    fn what_is_kept_is_found_until_the_machine_changes() {
        let directory = tempfile::tempdir().unwrap();
        let topology = Topology::unknown();
        let gpu = Gpu {
            uuid: Some("GPU-1".to_owned()),
            ..Gpu::new(0, "Test")
        };
        let print = Profiles::fingerprint(&topology, &gpu, "13.0");
        let mut profiles = Profiles::load(directory.path());
        assert_eq!(profiles, Profiles::default());
        profiles.set(print.clone(), profile());
        profiles.save(&directory.path().join("daq")).unwrap();
        let mut profiles = Profiles::load(&directory.path().join("daq"));
        assert_eq!(profiles.get(&print), Some(&profile()));
        let newer = Profiles::fingerprint(&topology, &gpu, "13.1");
        assert_eq!(profiles.get(&newer), None);
        profiles.set(newer, profile());
        assert_eq!(profiles.get(&print), None, "the old one goes");
    }

    #[test]
    fn a_file_that_is_no_profile_is_as_none() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{\"gpus\": 7}").unwrap();
        assert_eq!(Profiles::load(directory.path()), Profiles::default());
    }
}
