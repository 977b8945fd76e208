//! Declares which columns of a table a chart shows.

use super::table::{Cell, Table};
use crate::charts::{Axis, Better, Ceiling, Chart, Form, Group, Line, Quantiles, Row};

/// The columns of a chart. The chart has lines if there is a column of sizes or counts, otherwise rows.
pub(super) struct Plot {
    title: String,
    unit: &'static str,
    better: Better,
    x: Option<X>,
    figures: Figures,
    /// Returns the name that the chart shows for a method, and whether the method is daq's own. Methods without a name
    /// are not shown.
    names: Names,
    ceilings: Vec<Ceiling>,
}

/// Returns the shown name of a method, and whether the method is daq's own.
type Names = Box<dyn Fn(&str) -> Option<(String, bool)>>;

/// The horizontal axis of lines.
struct X {
    column: &'static str,
    label: &'static str,
}

/// Where the figures are.
enum Figures {
    /// In one column. The methods are in other columns.
    Column(&'static str, &'static [&'static str]),
    /// In a column per method.
    Columns(Vec<String>),
}

impl Plot {
    fn new(title: impl Into<String>, unit: &'static str, better: Better) -> Self {
        Self {
            title: title.into(),
            unit,
            better,
            x: None,
            figures: Figures::Columns(Vec::new()),
            names: Box::new(|name| Some((name.to_owned(), false))),
            ceilings: Vec::new(),
        }
    }

    /// Creates a chart of rates, for which higher is better.
    pub(super) fn rates(title: impl Into<String>, unit: &'static str) -> Self {
        Self::new(title, unit, Better::Higher)
    }

    /// Creates a chart of times, for which lower is better.
    pub(super) fn times(title: impl Into<String>, unit: &'static str) -> Self {
        Self::new(title, unit, Better::Lower)
    }

    /// Uses the sizes or counts in `column` for the horizontal axis, with the label `label`. Rows with a text in this
    /// column are not shown.
    pub(super) fn over(mut self, column: &'static str, label: &'static str) -> Self {
        self.x = Some(X { column, label });
        self
    }

    /// Uses the figures in `column`. The texts in the columns `methods` name the method of a row.
    pub(super) fn by(mut self, methods: &'static [&'static str], column: &'static str) -> Self {
        self.figures = Figures::Column(column, methods);
        self
    }

    /// Uses the figures in a column per method.
    pub(super) fn columns(mut self, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned());
        self.figures = Figures::Columns(columns.collect());
        self
    }

    /// Selects and names the methods: see the field.
    pub(super) fn names(
        mut self,
        names: impl Fn(&str) -> Option<(String, bool)> + 'static,
    ) -> Self {
        self.names = Box::new(names);
        self
    }

    /// Shows all methods. Those for which `is_own` returns true are daq's own.
    pub(super) fn own(self, is_own: fn(&str) -> bool) -> Self {
        self.names(move |name| Some((name.to_owned(), is_own(name))))
    }

    /// Adds a figure that no method can exceed.
    pub(super) fn ceiling(mut self, name: impl Into<String>, figure: f64) -> Self {
        self.ceilings.push(Ceiling {
            name: name.into(),
            figure,
        });
        self
    }

    /// Returns the chart of `table`, or `None` if the table has no figure for it.
    pub(super) fn of(&self, table: &Table) -> Option<Chart> {
        let form = match &self.x {
            Some(x) => {
                let (axis, lines) = self.lines(table, x);
                Form::Lines {
                    label: x.label.to_owned(),
                    axis,
                    lines,
                    ceilings: self.ceilings.clone(),
                }
            }
            None => Form::Rows(self.rows(table)),
        };
        let chart = Chart {
            title: self.title.clone(),
            unit: self.unit.to_owned(),
            better: self.better,
            form,
        };
        (!chart.is_empty()).then_some(chart)
    }

