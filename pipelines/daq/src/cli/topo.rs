//! `daq topo` shows the PCIe tree and the data path of each source.

use super::load::{Hardware, Loaded, Sources, load_topology};
use super::{exit, show};
use daq_core::claim::Claim;
use daq_core::entry::Registry;
use daq_core::gpu::Backend;
use daq_core::plan::{Config, Plan};
use daq_core::region::Placement;
use daq_core::topology::{DevicePath, P2pPreference, P2pQuery, PeerAccess, Topology};
use daq_core::units::ByteSize;
use daq_pipelines::console::print_error;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// TOML files of a pipeline, whose data paths are shown. Without files, the paths of all
    /// possible source devices are shown.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Set one value of the files, as in `--set ring.raw.slots=128`.
    #[arg(long, value_name = "KEY=VALUE", requires = "files")]
    set: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Show all PCIe devices.
    #[arg(long)]
    all: bool,
    /// Size of the ring that a device writes to, if no files are given.
    #[arg(long, value_name = "SIZE", default_value = "64 MiB")]
    ring: ByteSize,
    /// Save this machine's topology in a new directory, for example for a bug report. The saved files contain no serial
    /// numbers.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "files"])]
    record: Option<PathBuf>,
    /// Show the topology that `--record` saved in DIR.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Mermaid,
}

/// A source or sink with its data path.
struct Row {
    /// The data path; `None` if no device writes frames, or if the ring is not on a GPU.
    device_path: Option<DevicePath>,
    /// The description of the data path in the plan.
    planned: String,
}

/// Reads this machine's topology, and queries the GPUs for all properties that determine a data path.
fn here() -> Topology {
    let mut topology = Topology::detect();
    let gpus = topology.gpus.into_iter();
    topology.gpus = gpus
        .map(|gpu| gpu.with_probed_mappings(&Backend::ALL))
        .collect();
    daq_diagnostics::doctor::read_bar1_sizes(&mut topology.gpus);
    topology
}

pub(super) fn topo(registry: &Registry, args: &Args) -> u8 {
    let topology = match args.from.as_deref().map(load_topology).transpose() {
        Ok(recorded) => recorded.unwrap_or_else(here),
        Err(code) => return code,
    };
    if let Some(dir) = &args.record {
        return record(&topology, dir);
    }
    if args.files.is_empty() {
        let device_paths = candidates(&topology, args.ring);
        return match args.format {
            Format::Mermaid => show(&topology.mermaid(&device_paths, args.all)),
            Format::Text => {
                let device_paths = device_paths
                    .iter()
                    .map(|device_path| format!("\n{}", device_path.text()));
                show(&(topology.tree(args.all) + &device_paths.collect::<String>()))
            }
        };
    }
    let sources = Sources::of(&args.files, &args.set);
    let loaded = match Loaded::read(registry, &sources, Hardware::Recorded(&topology)) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let rows = rows(&loaded.config, &loaded.plan, &topology);
    match args.format {
        Format::Mermaid => {
            let device_paths: Vec<_> = rows.into_iter().filter_map(|row| row.device_path).collect();
            show(&topology.mermaid(&device_paths, args.all))
        }
        Format::Text => {
            let rows = rows.iter().map(|row| {
                let device_path = row
                    .device_path
                    .as_ref()
                    .map_or_else(String::new, DevicePath::text);
                format!("\n{device_path}{}", row.planned)
            });
            show(&(topology.tree(args.all) + &rows.collect::<String>()))
        }
    }
}

fn record(topology: &Topology, dir: &Path) -> u8 {
    if let Err(error) = topology.record(Path::new("/sys"), dir) {
        print_error!("error: {error}");
        return exit::IO;
    }
    let mut bridges = topology.pci.devices.iter().filter(|d| d.is_bridge());
    let hint = if bridges.any(|bridge| bridge.acs.redirects().is_none()) {
        "Without root, the recording does not contain the PCIe ACS settings; to include these settings, run sudo daq \
         topo --record …\n"
    } else {
        ""
    };
    let dir = dir.display();
    show(&format!(
        "topology saved in {dir}, without serial numbers; to pack the directory, run tar czf machine.tar.gz \
         {dir}\n{hint}"
    ))
}

