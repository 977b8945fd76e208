//! `daq tune` measures the copy rates of this machine's GPUs and saves them for later runs.

use super::{exit, show};
use daq_core::gpu::driver::Device;
use daq_core::staging::{MeasureError, Profile, Rates, measure, measure_peer, verify_peer};
use daq_core::topology::{Gpu, Topology};
use daq_core::units::ByteSize;
use daq_pipelines::console::{Progress, print_error};
use daq_pipelines::profiles::{NO_DIRECTORY, fingerprint, load};
use daq_pipelines::program::state_directory;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory for the results [default: the state directory].
    #[arg(long, value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn tune(args: &Args) -> u8 {
    let progress = Progress::start("tune");
    let code = measure_all(args, &progress);
    progress.end();
    code
}

/// Measures and saves the profiles of all GPUs. Returns the exit code.
fn measure_all(args: &Args, progress: &Progress) -> u8 {
    let show = |text: &str| progress.paused(|| show(text));
    let topology = Topology::detect();
    if topology.gpus.is_empty() {
        print_error!("error: no GPU to measure: {}", topology.no_gpu);
        return exit::UNAVAILABLE;
    }
    let directory = state_directory(args.state_dir.as_deref());
    let mut profiles = directory.as_deref().map(load).unwrap_or_default();
    let mut output = serde_json::Map::new();
    progress.rounds(topology.gpus.len(), 1);
    for gpu in &topology.gpus {
        let name = format!("cuda:{}", gpu.ordinal);
        progress.step(Some(name.clone()));
        let device = match Device::open(gpu.ordinal) {
            Ok(device) => device,
            Err(error) => {
                print_error!("error: {error}");
                return exit::UNAVAILABLE;
            }
        };
        let start = Instant::now();
        let profile = match measure_with_peers(gpu, device) {
            Ok(profile) => profile,
            Err(error) => {
                print_error!("error: cannot measure {name}: {error}");
                return exit::UNAVAILABLE;
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        if args.json {
            let profile =
                serde_json::json!({ "name": gpu.name, "seconds": seconds, "profile": profile });
            output.insert(name, profile);
        } else {
            let text = describe(&profile, &topology);
            show(&format!(
                "{name}  {}, measured in {seconds:.2} s\n{text}",
                gpu.name
            ));
        }
        profiles.set(fingerprint(&topology, gpu), profile);
    }
    if args.json {
        show(&(serde_json::to_string_pretty(&output).unwrap_or_default() + "\n"));
    }
    let Some(directory) = directory else {
        print_error!("error: {NO_DIRECTORY}, or give --state-dir");
        return exit::IO;
    };
    match profiles.save(&directory) {
        Ok(file) if !args.json => show(&format!("saved in {}\n", file.display())),
        Ok(_) => 0,
        Err(error) => {
            print_error!(
                "error: cannot save the profiles in {}: {error}",
                directory.display()
            );
            exit::IO
        }
    }
}

/// Measures a GPU, and the copies from this GPU to the GPUs whose memory it can write.
fn measure_with_peers(gpu: &Gpu, device: &'static Device) -> Result<Profile, MeasureError> {
    let mut profile = measure(device)?;
    for peer in gpu.peers.iter().flatten().map(|(peer, _)| *peer) {
        let peer = Device::open(peer)?;
        verify_peer(device, peer)?;
        let rates = measure_peer(device, peer)?;
        profile.peers.insert(peer.identity().uuid.clone(), rates);
    }
    Ok(profile)
}

fn describe(profile: &Profile, topology: &Topology) -> String {
    let method = |name: &str, rates: &Rates| {
        let tuning = rates.tuning();
        let latency = rates.latency_ns as f64 / 1e3;
        let rate = rates.bytes_per_second / 1e9;
        let chunk = ByteSize(tuning.chunk as u64);
        let mut text = format!(
            "  {name:<4} {rate:6.2} GB/s, small copy {latency:.1} µs; chunk {chunk}, {} in flight\n",
            tuning.depth
        );
        for (bytes, rate) in &rates.by_size {
            let size = ByteSize(*bytes as u64).to_string();
            text += &format!("       {size:>8}  {:6.2} GB/s\n", rate / 1e9);
        }
        text
    };
    let cpu_store_threshold = match profile.cpu_store_threshold {
        Some(0) => "  GPU copies are faster than CPU stores at every size\n".to_owned(),
        Some(bytes) => format!(
            "  CPU stores are faster than GPU copies up to {}\n",
            ByteSize(bytes as u64)
        ),
        None => format!(
            "  CPU stores to GPU memory are not available; the default threshold is {}\n",
            ByteSize(profile.cpu_store_threshold() as u64)
        ),
    };
    let peers = topology.gpus.iter().filter_map(|gpu| {
        let rates = profile.peers.get(gpu.uuid.as_ref()?)?;
        Some(method(&format!("to cuda:{}", gpu.ordinal), rates))
    });
    let peers: String = peers.collect();
    method("in", &profile.inward) + &method("out", &profile.outward) + &peers + &cpu_store_threshold
}
