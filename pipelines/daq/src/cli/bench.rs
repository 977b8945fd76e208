//! `daq bench`: benchmarks of this machine.

use super::{exit, show, state, tune};
use daq_core::entry::Registry;
use daq_diagnostics::bench::{BenchError, Benchmark, Common, Measured, Table};
use daq_pipelines::console::{Progress, print_error};
use std::path::Path;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Benchmark,
    #[command(flatten)]
    common: Common,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

pub(super) fn bench(registry: &Registry, args: &Args) -> u8 {
    if let Err(why) = args.what.check() {
        print_error!("error: {why}");
        return exit::USAGE;
    }
    let mut output = Output::new(args.json);
    let mut common = args.common.clone();
    common.registry = registry.clone();
    let progress = Progress::start("bench");
    common.progress = progress.clone();
    let mut publish = |table| progress.paused(|| output.add(&table));
    let measured = args.what.run(&common, &mut publish);
    progress.end();
    let kept = measured.and_then(|measured| match &args.what {
        Benchmark::Rdma(options) if options.keep => keep(measured, options.state_dir.as_deref()),
        _ => Ok(()),
    });
    match kept {
        Ok(()) => output.end(),
        Err(error) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
    }
}

fn keep(measured: Option<Measured>, directory: Option<&Path>) -> Result<(), BenchError> {
    let measured = measured.ok_or_else(|| {
        let why = "there is nothing to keep: --keep needs results of exactly one card, \
                   with frames in GPU memory sent on both paths, direct and staged; select \
                   one card with --nics";
        BenchError::Thread(why.to_owned())
    })?;
    let directory = state::resolve_directory(directory);
    let kept = tune::save(measured, directory.as_deref()).map_err(BenchError::Thread)?;
    print_error!("saved in {}", kept.display());
    Ok(())
}

/// Prints the tables. Text is printed immediately, JSON at the end.
struct Output {
    is_json: bool,
    tables: Vec<serde_json::Value>,
    code: u8,
}

impl Output {
    const fn new(is_json: bool) -> Self {
        Self {
            is_json,
            tables: Vec::new(),
            code: 0,
        }
    }

    fn add(&mut self, table: &Table) {
        if !self.is_json {
            let space = if self.tables.is_empty() { "" } else { "\n" };
            self.code = self.code.max(show(&format!("{space}{table}")));
        }
        self.tables.push(table.json());
    }

    fn end(self) -> u8 {
        if !self.is_json {
            return self.code;
        }
        show(&(serde_json::to_string_pretty(&self.tables).unwrap_or_default() + "\n"))
    }
}
