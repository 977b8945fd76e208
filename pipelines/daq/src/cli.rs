//! The command line, with one file per command.

mod bench;
mod changes;
mod check;
mod emulate;
mod finite;
mod graph;
mod guard;
mod inspect;
mod list;
mod live;
mod load;
mod log;
mod ls;
mod new;
mod reference;
mod run;
mod selftest;
mod signal;
mod starting;
mod state;
mod tap;
mod top;
mod topo;
mod tune;
mod wait_ready;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use daq_core::entry::Registry;
use daq_core::plan::GraphFormat;
use daq_core::units::Span;
use daq_pipelines::console::{self, print_error};
use daq_pipelines::program::{exit, show};
use load::{Hardware, Loaded, Machine, Sources};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Stream sensor data into rings, run kernels on it, write files, and account for every packet.
#[derive(Debug, Parser)]
#[command(name = "daq", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a pipeline until its sources end or a signal stops it.
    Run(run::Args),
    /// Check a configuration and print all errors at once.
    Check {
        #[command(flatten)]
        sources: Sources,
        #[command(flatten)]
        machine: Machine,
    },
    /// Print the plan: what runs where, with sizes, data paths and reasons.
    Plan {
        #[command(flatten)]
        sources: Sources,
        #[command(flatten)]
        machine: Machine,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the running pipelines of this user, and their rings.
    Ls(ls::Args),
    /// Wait until a running pipeline receives data: all its sources have started.
    WaitReady(wait_ready::Args),
    /// List sources, packet formats, DMA engines, kernels, sinks and emulated devices.
    List,
    /// Print a valid, commented configuration as a starting point.
    New {
        /// The source, kernels and sink, for example `udp/power-spectrum/file`. Defaults are used for parts that are
        /// left out. A source can be followed by a packet format: `udp-spead/file`. `daq list` lists all names.
        #[arg(value_name = "SOURCE/KERNEL/SINK")]
        parts: String,
    },
    /// Print a diagram of the pipeline.
    Graph {
        #[command(flatten)]
        sources: Sources,
        /// Language of the diagram.
        #[arg(long, value_enum, default_value = "mermaid")]
        format: Format,
    },
    /// Show the PCIe topology, and whether a device can write directly to GPU memory.
    Topo(topo::Args),
    /// Diagnose this machine and print the commands that fix it.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// How long to watch drop counters. With 0s only the totals since boot are read.
        #[arg(long, value_name = "TIME", default_value = "1 s")]
        sample: Span,
    },
    /// Examine packets of a capture or an interface, and print a source that receives them. Exits with 1 if no format is
    /// recognised.
    Inspect(inspect::Args),
    /// Benchmark data paths of this machine: to a GPU, from an FPGA, and to another host.
    ///
    /// The program daq-bench contains the benchmarks and their options: run `daq bench --help`.
    #[command(disable_help_flag = true)]
    Bench(bench::Args),
    /// Verify that CPU, GPU and network cards can exchange data on this machine.
    Selftest(selftest::Args),
    /// Print the newest frames of a ring of a running pipeline.
    Tap(tap::Args),
    /// Emulate a device for a source in another process.
    #[command(subcommand)]
    Emulate(emulate::Device),
    /// Measure the copy rates of this machine's GPUs and save them for later runs (under 1 s per GPU).
    Tune(tune::Args),
    /// Show the state of running pipelines: rates, losses, fill of rings, lag and latency of readers.
    Top(top::Args),
    /// Print the JSON schema of configurations, or a reference page.
    Reference {
        /// The page.
        #[arg(value_enum, default_value = "schema")]
        page: reference::Page,
    },
    /// Stop a card after its daemon was killed. daq starts this process itself.
    #[command(name = daq_drivers::fpga::guard::COMMAND, hide = true)]
    FpgaGuard {
        /// The card's PCI address, for messages.
        device: String,
    },
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Mermaid,
    Dot,
}