    /// Returns the name and the figure of each shown method in a row.
    fn figures<'a>(
        &'a self,
        table: &'a Table,
        row: &'a [Cell],
    ) -> impl Iterator<Item = (String, bool, Quantiles)> + 'a {
        let cells: Vec<(String, &Cell)> = match &self.figures {
            Figures::Column(column, methods) => {
                let names = methods
                    .iter()
                    .map(|method| table.cell(row, method).to_string());
                // A dash stands for a column that does not apply to the method.
                let names: Vec<_> = names.filter(|name| name != "–").collect();
                vec![(names.join(", "), table.cell(row, column))]
            }
            Figures::Columns(columns) => {
                let cells = columns.iter();
                cells
                    .map(|column| (column.clone(), table.cell(row, column)))
                    .collect()
            }
        };
        cells.into_iter().filter_map(|(name, cell)| {
            let (name, is_own) = (self.names)(&name)?;
            Some((name, is_own, cell.figure()?))
        })
    }

    fn lines(&self, table: &Table, x: &X) -> (Axis, Vec<Line>) {
        let mut axis = Axis::Count;
        let mut lines: Vec<Line> = Vec::new();
        for row in table.rows() {
            let at = match table.cell(row, x.column) {
                Cell::Size(bytes) => {
                    axis = Axis::Bytes;
                    *bytes as f64
                }
                Cell::Number(count, _) => *count,
                Cell::Text(_) | Cell::Times(..) => continue,
            };
            for (name, is_own, figure) in self.figures(table, row) {
                let line = match lines.iter().position(|line| line.name == name) {
                    Some(line) => &mut lines[line],
                    None => lines.push_mut(Line {
                        name,
                        is_own,
                        points: Vec::new(),
                    }),
                };
                line.points.push((at, figure));
            }
        }
        lines.retain(|line| line.points.iter().any(|(_, figure)| !figure[0].is_nan()));
        for line in &mut lines {
            line.points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        }
        // daq's own lines have the first colours.
        lines.sort_by_key(|line| !line.is_own);
        (axis, lines)
    }

    fn rows(&self, table: &Table) -> Vec<Group> {
        let rows = table.rows().iter().flat_map(|row| self.figures(table, row));
        let rows = rows.filter(|(_, _, figure)| !figure[0].is_nan());
        let rows = rows.map(|(name, is_own, figure)| Row {
            name,
            is_own,
            figure,
        });
        vec![Group {
            heading: String::new(),
            rows: rows.collect(),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::size;
    use super::*;

    #[test]
    fn lines_are_taken_from_rows_or_columns() {
        let mut table = Table::new("copies", "method | frame | GB/s");
        for (method, bytes, rate) in [
            ("reference", 65536, 7.0),
            ("engine", 65536, 54.0),
            ("engine", 8192, 53.0),
            ("skipped", 8192, 1.0),
            ("unmeasured", 8192, f64::NAN),
        ] {
            table.row(vec![method.into(), size(bytes), Cell::Number(rate, 2)]);
        }
        let plot = Plot::rates("rates", "GB/s")
            .over("frame", "frame size")
            .by(&["method"], "GB/s")
            .names(|name| (name != "skipped").then(|| (name.to_owned(), name == "engine")));
        let Some(Form::Lines { lines, axis, .. }) = plot.of(&table).map(|chart| chart.form) else {
            panic!("no lines");
        };
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!((names, axis), (vec!["engine", "reference"], Axis::Bytes));
        assert_eq!(lines[0].points[0].0, 8192.0);

        let mut wide = Table::new("copies", "copy | in | out");
        wide.row(vec![size(8192), Cell::Number(3.0, 2), Cell::Number(4.0, 2)]);
        wide.row(vec![
            "8 KiB to +1".into(),
            Cell::Number(9.0, 2),
            Cell::Number(9.0, 2),
        ]);
        let plot = Plot::rates("rates", "GB/s")
            .over("copy", "size")
            .columns(&["in", "out"]);
        let Some(Form::Lines { lines, .. }) = plot.of(&wide).map(|chart| chart.form) else {
            panic!("no lines");
        };
        assert_eq!(lines[1].points.len(), 1);
        assert_eq!(lines[1].points[0].1[0], 4.0);
    }

    #[test]
    fn chart_without_figures_is_not_drawn() {
        let plot = || Plot::times("times", "µs").by(&["method"], "p50");
        let mut table = Table::new("times", "method | p50");
        assert!(plot().of(&table).is_none());
        table.row(vec!["a".into(), Cell::Number(f64::NAN, 2)]);
        assert!(plot().of(&table).is_none());
        table.row(vec!["b".into(), Cell::Number(1.0, 2)]);
        assert!(plot().of(&table).is_some());
    }
}
