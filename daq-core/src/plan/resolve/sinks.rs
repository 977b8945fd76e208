//! Resolves sinks: which ring each sink reads.

use super::Resolver;
use super::rings::host_name;
use crate::claim::Claim;
use crate::config::Diagnostics;
use crate::plan::{Component, PlannedSink, SinkKeys, nics};
use crate::sink::{Placements, SinkSpec};

impl Resolver<'_> {
    pub(super) fn sinks(&mut self, diagnostics: &mut Diagnostics) {
        let config = self.config;
        let mut order: Vec<_> = config.sinks.iter().enumerate().collect();
        // Sinks that choose by measurement come last, because their choice depends on the copies that others need.
        order.sort_by_key(|(_, sink)| sink.spec.accepts() == Placements::Measured);
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
        let Some(layout) = self.layouts.get(input) else {
            self.report_unfilled(&sink.section, input, diagnostics);
            return None;
        };
        if let Err(problem) = sink.spec.check(layout) {
            diagnostics.push(sink.section.problem(problem));
            return None;
        }
        for problem in sink.spec.warnings() {
            diagnostics.push(sink.section.warning(problem));
        }
        let is_copied = self.plan.ring(&host_name(input)).is_some();
        let chosen = match (sink.spec.accepts(), self.plan.ring(input)) {
            // If the frames are copied to host memory for another reader, the sink reads that copy.
            (Placements::Measured, Some(ring)) if !is_copied => {
                nics::reads(&*sink.spec, ring, self.topology, &self.context.profiles).map(Some)
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
        let (slot, packets_per_frame) =
            ring.map_or((0, 0), |ring| (ring.slot_bytes, ring.packets_per_frame));
        let memory = sink.spec.memory(slot, ring.map_or(&[], |ring| &ring.kept));
        self.plan.threads += 1;
        Some(PlannedSink {
            name: sink.name().to_owned(),
            driver: sink.driver.clone(),
            to: sink.spec.claims().iter().map(Claim::to_string).collect(),
            input: reads,
            notes: note
                .into_iter()
                .chain(sink.spec.needs(slot, packets_per_frame))
                .collect(),
            guarantee: sink.keys.reader.guarantee,
            incomplete: sink.keys.reader.incomplete,
            burst: sink.keys.reader.burst(sink.spec.burst()),
            core: sink.keys.reader.core,
            wait: sink.keys.reader.wait,
            memory,
            nic: None,
            counts: sink.spec.counts(),
        })
    }
}
