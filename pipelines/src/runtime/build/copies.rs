//! The copy engine threads of a pipeline, and the rates that they are tuned to.

use super::{Copier, Parts, gathers};
use crate::runtime::control::Role;
use crate::runtime::{Options, Pipeline, StartError, staging};
use daq_core::gpu::driver::Device;
use daq_core::plan::{Config, Plan, StagingKeys};
use daq_core::region::Placement;
use daq_core::staging::{
    CopyEngineThread, Profile, Rates, RingCopy, Route, Tuning, measure_peer, measure_with,
    on_stream, verify_peer,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the copy profiles of all GPUs. Measures each GPU, and each pair of GPUs, that has no saved profile. Verifies that
/// frames arrive unchanged between GPUs.
pub(super) fn measured(
    config: &Config,
    plan: &Plan,
    options: &Options,
) -> Result<BTreeMap<u32, Profile>, StartError> {
    let mut profiles = options.profiles.clone();
    let routes: BTreeSet<Route> = plan.routes().collect();
    for route in &routes {
        let ordinal = route.device();
        if let Entry::Vacant(unknown) = profiles.entry(ordinal) {
            let device = Device::open(ordinal)?;
            let profile = match measure_with(device, &config.staging.backends) {
                Ok(profile) => {
                    tracing::info!(
                        "cuda:{ordinal}: measured copy rates for this run; `daq tune` saves them"
                    );
                    profile
                }
                Err(error) => {
                    tracing::warn!(
                        "cuda:{ordinal}: cannot measure copy rates: {error}; this run uses default rates"
                    );
                    Profile::assumed()
                }
            };
            unknown.insert(profile);
        }
    }
    for (from, to) in routes.iter().filter_map(|route| route.peers()) {
        let (source, target) = (Device::open(from)?, Device::open(to)?);
        verify_peer(source, target).map_err(|error| StartError::Unavailable(error.to_string()))?;
        tracing::info!(
            "cuda:{from} → cuda:{to}: data path verified (1 MiB written exactly, neighbours unchanged)"
        );
        let peers = &mut profiles.entry(from).or_insert_with(Profile::assumed).peers;
        if let Entry::Vacant(unknown) = peers.entry(target.identity().uuid.clone()) {
            let rates = measure_peer(source, target).unwrap_or_else(|error| {
                tracing::warn!(
                    "cuda:{from} → cuda:{to}: cannot measure copy rates: {error}; this run uses default rates"
                );
                Rates::assumed_between_gpus()
            });
            unknown.insert(rates);
        }
    }
    Ok(profiles)
}

/// Returns the tuning of the copies along `route`.
pub(super) fn tuning(
    keys: &StagingKeys,
    profiles: &BTreeMap<u32, Profile>,
    route: Route,
) -> Result<Tuning, StartError> {
    let chunk = keys.chunk;
    let chunk = chunk.map(|chunk| usize::try_from(chunk.0).unwrap_or(usize::MAX));
    let depth = keys.depth.map(|depth| depth as usize);
    let profile = &profiles[&route.device()];
    if let Some(direction) = route.direction() {
        return Ok(profile.tuning_for(direction, chunk, depth));
    }
    let rates = match route.peers() {
        Some((_, to)) => profile.peers.get(&Device::open(to)?.identity().uuid),
        None => None,
    };
    let rates = rates.cloned();
    let rates = rates.unwrap_or_else(Rates::assumed_between_gpus);
    Ok(rates.tuning_for(chunk, depth))
}

/// Returns the name of the thread that copies along `route`.
fn copies_name(route: Route) -> String {
    match (route.from(), route.to()) {
        (Placement::Host, to) => format!("copies to {to}"),
        (from, Placement::Host) => format!("copies from {from}"),
        (from, to) => format!("copies from {from} to {to}"),
    }
}

impl Pipeline {
    /// Starts the copy engine threads, one per route.
    pub(super) fn copies(&mut self, parts: &mut Parts<'_>) -> Result<(), StartError> {
        let keys = &parts.config.staging;
        let staged: Vec<_> = {
            let staged = parts.staged().into_iter();
            staged
                .map(|(route, copies)| (route, copies.into_iter().cloned().collect::<Vec<_>>()))
                .collect()
        };
        for (i, (route, copies)) in staged.into_iter().enumerate() {
            let tuning = tuning(keys, &parts.profiles, route)?;
            let stream = on_stream(route, tuning.depth)?;
            let notifier = parts.notifiers[&Copier::Engine(route)].clone();
            let mut copy_engine = CopyEngineThread::new(stream, tuning, notifier);
            let mut all_isolated = true;
            for copy in copies {
                let reader = self.attach(&copy.from, &copy.name, true, 1)?;
                let producer = parts.producer(&copy.to);
                let ledger = self.ledgers.copy(&copy.to);
                let target = parts.plan.ring(&copy.to);
                let isolated = target.is_some_and(gathers::is_isolated);
                all_isolated &= isolated;
                copy_engine.add(RingCopy::selecting(
                    (reader, producer),
                    ledger,
                    tuning.chunk,
                    gathers::selection(parts.plan, &copy),
                    gathers::overflow(!isolated),
                ));
            }
            let name = copies_name(route);
            let wait = keys.wait.into();
            let mut runner = staging::Runner::new(
                name.clone(),
                Box::new(copy_engine),
                wait,
                self.control.clone(),
            );
            runner.isolated = all_isolated;
            let core = (!keys.cores.is_empty()).then(|| keys.cores[i % keys.cores.len()]);
            self.spawn(&name, Role::Step, core, move |heartbeat| {
                runner.run(heartbeat);
            })?;
        }
        Ok(())
    }
}
