//! `daq selftest`: checks of this machine that say what was expected and what was found.

use super::{exit, show};
use crate::selftest::{self, Options};
use clap::{Subcommand, ValueEnum};
use daq_core::mapped::Backend;
use daq_core::units::Span;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Whether what the CPU and a GPU store for each other arrives, by every way that this machine has. Exits with 1 if
    /// a check failed, with 69 if there is no GPU.
    Gpu {
        /// CUDA's number of the GPU.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// What maps the GPU's memory; all ways without.
        #[arg(long = "backend", value_enum, value_delimiter = ',')]
        backends: Vec<BackendArg>,
        /// The checks, by name; all without.
        #[arg(long = "check", value_delimiter = ',', value_parser = names())]
        checks: Vec<String>,
        /// How long a kernel that stays may take to stop.
        #[arg(long, value_name = "TIME", default_value = "100 ms")]
        limit: Span,
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

fn names() -> clap::builder::PossibleValuesParser {
    let names = selftest::list().into_iter().map(|(name, _)| name);
    names.collect::<Vec<_>>().into()
}

pub(super) fn selftest(args: &Args) -> u8 {
    let What::Gpu {
        device,
        backends,
        checks,
        limit,
        list,
        json,
    } = &args.what;
    if *list {
        return show(&told(&selftest::list(), *json));
    }
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
        device: *device,
        backends,
        checks: checks.clone(),
        limit: limit.0,
    };
    match selftest::gpu(&options) {
        Ok(report) => {
            let text = if *json {
                serde_json::to_string_pretty(&report.json()).unwrap_or_default() + "\n"
            } else {
                report.to_string()
            };
            show(&text).max(u8::from(report.has_failed()))
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn told(checks: &[(&str, &str)], json: bool) -> String {
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
