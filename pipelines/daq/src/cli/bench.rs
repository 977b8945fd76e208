//! `daq bench`: benchmarks of this machine.

use super::{exit, show, state, tune};
use daq_core::entry::Registry;
use daq_diagnostics::bench::{BenchError, Benchmark, Common, Measured, Report, Table};
use daq_pipelines::console::{Progress, print_error};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Benchmark,
    #[command(flatten)]
    common: Common,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Also write the tables with charts to this HTML file, which opens without a network.
    #[arg(long, global = true, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(super) fn bench(registry: &Registry, args: &Args) -> u8 {
    if let Err(why) = args.what.check(args.report.is_some()) {
        print_error!("error: {why}");
        return exit::USAGE;
    }
    let report = args.report.as_deref();
    let report = report.map(|path| Report::new(path, &args.what)).transpose();
    let mut output = match report {
        Ok(report) => Output::new(args.json, report),
        Err(error) => {
            print_error!("error: {error}");
            return exit::IO;
        }
    };
    let mut common = args.common.clone();
    common.registry = registry.clone();
    let progress = Progress::start("bench");
    common.progress = progress.clone();
    let mut publish = |table| progress.paused(|| output.add(table));
    let measured = args.what.run(&common, &mut publish);
    progress.end();
    let kept = measured.and_then(|measured| match &args.what {
        Benchmark::Rdma(options) if options.keep => keep(measured, options.state_dir.as_deref()),
        _ => Ok(()),
    });
    match kept {
        Ok(()) => {
            let code = output.write_report(None);
            output.end().max(code)
        }
        Err(error) => {
            print_error!("error: {error}");
            output.write_report(Some(&error.to_string()));
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

/// Prints the tables. Text is printed immediately, JSON at the end. A report is written at the end.
struct Output {
    is_json: bool,
    tables: Vec<serde_json::Value>,
    report: Option<Report>,
    code: u8,
}

impl Output {
    const fn new(is_json: bool, report: Option<Report>) -> Self {
        Self {
            is_json,
            tables: Vec::new(),
            report,
            code: 0,
        }
    }

    fn add(&mut self, table: Table) {
        if !self.is_json {
            let space = if self.tables.is_empty() { "" } else { "\n" };
            self.code = self.code.max(show(&format!("{space}{table}")));
        }
        self.tables.push(table.json());
        if let Some(report) = &mut self.report {
            report.add(table);
        }
    }

    /// Writes the report, if there is one. `failure` is the error that ended the benchmark early. Returns the exit code.
    fn write_report(&self, failure: Option<&str>) -> u8 {
        let Some(report) = &self.report else {
            return 0;
        };
        match report.write(failure) {
            Ok(()) => 0,
            Err(error) => {
                print_error!("error: {error}");
                exit::IO
            }
        }
    }

    fn end(self) -> u8 {
        if !self.is_json {
            return self.code;
        }
        show(&(serde_json::to_string_pretty(&self.tables).unwrap_or_default() + "\n"))
    }
}