/// Returns the paths of all devices that could be sources. For network cards, also returns the path for reads if this
/// path differs.
fn candidates(topology: &Topology, ring: ByteSize) -> Vec<DevicePath> {
    let pairs = topology.pci.pairs(&topology.gpus);
    pairs
        .flat_map(|(device, gpu)| {
            let judge = |direction| {
                let ring = (gpu.ordinal, ring.0);
                let preference = (P2pPreference::Auto, direction);
                device_path(topology, String::new(), &device.address, ring, preference)
            };
            let write = judge(PeerAccess::Write);
            let read = device
                .is_network()
                .then(|| judge(PeerAccess::Read))
                .filter(|read| read.path.direct != write.path.direct);
            std::iter::once(write).chain(read)
        })
        .collect()
}

/// Returns the path between the device `name` and a ring on a GPU. The GPU is given by its ordinal, the ring by its
/// size in bytes.
fn device_path(
    topology: &Topology,
    name: String,
    device: &str,
    ring: (u32, u64),
    (preference, direction): (P2pPreference, PeerAccess),
) -> DevicePath {
    let (gpu, bytes) = ring;
    DevicePath {
        name,
        device: device.to_owned(),
        gpu,
        direction,
        path: topology.p2p_path(&P2pQuery {
            device,
            gpu,
            bytes,
            preference,
            direction,
        }),
    }
}

/// Returns the rows for the sources of a configuration.
fn rows(config: &Config, plan: &Plan, topology: &Topology) -> Vec<Row> {
    let sources = config.sources.iter();
    sources
        .filter_map(|source| {
            let name = source.name();
            let mut planned = plan.sources.iter();
            let planned = planned.find(|planned| planned.name == name)?;
            let facts = source.spec.facts();
            let needs = facts.engine;
            let preference = needs
                .as_ref()
                .map_or(P2pPreference::Auto, |needs| needs.preference);
            let claims = facts.claims.into_iter();
            let mut claimed = claims.filter_map(|claim| match claim {
                Claim::Device(device) => Some(device),
                _ => None,
            });
            let device = match needs {
                Some(needs) => needs.device,
                None => claimed.next(),
            };
            let ring = plan.ring(&source.keys.ring)?;
            let device_path = match (device, ring.placement) {
                (Some(device), Placement::Cuda(gpu)) => {
                    let ring = (gpu, ring.region_bytes as u64);
                    let name = format!("source {name}");
                    let preference = (preference, PeerAccess::Write);
                    Some(device_path(topology, name, &device, ring, preference))
                }
                _ => None,
            };
            // The plan has information that the topology does not have: the readers of the ring, and the memory that
            // the device can use.
            let is_listed = device_path
                .as_ref()
                .is_some_and(|device_path| device_path.path.data_path() == planned.path);
            let planned = if is_listed {
                String::new()
            } else {
                format!(
                    "source {name}  {}: {}\n",
                    planned.path.name(),
                    planned.reason
                )
            };
            Some(Row {
                device_path,
                planned,
            })
        })
        .chain(readers(config, plan, topology))
        .collect()
}

/// Returns the rows for sinks whose network card can read a ring on a GPU.
fn readers(config: &Config, plan: &Plan, topology: &Topology) -> Vec<Row> {
    let sinks = config.sinks.iter();
    sinks
        .filter_map(|sink| {
            let declared = sink.spec.facts().nic?;
            let name = sink.name();
            let planned = plan.sinks.iter().find(|planned| planned.name == name)?;
            let ring = plan.ring(&sink.keys.input)?;
            let Placement::Cuda(gpu) = ring.placement else {
                return None;
            };
            let device = planned.nic.clone().unwrap_or(declared);
            let ring = (gpu, ring.region_bytes as u64);
            let preference = (P2pPreference::Auto, PeerAccess::Read);
            let device_path =
                device_path(topology, format!("sink {name}"), &device, ring, preference);
            Some(Row {
                device_path: Some(device_path),
                planned: String::new(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
