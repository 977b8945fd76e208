//! Resolves sinks: which ring each sink reads.

use super::Resolver;
use super::rings::host_name;
use crate::claim::Claim;
use crate::config::Diagnostics;
use crate::plan::{Component, PlannedSink, SinkKeys, nics};
use crate::sink::{Placements, RingFrames, SinkSpec};

impl Resolver<'_> {
    pub(super) fn sinks(&mut self, diagnostics: &mut Diagnostics) {
        let config = self.config;
        let mut order: Vec<_> = config.sinks.iter().enumerate().collect();
        // Sinks that choose by measurement come last, because their choice depends on the copies that others need.
        order.sort_by_key(|(_, sink)| sink.spec.facts().accepts == Placements::Measured);
        let mut planned = Vec::with_capacity(order.len());
        for (i, sink) in order {
            if let Some(sink) = self.sink(sink, diagnostics) {
                planned.push((i, sink));
            }
        }
        planned.sort_by_key(|(i, _)| *i);
        self.plan.sinks = planned.into_iter().map(|(_, sink)| sink).collect();
    }

    fn sink(
        &mut self,
        sink: &Component<SinkKeys, dyn SinkSpec>,
        diagnostics: &mut Diagnostics,
    ) -> Option<PlannedSink> {
        let input = &sink.keys.input;
        if !self.layouts.contains_key(input) {
            self.report_unfilled(&sink.section, input, diagnostics);
            return None;
        }
        let facts = sink.spec.facts();
        let is_copied = self.plan.ring(&host_name(input)).is_some();
        let chosen = match (facts.accepts, self.plan.ring(input)) {
            // If the frames are copied to host memory for another reader, the sink reads that copy.
            (Placements::Measured, Some(ring)) if !is_copied => {
                nics::reads(facts.nic, ring, self.topology, &self.context.profiles).map(Some)
            }
            // The sink reads the joined frames of a spread ring.
            (_, None) | (Placements::Host | Placements::Measured, _) => Err(String::new()),
            (Placements::Any, _) => Ok(None),
        };
        let (reads, note) = match chosen {
            Ok(note) => (input.clone(), note),
            Err(why) => {
                let why = format!("sink `{}` reads host memory{why}", sink.name());
                (self.host_side(input, &why), None)
            }
        };
        self.read_by(&reads, sink.name());
        let ring = self.plan.ring(&reads);
        let frames = RingFrames {
            layout: &self.layouts[input],
            slot_bytes: ring.map_or(0, |ring| ring.slot_bytes),
            packets_per_frame: ring.map_or(0, |ring| ring.packets_per_frame),
            kept: ring.map_or(&[], |ring| &ring.kept),
        };
        let needs = match sink.spec.needs(frames) {
            Ok(needs) => needs,
            Err(problem) => {
                diagnostics.push(sink.section.problem(problem));
                return None;
            }
        };
        for problem in facts.warnings {
            diagnostics.push(sink.section.warning(problem));
        }
        self.plan.threads += 1;
        Some(PlannedSink {
            name: sink.name().to_owned(),
            driver: sink.driver.clone(),
            to: facts.claims.iter().map(Claim::to_string).collect(),
            input: reads,
            notes: note.into_iter().chain(needs.note).collect(),
            guarantee: sink.keys.reader.guarantee,
            incomplete: sink.keys.reader.incomplete,
            burst: sink.keys.reader.burst(facts.burst),
            core: sink.keys.reader.core,
            wait: sink.keys.reader.wait,
            memory: needs.memory,
            nic: None,
            counts: facts.counts,
        })
    }
}
