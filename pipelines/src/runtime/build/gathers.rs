//! The threads that join the shares of spread rings, and what copies to a share select.

use super::copies::tuning;
use super::{Copier, Parts};
use crate::runtime::control::Role;
use crate::runtime::{Pipeline, StartError, staging};
use daq_core::gpu::driver::Device;
use daq_core::plan::{Plan, PlannedCopy, PlannedGather, PlannedRing};
use daq_core::region::Placement;
use daq_core::staging::{
    Gather, Joins, MissingFill, Overflow, Selection, Share, Tuning, on_stream,
};

/// Returns the frames, or the part of each frame, that `copy` copies.
pub(super) fn selection(plan: &Plan, copy: &PlannedCopy) -> Selection {
    let share = |ring: &str| plan.ring(ring)?.share.as_ref();
    match share(&copy.to).filter(|_| share(&copy.from).is_none()) {
        None => Selection::All,
        Some(share) => match &share.tile {
            None => Selection::Turns {
                index: share.index,
                count: share.count,
            },
            Some((matrix, tile)) => Selection::Tile {
                matrix: *matrix,
                tile: tile.clone(),
            },
        },
    }
}

/// Returns what happens to frames of a share whose GPU is slow.
pub(super) const fn overflow(guarantee: bool) -> Overflow {
    if guarantee {
        Overflow::Wait
    } else {
        Overflow::Discard
    }
}

/// Whether a slow or failed GPU that holds `ring` must not block other GPUs.
pub(super) fn is_isolated(ring: &PlannedRing) -> bool {
    ring.share.as_ref().is_some_and(|share| !share.guarantee)
}

fn planned<'a>(plan: &'a Plan, ring: &str) -> &'a PlannedRing {
    plan.ring(ring)
        .expect("the plan contains the rings of each gather")
}

impl Pipeline {
    /// Starts the threads that join the shares of spread rings.
    pub(super) fn gathers(&mut self, parts: &mut Parts<'_>) -> Result<(), StartError> {
        let plan = parts.plan;
        let keys = &parts.config.staging;
        for gather in &plan.gathers {
            // The copies of all GPUs have the size that suits the fastest.
            let mut tunings = Vec::new();
            for route in plan.routes_into(gather) {
                tunings.push(tuning(keys, &parts.profiles, route)?);
            }
            let largest = tunings.into_iter().max_by_key(|tuning| tuning.chunk);
            let tuning = largest.expect("a spread ring has at least two shares");
            let gather_thread = self.gather(parts, gather, &tuning)?;
            let name = gather.name.clone();
            let mut runner = staging::Runner::new(
                name.clone(),
                Box::new(gather_thread),
                keys.wait.into(),
                self.control.clone(),
            );
            runner.isolated = !gather.guarantee;
            self.spawn(&name, Role::Step, None, move |heartbeat| {
                runner.run(heartbeat);
            })?;
        }
        Ok(())
    }

    fn gather(
        &self,
        parts: &mut Parts<'_>,
        gather: &PlannedGather,
        tuning: &Tuning,
    ) -> Result<Gather, StartError> {
        let plan = parts.plan;
        let target = planned(plan, &gather.to);
        let mut shares = Vec::new();
        for ((from, reader), route) in gather
            .from
            .iter()
            .zip(&gather.readers)
            .zip(plan.routes_into(gather))
        {
            let share = planned(plan, from).share.as_ref();
            let tile = share.and_then(|share| share.tile.as_ref());
            shares.push(Share {
                reader: self.attach(from, reader, true, 1)?,
                method: on_stream(route, tuning.depth + 1)?,
                tile: tile.map(|(_, tile)| tile.clone()),
            });
        }
        let joins = match gather.matrix {
            None => Joins::Frames,
            Some(matrix) => {
                let share = target.share.as_ref();
                let tile = share.and_then(|share| share.tile.as_ref());
                let tile = tile.map(|(_, tile)| tile.clone());
                Joins::Tiles {
                    matrix,
                    target: tile.unwrap_or_else(|| matrix.whole()),
                }
            }
        };
        let device = match target.placement {
            Placement::Host => None,
            Placement::Cuda(ordinal) => Some(Device::open(ordinal)?),
        };
        let fill = MissingFill::new(device, tuning.depth)
            .map_err(|error| StartError::Unavailable(error.to_string()))?;
        let notifier = parts.notifiers[&Copier::Gather(gather.to.clone())].clone();
        Ok(Gather::new(
            shares,
            parts.producer(&gather.to),
            self.ledgers.copy(&gather.to),
            joins,
            (overflow(gather.guarantee), fill),
            tuning,
            notifier,
        ))
    }
}
