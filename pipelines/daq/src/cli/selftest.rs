//! `daq selftest` verifies that CPU, GPU and network cards can exchange data.

use super::{exit, show};
use clap::{Subcommand, ValueEnum};
use daq_core::entry::Registry;
use daq_core::gpu::Backend;
use daq_core::units::Span;
use daq_diagnostics::selftest::{self, Options};
use daq_pipelines::console::{Progress, print_error};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Verify stores between the CPU and a GPU with every mapping backend of this machine. Exits with 1 if a check
    /// fails, with 69 if there is no GPU.
    Gpu {
        /// CUDA device number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Mapping backends to check [default: all].
        #[arg(long = "backend", value_enum, value_delimiter = ',')]
        backends: Vec<BackendArg>,
        /// Names of the checks to run [default: all].
        #[arg(long = "check", value_delimiter = ',', value_parser = parser(&selftest::list()))]
        checks: Vec<String>,
        /// Time limit for a persistent kernel to stop.
        #[arg(long, value_name = "TIME", default_value = "100 ms")]
        limit: Span,
        /// List the checks.
        #[arg(long)]
        list: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Verify RDMA network cards: register and write host and GPU memory, reject invalid keys, reconnect, and send
    /// frames from a stream sink to a stream source. Each card connects to itself. The report lists the passed checks,
    /// the operations that the system refused with the fix for each, and the findings of `daq doctor`. Attach the
    /// report to bug reports. Exits with 1 if a check fails, with 69 if there is no card.
    Rdma {
        /// Network cards: `mlx5_0`, `mlx5_0:PORT` or `mlx5_0:PORT@GID`; `emulated` is an emulated card
        /// [default: all cards].
        #[arg(long, value_delimiter = ',')]
        nics: Vec<String>,
        /// CUDA device number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Names of the checks to run [default: all].
        #[arg(long = "check", value_delimiter = ',', value_parser = parser(&selftest::rdma::list()))]
        checks: Vec<String>,
        /// List the checks.
        #[arg(long)]
        list: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BackendArg {
    Gdrapi,
    DmaBuf,
    Vulkan,
    Host,
}

fn parser(checks: &[(&'static str, &str)]) -> clap::builder::PossibleValuesParser {
    let names = checks.iter().map(|(name, _)| *name);
    names.collect::<Vec<_>>().into()
}

pub(super) fn selftest(registry: &Registry, args: &Args) -> u8 {
    match &args.what {
        What::Gpu {
            list: true, json, ..
        } => show(&render_list(&selftest::list(), *json)),
        What::Rdma {
            list: true, json, ..
        } => show(&render_list(&selftest::rdma::list(), *json)),
        What::Gpu {
            device,
            backends,
            checks,
            limit,
            json,
            ..
        } => gpu(*device, backends, checks, *limit, *json),
        What::Rdma {
            nics,
            device,
            checks,
            json,
            ..
        } => {
            let options = selftest::rdma::Options {
                nics: nics.clone(),
                device: *device,
                checks: checks.clone(),
            };
            let progress = Progress::start("selftest");
            let report = selftest::rdma::rdma(registry, &options, &progress);
            progress.end();
            print_report(
                report.map(|report| (render(*json, &report.json(), &report), report.has_failed())),
            )
        }
    }
}

/// Formats a report as JSON or text.
fn render(is_json: bool, json: &serde_json::Value, text: &dyn std::fmt::Display) -> String {
    if is_json {
        serde_json::to_string_pretty(json).unwrap_or_default() + "\n"
    } else {
        text.to_string()
    }
}

/// Prints a report; returns the exit code.
fn print_report(report: Result<(String, bool), impl std::fmt::Display>) -> u8 {
    match report {
        Ok((text, has_failed)) => show(&text).max(u8::from(has_failed)),
        Err(error) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn gpu(device: u32, backends: &[BackendArg], checks: &[String], limit: Span, json: bool) -> u8 {
    let mut backends: Vec<_> = backends
        .iter()
        .map(|backend| match backend {
            BackendArg::Gdrapi => Backend::Gdrapi,
            BackendArg::DmaBuf => Backend::DmaBuf,
            BackendArg::Vulkan => Backend::Vulkan,
            BackendArg::Host => Backend::Host,
        })
        .collect();
    if backends.is_empty() {
        backends.extend(Backend::ALL);
    }
    let options = Options {
        device,
        backends,
        checks: checks.to_vec(),
        limit: limit.0,
    };
    let progress = Progress::start("selftest");
    let report = selftest::gpu(&options, &progress);
    progress.end();
    print_report(report.map(|report| (render(json, &report.json(), &report), report.has_failed())))
}

fn render_list(checks: &[(&str, &str)], json: bool) -> String {
    if json {
        let checks: Vec<_> = checks
            .iter()
            .map(|(check, what)| serde_json::json!({ "check": check, "what": what }))
            .collect();
        return serde_json::to_string_pretty(&checks).unwrap_or_default() + "\n";
    }
    let lines = checks
        .iter()
        .map(|(check, what)| format!("{check:<19} {what}\n"));
    lines.collect()
}
