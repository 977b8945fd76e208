//! Metrics of a report: their names, explanations and values.

use super::CountsReport;
use crate::gpu::{Backend, Dispatch};
use std::collections::BTreeMap;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only increases during a run of the process.
    Counter,
    /// The value increases and decreases.
    Gauge,
    /// Number of observations per size class, with their sum and count.
    Histogram,
}

impl MetricKind {
    /// The name in Prometheus' text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricText {
    /// The full name of the metric.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: MetricKind,
    /// The names of the labels that name the component.
    pub component: &'static [&'static str],
    /// The name of the label that distinguishes the samples of one component; empty if there is one sample.
    pub by: &'static [&'static str],
    /// Text of the `# HELP` line. Must be a single line.
    pub help: &'static str,
    /// What the value means; empty if `help` says everything.
    pub meaning: &'static str,
    /// Most likely cause of an unusual value.
    pub cause: &'static str,
    /// What the user should do about an unusual value.
    pub remedy: &'static str,
}

impl MetricText {
    /// Creates the description of a metric that needs no attention. `help` may start with a space, as a doc comment
    /// does.
    pub const fn new(
        name: &'static str,
        kind: MetricKind,
        component: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            component,
            by: &[],
            help: help.trim_ascii(),
            meaning: "",
            cause: "Normal: the value grows while data flow.",
            remedy: "None needed.",
        }
    }

    /// Returns the names of all labels.
    pub fn labels(&self) -> impl Iterator<Item = &'static str> {
        self.component.iter().chain(self.by).copied()
    }
}

/// A metric of a report of type `R`.
#[derive(Clone, Copy, Debug)]
pub struct Metric<R: 'static> {
    /// The description.
    pub text: MetricText,
    /// Passes the current samples of the metric to a function.
    pub samples: fn(&R, Put<'_>),
}

/// A function that receives the samples of a metric.
pub type Put<'a> = &'a mut dyn FnMut(Sample<'_>);

/// One value of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'a> {
    /// A number.
    Value(f64),
    /// The value of the metric's last label, and a number.
    Labelled(&'a str, f64),
    /// Numbers of observations by size.
    Histogram {
        /// Upper bounds of the size classes; the last class has none.
        bounds: &'a [u64],
        /// Number of observations per class.
        counts: &'a [u64],
        /// Number of all observations.
        count: u64,
        /// Sum of all sizes.
        sum: u64,
        /// Number of units of the bounds and the sum in one unit of the metric, such as 1e9 for nanoseconds in seconds.
        divisor: f64,
    },
}

/// A value of a report that a metric can show.
pub(super) trait Sampled {
    /// Passes the samples to `put`.
    fn sample(&self, put: Put<'_>);
}

impl Sampled for f64 {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Value(*self));
    }
}

impl Sampled for u64 {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Value(*self as f64));
    }
}

impl Sampled for bool {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Value(f64::from(*self)));
    }
}

/// A value that is `None` has no sample.
impl<T: Sampled> Sampled for Option<T> {
    fn sample(&self, put: Put<'_>) {
        if let Some(value) = self {
            value.sample(put);
        }
    }
}

/// One sample for each key.
impl Sampled for BTreeMap<&'static str, u64> {
    fn sample(&self, put: Put<'_>) {
        for (key, value) in self {
            put(Sample::Labelled(key, *value as f64));
        }
    }
}

/// One sample for each counter without a metric of its own.
impl Sampled for CountsReport {
    fn sample(&self, put: Put<'_>) {
        for (count, value) in self.iter().filter(|(count, _)| count.metric.is_none()) {
            put(Sample::Labelled(count.name, value as f64));
        }
    }
}

impl Sampled for Backend {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Labelled(self.name(), 1.0));
    }
}

impl Sampled for Dispatch {
    fn sample(&self, put: Put<'_>) {
        put(Sample::Labelled(self.name(), 1.0));
    }
}

/// Converts nanoseconds to seconds.
pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
