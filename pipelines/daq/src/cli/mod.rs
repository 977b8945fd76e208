//! The command line: one file a command.

mod bench;
mod changes;
mod check;
mod emulate;
mod graph;
mod guard;
mod list;
mod live;
mod load;
mod new;
mod reference;
mod run;
mod selftest;
mod state;
mod topo;
mod tune;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use daq_core::plan::GraphFormat;
use daq_core::units::Span;
use daq_pipelines::console::{self, print_error};
use load::{Loaded, Look, Sources};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes by the BSD convention of `sysexits.h`.
pub mod exit {
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// Hardware, a port or a library that is needed is not there.
    pub const UNAVAILABLE: u8 = 69;
    /// A defect of daq.
    pub const INTERNAL: u8 = 70;
    /// Reading or writing failed.
    pub const IO: u8 = 74;
    /// The configuration is wrong.
    pub const CONFIG: u8 = 78;
}

/// Streams sensor data into rings, runs kernels on it, writes files, and accounts for every packet.
#[derive(Debug, Parser)]
#[command(name = "daq", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a pipeline until its sources end or it is told to stop.
    Run(run::Args),
    /// Check a configuration; all errors are shown at once.
    Check {
        #[command(flatten)]
        sources: Sources,
        /// Check what any machine can check; what was not checked is listed.
        #[arg(long)]
        no_hardware: bool,
    },
    /// Show what runs where, with sizes, paths and reasons.
    Plan {
        #[command(flatten)]
        sources: Sources,
        /// Plan without looking at this machine.
        #[arg(long)]
        no_hardware: bool,
        /// Plan for the machine that `daq topo --record` kept there.
        #[arg(long, value_name = "DIR", conflicts_with = "no_hardware")]
        topology: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List sources, kernels and sinks.
    List,
    /// Print a commented, valid configuration to begin with.
    New {
        /// What it is made of: a source, kernels and a sink, as in `udp/power-spectrum/file`; what is left
        /// out is chosen.
        #[arg(value_name = "SOURCE/KERNEL/SINK")]
        parts: String,
    },
    /// Draw the pipeline.
    Graph {
        #[command(flatten)]
        sources: Sources,
        /// The language of the drawing.
        #[arg(long, value_enum, default_value = "mermaid")]
        format: Format,
    },
    /// Show how PCIe devices and GPUs hang together, and whether a device can write straight into a GPU.
    Topo(topo::Args),
    /// Look at this machine: what holds data back, and the command that mends it.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// How long to watch whether packets are being dropped; 0s looks at the totals only.
        #[arg(long, value_name = "TIME", default_value = "1 s")]
        sample: Span,
    },
    /// Measure this machine: the ways to a GPU side by side, and those to another host.
    Bench(bench::Args),
    /// Check this machine: whether what the CPU, a GPU and network cards store for each other arrives.
    Selftest(selftest::Args),
    /// Be a PCIe card of software, behind a socket, for those who have none on their desk.
    #[command(name = "sim-card")]
    EmulateCard(emulate::card::Args),
    /// Be a Holoscan Sensor Bridge of software, for those who have none on their desk.
    #[command(name = "sim-hsb")]
    EmulateHsb(emulate::hsb::Args),
    /// Measure how this machine's GPUs copy, in under a second each, and keep that for later runs.
    Tune(tune::Args),
    /// Print the JSON schema of configurations, or a reference page.
    Reference {
        /// Which page.
        #[arg(value_enum, default_value = "schema")]
        page: reference::Page,
    },
    /// Outlive a daemon that is killed, and stop its card; for daq itself.
    #[command(name = daq_drivers::fpga::guard::COMMAND, hide = true)]
    FpgaGuard {
        /// The card's PCI address, for messages.
        device: String,
    },
    /// Print completions for a shell.
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

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let code = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Check {
            sources,
            no_hardware,
        } => check::check(&sources, no_hardware),
        Command::Plan {
            sources,
            no_hardware,
            topology,
            json,
        } => plan(&sources, no_hardware, topology.as_deref(), json),
        Command::List => show(&list::list()),
        Command::New { parts } => new(&parts),
        Command::Graph { sources, format } => graph::graph(
            &sources,
            match format {
                Format::Mermaid => GraphFormat::Mermaid,
                Format::Dot => GraphFormat::Dot,
            },
        ),
        Command::Topo(args) => topo::topo(&args),
        Command::Doctor { json, sample } => doctor(json, sample),
        Command::Bench(args) => bench::bench(&args),
        Command::Selftest(args) => selftest::selftest(&args),
        Command::EmulateCard(args) => emulate::card::emulate(&args),
        Command::EmulateHsb(args) => emulate::hsb::emulate(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Reference { page } => show(&reference::page(page)),
        Command::FpgaGuard { device } => guard::guard(&device),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "daq", &mut script);
            show(&String::from_utf8_lossy(&script))
        }
    };
    console::flush();
    ExitCode::from(code)
}

/// Prints to stdout; a reader that has gone away is no error.
fn show(text: &str) -> u8 {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => exit::IO,
        _ => 0,
    }
}

fn plan(sources: &Sources, no_hardware: bool, recorded: Option<&Path>, json: bool) -> u8 {
    let there = match recorded.map(topo::load).transpose() {
        Ok(there) => there,
        Err(code) => return code,
    };
    let look = match &there {
        Some(topology) => Look::On(topology),
        None if no_hardware => Look::Away,
        None => Look::Into,
    };
    match Loaded::read(sources, look) {
        Ok(Loaded { plan, .. }) if json => match serde_json::to_string_pretty(&plan) {
            Ok(text) => show(&(text + "\n")),
            Err(error) => {
                print_error!("error: the plan cannot be printed as JSON: {error}");
                exit::INTERNAL
            }
        },
        Ok(Loaded { plan, .. }) => show(&plan.to_string()),
        Err(code) => code,
    }
}

fn new(parts: &str) -> u8 {
    match new::new(parts) {
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

/// The directory that relative paths in a configuration start from: this process's.
fn directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
