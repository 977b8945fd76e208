//! Builds a plan from files, environment variables and `--set`, and prints all errors.

use super::{check, exit};
use clap::Args;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Document, Overrides, environment};
use daq_core::entry::{Registry, SourceSpec};
use daq_core::plan::{Component, Config, Plan, PlanContext, resolve};
use daq_core::sink::{Placements, SinkSpec};
use daq_core::topology::Topology;
use daq_core::units::{ByteSize, counted};
use daq_pipelines::console::print_error;
use daq_pipelines::http::{Http, TapBudget, max_memory};
use daq_pipelines::profiles;
use daq_pipelines::program::state_directory;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Arguments that name the configuration.
#[derive(Clone, Debug, Args)]
pub(super) struct Sources {
    /// TOML files, which are merged into one configuration.
    #[arg(value_name = "FILE", required_unless_present = "directory")]
    files: Vec<PathBuf>,
    /// Directory of the configuration: all its *.toml files, in the order of their names.
    #[arg(short = 'C', long, value_name = "DIR", conflicts_with = "files")]
    directory: Option<PathBuf>,
    /// Directory for counters of killed runs and for measurements of this machine. Default: set by systemd or XDG
    /// variables.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Set one value, for example `--set ring.raw.slots=128`; overrides files and `DAQ__…` variables.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Sources {
    /// Creates the sources from the arguments of other commands.
    pub(super) fn of(files: &[PathBuf], set: &[String]) -> Self {
        Self {
            files: files.to_vec(),
            directory: None,
            state_dir: None,
            set: set.to_vec(),
        }
    }

    /// Returns the path of the directory or, if no directory is given, the path of the first file.
    pub(super) fn place(&self) -> &Path {
        let path = self.directory.as_ref().or(self.files.first());
        path.map_or(Path::new(""), PathBuf::as_path)
    }

    /// Returns the state directory; `None` if no directory is configured and the environment defines no default.
    pub(super) fn state(&self) -> Option<PathBuf> {
        state_directory(self.state_dir.as_deref())
    }

    /// Returns the default name of the pipeline.
    fn name(&self) -> String {
        let path = self.directory.as_ref().or(self.files.first());
        path.and_then(|path| path.file_stem()).map_or_else(
            || "daq".to_owned(),
            |stem| stem.to_string_lossy().into_owned(),
        )
    }
}

/// Arguments that name the machine, if that is not this machine with its hardware.
#[derive(Clone, Debug, Args)]
pub(super) struct Machine {
    /// Do not use this machine's hardware. `daq check` lists the checks that are skipped.
    #[arg(long)]
    no_hardware: bool,
    /// Use the hardware of the machine that `daq topo --record` saved in DIR.
    #[arg(long, value_name = "DIR", conflicts_with = "no_hardware")]
    topology: Option<PathBuf>,
}

impl Machine {
    /// Loads the recorded machine, if one is named; prints errors and returns the exit code on failure.
    pub(super) fn recorded(&self) -> Result<Option<Topology>, u8> {
        self.topology.as_deref().map(load_topology).transpose()
    }

    /// Returns the hardware to use: that of the machine `recorded`, none, or `here`.
    pub(super) const fn hardware<'a>(
        &self,
        recorded: Option<&'a Topology>,
        here: Hardware<'a>,
    ) -> Hardware<'a> {
        match recorded {
            Some(topology) => Hardware::Recorded(topology),
            None if self.no_hardware => Hardware::None,
            None => here,
        }
    }
}

/// Loads the topology recorded in `dir`; prints errors and returns the exit code on failure.
pub(super) fn load_topology(dir: &Path) -> Result<Topology, u8> {
    Topology::load(dir).map_err(|error| {
        print_error!("error: {error}");
        exit::IO
    })
}

/// The hardware that the plan can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardware<'a> {
    /// No hardware.
    None,
    /// The devices of this machine, which are not opened.
    Detect,
    /// The devices of this machine. Opens GPUs if the plan depends on CPU stores to their memory.
    Probe,
    /// A recorded machine.
    Recorded(&'a Topology),
}

/// A configuration without errors.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Config,
    pub(super) plan: Plan,
    /// The section `[http]`; `None` if the configuration has no such section.
    pub(super) http: Option<Http>,
}

impl Hardware<'_> {
    /// Returns the option that selects another machine than this one; `None` for this machine.
    pub(super) const fn option(self) -> Option<&'static str> {
        match self {
            Self::None => Some("--no-hardware"),
            Self::Recorded(_) => Some("--topology"),
            Self::Detect | Self::Probe => None,
        }
    }
}

impl Loaded {
    /// Reads the configuration and computes its plan. On failure, prints the errors and returns the exit code.
    pub(super) fn read(
        registry: &Registry,
        sources: &Sources,
        hardware: Hardware<'_>,
    ) -> Result<Self, u8> {
        Self::load(registry, sources, hardware, None)
    }

    /// Like [`read`](Self::read), but also checks the files that the configuration names. Returns descriptions of the
    /// checks that were skipped.
    pub(super) fn check(
        registry: &Registry,
        sources: &Sources,
        hardware: Hardware<'_>,
    ) -> Result<(Self, Vec<String>), u8> {
        let mut unchecked = Vec::new();
        let loaded = Self::load(registry, sources, hardware, Some(&mut unchecked))?;
        Ok((loaded, unchecked))
    }

