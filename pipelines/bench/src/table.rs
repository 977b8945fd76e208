//! Formats results as aligned text or as JSON.

use super::chart::Chart;
use daq_core::units::ByteSize;
use serde_json::{Map, Value, json};
use std::fmt;

/// A table: title, columns and rows, and charts of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
    charts: Vec<Chart>,
}

/// A cell: a value and its format.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// A text.
    Text(String),
    /// A number and the number of decimals to show; NaN is shown as a dash.
    Number(f64, usize),
    /// A number of bytes.
    Size(usize),
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Returns a cell with a number of bytes.
pub(super) const fn size(bytes: usize) -> Cell {
    Cell::Size(bytes)
}

/// Returns a cell for each number, with `digits` decimals.
pub(super) fn numbers<const N: usize>(numbers: [f64; N], digits: usize) -> [Cell; N] {
    numbers.map(|number| Cell::Number(number, digits))
}

/// Returns a row: `names`, then a cell for each of `numbers` with `digits` decimals.
pub(super) fn row<const N: usize, const M: usize>(
    names: [Cell; N],
    figures: [f64; M],
    digits: usize,
) -> Vec<Cell> {
    names.into_iter().chain(numbers(figures, digits)).collect()
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number, _) if number.is_nan() => f.write_str("–"),
            Self::Number(number, digits) => write!(f, "{number:.digits$}"),
            Self::Size(bytes) => ByteSize(*bytes as u64).fmt(f),
        }
    }
}

impl Table {
    /// Creates a table without rows. `columns` are the names of the columns, separated by `|`. The names must differ,
    /// because they are the keys of the rows in JSON.
    pub(super) fn new(title: impl Into<String>, columns: &str) -> Self {
        Self {
            title: title.into(),
            columns: columns
                .split('|')
                .map(|name| name.trim().to_owned())
                .collect(),
            rows: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// Adds a chart of this table, which must have the columns of the chart.
    #[must_use]
    pub(super) fn with(mut self, chart: Chart) -> Self {
        for name in chart.needed() {
            let is_known = self.columns.iter().any(|column| column == name);
            debug_assert!(is_known, "{:?} has no column {name:?}", self.title);
        }
        self.charts.push(chart);
        self
    }

    /// Creates a table with `rows`.
    pub(super) fn of(
        title: impl Into<String>,
        columns: &str,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        let mut table = Self::new(title, columns);
        rows.into_iter().for_each(|row| table.row(row));
        table
    }

    /// Adds a row with one cell per column.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Returns the rows as JSON objects, with the declarations of the charts.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let cells = self.columns.iter().zip(row).map(|(column, cell)| {
                let value = match cell {
                    Cell::Text(text) => json!(text),
                    Cell::Number(number, _) => json!(number),
                    Cell::Size(_) => json!(cell.to_string()),
                };
                (column.clone(), value)
            });
            Value::Object(cells.collect::<Map<_, _>>())
        });
        json!({ "title": self.title, "rows": rows.collect::<Vec<_>>(), "charts": self.charts })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(ToString::to_string).collect())
            .collect();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                let cells = texts.iter().map(|row| row[i].chars().count());
                cells.chain([column.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let is_text = |i: usize| {
            let mut cells = self.rows.iter().map(|row| &row[i]);
            cells.all(|cell| matches!(cell, Cell::Text(_)))
        };
        // Names are left-aligned and numbers are right-aligned. Sentences are in the last column.
        let is_left = |i: usize| i + 1 == self.columns.len() && is_text(i);
        writeln!(f, "{}", self.title)?;
        for line in [&self.columns].into_iter().chain(&texts) {
            let mut text = String::from(" ");
            for (i, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if i == 0 {
                    text += &format!(" {cell:<width$}");
                } else if is_left(i) {
                    text += &format!("  {cell}");
                } else {
                    text += &format!("  {cell:>width$}");
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the texts of all tables, because the benchmarks themselves need hardware.
    #[test]
    fn columns_of_each_table_have_different_names() {
        let mut folders = vec![std::path::PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src"
        ))];
        let mut tables = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let is_columns = |text: &&str| text.trim().contains(" | ") && !text.contains('\n');
                for columns in text.split('"').filter(is_columns) {
                    let mut names: Vec<&str> = columns.split('|').map(str::trim).collect();
                    names.sort_unstable();
                    let same = names.windows(2).find(|pair| pair[0] == pair[1]);
                    assert_eq!(same, None, "{}: \"{columns}\"", path.display());
                    tables += 1;
                }
            }
        }
        assert!(tables >= 20, "only {tables} tables were found");
    }

    #[test]
    fn table_is_aligned_and_written_as_json() {
        let mut table = Table::new("copies", "frame | GB/s");
        table.row(vec!["8 KiB".into(), Cell::Number(1.234, 2)]);
        table.row(vec!["64 MiB".into(), Cell::Number(f64::NAN, 2)]);
        assert_eq!(
            table.to_string(),
            "copies\n  frame   GB/s\n  8 KiB   1.23\n  64 MiB     –\n"
        );
        assert_eq!(table.json()["rows"][0]["GB/s"], 1.234);
        assert_eq!(table.json()["rows"][1]["GB/s"], Value::Null);
    }
}
