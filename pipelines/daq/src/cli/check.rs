//! `daq check` finds errors in a configuration without running it, and lists what was not checked.

use super::load::{Hardware, Loaded, Machine, Sources};
use super::{exit, show};
use daq_core::check::{CheckContext, FileUse};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostic, Diagnostics, Document, Section};
use daq_core::entry::Registry;
use daq_core::ledger::{CounterFile, CounterFileError};
use daq_core::plan::{Config, Plan};
use daq_core::units::counted;
use daq_pipelines::console::print_error;
use daq_pipelines::http;
use daq_pipelines::runtime::Ledgers;
use std::path::Path;

/// Checks the configuration and prints the result.
pub(super) fn check(registry: &Registry, sources: &Sources, machine: &Machine) -> u8 {
    let recorded = match machine.recorded() {
        Ok(recorded) => recorded,
        Err(code) => return code,
    };
    let hardware = machine.hardware(recorded.as_ref(), Hardware::Detect);
    let (loaded, mut unchecked) = match Loaded::check(registry, sources, hardware) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let plan = &loaded.plan;
    let counts = [
        (plan.sources.len(), "source"),
        (plan.rings.len(), "ring"),
        (plan.kernels.len(), "kernel"),
        (plan.sinks.len(), "sink"),
    ];
    let counts = counts.map(|(n, what)| counted(n, what));
    if let Some(missing) = plan.unavailable.first() {
        print_error!("error: {missing}");
        return exit::UNAVAILABLE;
    }
    let listen = loaded.http.as_ref().map(|http| http.listen);
    match listen
        .filter(|_| hardware == Hardware::Detect)
        .map(http::bind)
    {
        None | Some(Ok(_)) => {}
        Some(Err(error)) => {
            print_error!(
                "error: {error}; if this pipeline is running, check it with --no-hardware"
            );
            return exit::UNAVAILABLE;
        }
    }
    if let Some(option) = hardware.option() {
        if let Some(listen) = listen {
            let claim = Claim::TcpPort(listen);
            unchecked.push(format!("[http]: whether {claim} is free ({option})"));
        }
        let what = match hardware {
            Hardware::Recorded(_) => "memory and network interfaces of the recorded machine",
            _ => "cores, memory, GPUs and network interfaces of this machine",
        };
        unchecked.push(format!("{what} ({option})"));
    }
    unchecked.extend(claims(&loaded.config));
    let mut text = format!("{}: ok ({})\n", plan.name, counts.join(", "));
    for note in &plan.notes {
        text += &format!("note: {note}\n");
    }
    for what in unchecked {
        text += &format!("not checked: {what}\n");
    }
    show(&text)
}

/// Returns statements that only a run can verify, for example that ports are free and devices respond.
fn claims(config: &Config) -> Vec<String> {
    let all = config.claims().flat_map(|(section, claims)| {
        claims.into_iter().filter_map(move |claim| {
            let what = match &claim {
                Claim::UdpPort(address) | Claim::UdpStreams(address, _) => {
                    format!("whether UDP {address} is free")
                }
                Claim::TcpPort(_) => format!("whether {claim} is free"),
                Claim::Device(device) => format!("whether {device} responds"),
                Claim::Path(_) | Claim::Stem(_) => return None,
            };
            Some(format!("[{}]: {what}", section.title()))
        })
    });
    all.collect()
}

/// Checks the files that `config` names. Returns descriptions of the checks that were skipped.
///
/// Kernels are part of the configuration and are always checked. Other files are located on the machine that runs the
/// pipeline. They are not checked if `elsewhere` is the option that selects another machine than this one. Without a plan, the
/// contents of files that must fit the frames are not checked.
pub(super) fn files(
    config: &Config,
    plan: Option<&Plan>,
    directory: &Path,
    elsewhere: Option<&str>,
    document: &mut Document,
    diagnostics: &mut Diagnostics,
) -> Vec<String> {
    let mut unchecked = Vec::new();
    for (section, file) in config.files() {
        if let Some(option) = elsewhere.filter(|_| section.kind() != "kernel") {
            let what = match file.purpose {
                FileUse::Reads | FileUse::ReadsAny | FileUse::Runs => "exists",
                FileUse::Writes | FileUse::WritesInto => "can be written to",
            };
            let path = file.path.display();
            unchecked.push(format!(
                "[{}]: whether {path} {what} ({option})",
                section.title()
            ));
            continue;
        }
        if file.check_name().is_ok()
            && let Err(problem) = file.check_file(directory)
        {
            let diagnostic = section.problem(problem);
            if !diagnostics.has_error_at(section.place_of(&file.key)) {
                diagnostics.push(diagnostic);
            }
        }
    }
    for kernel in &config.kernels {
        let context = CheckContext {
            directory,
            dispatch: kernel.keys.dispatch.unwrap_or_default(),
            input: plan.and_then(|plan| {
                let mut planned = plan.kernels.iter();
                let planned = planned.find(|planned| planned.component == kernel.name())?;
                Some(&plan.ring(&planned.input)?.layout)
            }),
        };
        let found = kernel.spec.check_files(&context);
        for problem in found.problems {
            diagnostics.push(kernel.section.problem(problem));
        }
        for file in found.files {
            let base = document.add_file(&file.name, &file.text);
            for diagnostic in file.diagnostics {
                diagnostics.push(diagnostic.moved(base));
            }
        }
        let title = kernel.section.title();
        let what = found.unchecked.into_iter();
        unchecked.extend(what.map(|what| format!("[{title}]: {what}")));
    }
    unchecked
}

/// Adds an error if the counters of `plan` do not fit into the counter file.
pub(super) fn counters(config: &Config, plan: &Plan, diagnostics: &mut Diagnostics) {
    let Err(error) = Ledgers::new(plan, &CounterFile::in_memory()) else {
        return;
    };
    let diagnostic = Diagnostic::error(format!(
        "the counters of this pipeline cannot be stored: {error}"
    ));
    diagnostics.push(match error {
        CounterFileError::Name { name } => {
            let sections = config.known_keys.iter().map(|outline| &outline.section);
            let sections = sections.chain(config.rings.iter().map(|ring| &ring.section));
            let is_in = |section: &&Section| {
                let rest = name.split_once('.').map(|(_, rest)| rest);
                rest.and_then(|rest| rest.strip_prefix(section.name()))
                    .is_some_and(|rest| rest.starts_with('.'))
            };
            let mut sections = sections.filter(is_in);
            let diagnostic = Diagnostic::error(format!(
                "the name of the counter `{name}` is too long ({} bytes)",
                name.len()
            ))
            .help("shorten the name of the section to at most 80 bytes");
            match sections.next() {
                Some(section) => diagnostic.at(section.header()),
                None => diagnostic,
            }
        }
        _ => diagnostic.help(
            "split the pipeline into several configurations, and run one daq process for each",
        ),
    });
}
