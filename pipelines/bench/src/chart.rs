//! Declares which columns of a table a chart shows. The declaration is a part of the table's JSON, from which `charts.py`
//! draws the chart.

use serde::Serialize;

/// The columns of a chart. The chart has lines over the column `x`, or rows if `x` is missing.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Chart {
    title: String,
    unit: &'static str,
    /// Whether `higher` or `lower` figures are better.
    better: &'static str,
    /// The column with sizes or counts, and the label of its axis.
    x: Option<&'static str>,
    label: Option<&'static str>,
    /// The columns whose texts name the method of a row. If there are none, the columns of figures name the methods.
    methods: &'static [&'static str],
    /// The columns with figures. A chart of a column `p50` also shows the column `p99`.
    figures: Vec<String>,
    /// Beginnings of the names of daq's own methods.
    own: &'static [&'static str],
    /// The methods to show; all if the list is empty.
    only: Vec<String>,
    /// Names and figures that no method can exceed.
    ceilings: Vec<(&'static str, f64)>,
}

impl Chart {
    fn new(title: impl Into<String>, unit: &'static str, better: &'static str) -> Self {
        Self {
            title: title.into(),
            unit,
            better,
            x: None,
            label: None,
            methods: &[],
            figures: Vec::new(),
            own: &[],
            only: Vec::new(),
            ceilings: Vec::new(),
        }
    }

    /// Creates a chart of rates, for which higher is better.
    pub(super) fn rates(title: impl Into<String>, unit: &'static str) -> Self {
        Self::new(title, unit, "higher")
    }

    /// Creates a chart of times, for which lower is better.
    pub(super) fn times(title: impl Into<String>, unit: &'static str) -> Self {
        Self::new(title, unit, "lower")
    }

    /// Uses the sizes or counts in the column `x` for the horizontal axis, with the label `label`. Rows with another text
    /// in this column are not shown.
    pub(super) fn over(self, x: &'static str, label: &'static str) -> Self {
        let (x, label) = (Some(x), Some(label));
        Self { x, label, ..self }
    }

    /// Uses the figures in `column`. The texts in the columns `methods` name the method of a row.
    pub(super) fn by(self, methods: &'static [&'static str], column: &str) -> Self {
        let figures = vec![column.to_owned()];
        Self {
            methods,
            figures,
            ..self
        }
    }

    /// Uses the figures in a column per method.
    pub(super) fn columns(self, columns: &[&str]) -> Self {
        let figures = columns.iter().map(|&column| column.to_owned()).collect();
        Self { figures, ..self }
    }

    /// Marks the methods whose names begin with one of `own` as daq's own.
    pub(super) fn own(self, own: &'static [&'static str]) -> Self {
        Self { own, ..self }
    }

    /// Shows only these methods.
    pub(super) fn only(self, only: Vec<String>) -> Self {
        Self { only, ..self }
    }

    /// Adds a figure that no method can exceed.
    pub(super) fn ceiling(mut self, name: &'static str, figure: f64) -> Self {
        self.ceilings.push((name, figure));
        self
    }

    /// Returns the columns that the table must have.
    pub(super) fn needed(&self) -> impl Iterator<Item = &str> {
        let names = self.x.iter().chain(self.methods).copied();
        names.chain(self.figures.iter().map(String::as_str))
    }
}