/// Runs the command line of this process. Configurations can name the entries of `registry`.
pub fn main_with(registry: &Registry) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let code = match cli.command {
        Command::Run(args) => run::run(registry, &args),
        Command::Check { sources, machine } => check::check(registry, &sources, &machine),
        Command::Plan {
            sources,
            machine,
            json,
        } => plan(registry, &sources, &machine, json),
        Command::Ls(args) => ls::ls(&args),
        Command::WaitReady(args) => wait_ready::wait_ready(&args),
        Command::List => show(&list::list(registry)),
        Command::New { parts } => new(registry, &parts),
        Command::Graph { sources, format } => graph::graph(
            registry,
            &sources,
            match format {
                Format::Mermaid => GraphFormat::Mermaid,
                Format::Dot => GraphFormat::Dot,
            },
        ),
        Command::Topo(args) => topo::topo(registry, &args),
        Command::Doctor { json, sample } => doctor(json, sample),
        Command::Inspect(args) => inspect::inspect(registry, &args),
        Command::Bench(args) => bench::bench(&args),
        Command::Selftest(args) => selftest::selftest(registry, &args),
        Command::Tap(args) => tap::tap(&args),
        Command::Emulate(device) => emulate::emulate(&device, registry),
        Command::Tune(args) => tune::tune(&args),
        Command::Top(args) => top::top(&args),
        Command::Reference { page } => show(&reference::page(registry, page)),
        Command::FpgaGuard { device } => guard::guard(&device),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = completed(registry);
            clap_complete::generate(shell, &mut command, program(), &mut script);
            show(&String::from_utf8_lossy(&script))
        }
    };
    console::flush();
    ExitCode::from(code)
}

/// Returns the command line for completions, with the names that `daq new` accepts as its first part, and the benchmarks.
fn completed(registry: &Registry) -> clap::Command {
    let names = clap::builder::PossibleValuesParser::new(new::names(registry));
    let new = |new: clap::Command| new.mut_arg("parts", |parts| parts.value_parser(names));
    let bench = |bench: clap::Command| {
        bench.mut_arg("arguments", |arguments| {
            arguments.value_parser(bench::BENCHMARKS)
        })
    };
    Cli::command()
        .mut_subcommand("new", new)
        .mut_subcommand("bench", bench)
}

/// Returns the name of this program, which is not `daq` if a user's crate extends daq.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or(OsStr::new("daq"));
    name.to_string_lossy().into_owned()
}

fn plan(registry: &Registry, sources: &Sources, machine: &Machine, json: bool) -> u8 {
    let recorded = match machine.recorded() {
        Ok(recorded) => recorded,
        Err(code) => return code,
    };
    let hardware = machine.hardware(recorded.as_ref(), Hardware::Probe);
    match Loaded::read(registry, sources, hardware) {
        Ok(Loaded { plan, .. }) if json => match serde_json::to_string_pretty(&plan) {
            Ok(text) => show(&(text + "\n")),
            Err(error) => {
                print_error!("error: cannot format the plan as JSON: {error}");
                exit::INTERNAL
            }
        },
        Ok(Loaded { plan, .. }) => show(&plan.to_string()),
        Err(code) => code,
    }
}

fn new(registry: &Registry, parts: &str) -> u8 {
    match new::new(registry, parts) {
        Ok(text) => show(&text),
        Err(error) => {
            print_error!("error: {error}");
            exit::USAGE
        }
    }
}

fn doctor(json: bool, sample: Span) -> u8 {
    let findings = daq_diagnostics::doctor::examine(Path::new("/"), sample.0);
    let text = if json {
        serde_json::to_string_pretty(&findings).unwrap_or_default() + "\n"
    } else {
        daq_diagnostics::doctor::render(&findings, std::io::stdout().is_terminal())
    };
    let bad = findings
        .iter()
        .any(daq_diagnostics::doctor::Finding::is_bad);
    show(&text).max(if bad { exit::UNAVAILABLE } else { 0 })
}

/// Returns the directory from which relative paths in a configuration start: the working directory.
fn directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
