//! From files, environment and `--set` to a plan; whatever is wrong is shown.

use super::{exit, state, tune};
use crate::REGISTRY;
use crate::http::Http;
use clap::Args;
use daq_core::config::{Diagnostics, Document, Overrides, environment};
use daq_core::entry::{Claim, SourceSpec};
use daq_core::plan::{Component, Config, Plan, Surroundings, resolve};
use daq_core::sink::{Placements, SinkSpec};
use daq_core::topology::Topology;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
pub(super) struct Sources {
    /// TOML files; together they are one configuration.
    #[arg(value_name = "FILE", required_unless_present = "directory")]
    files: Vec<PathBuf>,
    /// A directory: all its *.toml files in order of their names.
    #[arg(short = 'C', long, value_name = "DIR", conflicts_with = "files")]
    directory: Option<PathBuf>,
    /// Where counters outlive a kill, and what was measured of this machine is; without it, by the rules of systemd and
    /// XDG.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Set one value, as in `--set ring.raw.slots=128`; wins over files and `DAQ__…` variables.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Sources {
    /// The same from a command line of another shape.
    pub(super) fn of(files: &[PathBuf], set: &[String]) -> Self {
        Self {
            files: files.to_vec(),
            directory: None,
            state_dir: None,
            set: set.to_vec(),
        }
    }

    /// The first file, or the directory.
    pub(super) fn place(&self) -> &Path {
        let path = self.directory.as_ref().or(self.files.first());
        path.map_or(Path::new(""), PathBuf::as_path)
    }

    /// The state directory, if there is a place for it.
    pub(super) fn state(&self) -> Option<PathBuf> {
        let declared = self.state_dir.clone();
        declared.or_else(|| state::directory(|name| std::env::var_os(name)))
    }

    /// The name of a pipeline that gives itself none.
    fn name(&self) -> String {
        let path = self.directory.as_ref().or(self.files.first());
        path.and_then(|path| path.file_stem()).map_or_else(
            || "daq".to_owned(),
            |stem| stem.to_string_lossy().into_owned(),
        )
    }
}

/// How closely the machine is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look<'a> {
    /// Not at all.
    Away,
    /// At what it has.
    At,
    /// And whether the CPU can store to GPUs' memory, where the plan depends on it: opens these GPUs.
    Into,
    /// At this one instead.
    On(&'a Topology),
}

/// A configuration without errors.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Config,
    pub(super) plan: Plan,
    /// `None` if there is no `[http]` table.
    pub(super) http: Option<Http>,
}

impl Loaded {
    /// Reads and plans; on errors shows them and gives the exit code.
    pub(super) fn read(sources: &Sources, look: Look<'_>) -> Result<Self, u8> {
        let mut diagnostics = Diagnostics::new();
        let document = match &sources.directory {
            Some(directory) => Document::load_dir(directory, &mut diagnostics),
            None => Document::load(&sources.files, &mut diagnostics),
        };
        let overrides = Overrides::from_process(sources.set.clone());
        let document = document
            .with_overrides(&overrides, &mut diagnostics)
            .expanded(&environment, &mut diagnostics);
        let loaded = Self::relate(&document, sources, look, &mut diagnostics);
        if !diagnostics.is_empty() {
            eprint!(
                "{}",
                diagnostics.render(document.sources(), std::io::stderr().is_terminal())
            );
        }
        match loaded {
            Some(loaded) if !diagnostics.has_errors() => Ok(loaded),
            _ => {
                let errors = diagnostics.errors();
                eprintln!(
                    "{errors} error{} in the configuration",
                    if errors == 1 { "" } else { "s" }
                );
                Err(exit::CONFIG)
            }
        }
    }

    fn relate(
        document: &Document,
        sources: &Sources,
        look: Look<'_>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        document.check_kinds(
            &["source", "ring", "kernel", "sink"],
            &["daq", "http", "staging"],
            diagnostics,
        );
        let config = Config::read(document, &REGISTRY, &sources.name(), diagnostics);
        let mut around = Surroundings {
            directory: super::directory(),
            ..Surroundings::default()
        };
        let http = document.table("http").and_then(|mut section| {
            let http: Http = section.finish(&[], diagnostics)?;
            around
                .claims
                .push((section, vec![Claim::TcpPort(http.listen)]));
            Some(http)
        });
        let mut topology = match look {
            Look::Away => Topology::unknown(),
            Look::At | Look::Into => Topology::detect(),
            Look::On(topology) => topology.clone(),
        };
        let is_measured =
            |sink: &Component<_, dyn SinkSpec>| sink.spec.accepts() == Placements::Measured;
        if matches!(look, Look::At | Look::Into) && config.sinks.iter().any(is_measured) {
            around.profiles = tune::known(&topology, sources.state().as_deref());
        }
        let writes = |source: &Component<_, dyn SourceSpec>| {
            let needs = source.spec.engine();
            needs.is_some_and(|needs| needs.device.is_some())
        };
        if look == Look::Into && config.sources.iter().any(writes) {
            crate::doctor::look_at_windows(&mut topology.gpus);
        }
        if look == Look::Into
            && let Some(plan) = resolve(&config, &topology, &around, &mut Diagnostics::new())
        {
            let gpus = topology.gpus.into_iter().map(|gpu| {
                if plan.untried.contains(&gpu.ordinal) {
                    gpu.tried(&config.staging.backends)
                } else {
                    gpu
                }
            });
            topology.gpus = gpus.collect();
        }
        let plan = resolve(&config, &topology, &around, diagnostics)?;
        Some(Self { config, plan, http })
    }
}