    fn load(
        registry: &Registry,
        sources: &Sources,
        hardware: Hardware<'_>,
        unchecked: Option<&mut Vec<String>>,
    ) -> Result<Self, u8> {
        let mut diagnostics = Diagnostics::new();
        let document = match &sources.directory {
            Some(directory) => Document::load_dir(directory, &mut diagnostics),
            None => Document::load(&sources.files, &mut diagnostics),
        };
        let (document, loaded) = if document.is_whole() {
            let overrides = Overrides::from_process(sources.set.clone());
            let mut document = document
                .with_overrides(&overrides, &mut diagnostics)
                .expanded(&environment, &mut diagnostics);
            let loaded = Self::relate(
                registry,
                &mut document,
                sources,
                hardware,
                unchecked,
                &mut diagnostics,
            );
            (document, loaded)
        } else {
            (document, None)
        };
        if !diagnostics.is_empty() {
            let is_terminal = std::io::stderr().is_terminal();
            for line in diagnostics.render(document.sources(), is_terminal).lines() {
                print_error!("{line}");
            }
        }
        match loaded {
            Some(loaded) if !diagnostics.has_errors() => Ok(loaded),
            _ => {
                let errors = diagnostics.errors();
                print_error!("{} in the configuration", counted(errors, "error"));
                Err(exit::CONFIG)
            }
        }
    }

    fn relate(
        registry: &Registry,
        document: &mut Document,
        sources: &Sources,
        hardware: Hardware<'_>,
        unchecked: Option<&mut Vec<String>>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        document.check_kinds(
            &["source", "ring", "kernel", "sink"],
            &["daq", "http", "staging"],
            diagnostics,
        );
        let config = Config::read(document, registry, &sources.name(), diagnostics);
        let mut around = PlanContext {
            directory: super::directory(),
            ..PlanContext::default()
        };
        let http = document.table("http").and_then(|mut section| {
            let http = section.finish_checked(&[], diagnostics, Http::problems)?;
            around
                .claims
                .push((section, vec![Claim::TcpPort(http.listen)]));
            around.memory = Some(max_memory);
            Some(http)
        });
        let mut topology = match hardware {
            Hardware::None => Topology::unknown(),
            Hardware::Detect | Hardware::Probe => Topology::detect(),
            Hardware::Recorded(topology) => topology.clone(),
        };
        let is_measured =
            |sink: &Component<_, dyn SinkSpec>| sink.spec.facts().accepts == Placements::Measured;
        if matches!(hardware, Hardware::Detect | Hardware::Probe)
            && config.sinks.iter().any(is_measured)
        {
            around.profiles = profiles::known(&topology, sources.state().as_deref());
        }
        let writes = |source: &Component<_, dyn SourceSpec>| {
            let needs = source.spec.facts().engine;
            needs.is_some_and(|needs| needs.device.is_some())
        };
        if hardware == Hardware::Probe && config.sources.iter().any(writes) {
            daq_diagnostics::doctor::read_bar1_sizes(&mut topology.gpus);
        }
        if hardware == Hardware::Probe
            && let Some(plan) = resolve(&config, &topology, &around, &mut Diagnostics::new())
        {
            let gpus = topology.gpus.into_iter().map(|gpu| {
                if plan.untried.contains(&gpu.ordinal) {
                    gpu.with_probed_mappings(&config.staging.backends)
                } else {
                    gpu
                }
            });
            topology.gpus = gpus.collect();
        }
        let plan = resolve(&config, &topology, &around, diagnostics);
        if let Some(unchecked) = unchecked {
            *unchecked = check::files(
                &config,
                plan.as_ref(),
                &around.directory,
                hardware.option(),
                document,
                diagnostics,
            );
        }
        let mut plan = plan?;
        note_taps(&mut plan);
        if matches!(hardware, Hardware::Detect | Hardware::Probe) {
            let sources = config.sources.iter();
            plan.unavailable.extend(sources.filter_map(|source| {
                let why = source.spec.unavailable()?;
                Some(format!("source `{}`: {why}", source.name()))
            }));
            let sinks = config.sinks.iter();
            plan.unavailable.extend(sinks.filter_map(|sink| {
                let why = sink.spec.unavailable()?;
                Some(format!("sink `{}`: {why}", sink.name()))
            }));
        }
        check::counters(&config, &plan, diagnostics);
        Some(Self { config, plan, http })
    }
}

/// Adds what the pages of the HTTP server may read from each ring.
fn note_taps(plan: &mut Plan) {
    let Some(http) = plan.others.iter_mut().find(|other| other.name == "http") else {
        return;
    };
    let memory = ByteSize(max_memory(&plan.rings) as u64).rounded();
    http.notes.push(format!(
        "while browsers show or download frames, uses at most {memory} of memory"
    ));
    http.notes.extend(plan.rings.iter().map(|ring| {
        let budget = TapBudget::of(ring.slot_bytes);
        format!(
            "while a browser shows ring {}, reads {budget} of it",
            ring.name
        )
    }));
}
