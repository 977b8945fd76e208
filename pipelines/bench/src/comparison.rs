//! Compares methods on scenarios, for example copy methods on several sizes. Every round measures all methods of all
//! scenarios one after another, and each figure is the median of the rounds. So the ratios of methods are meaningful
//! even if absolute values vary between runs.

use super::figures::median;
use super::table::{Cell, Table};
use super::{BenchError, Publish};
use std::collections::{BTreeMap, BTreeSet};

/// The results of some methods on some scenarios. Each measurement returns `N` figures.
pub(super) struct Comparison<'a, S, M, const N: usize> {
    scenarios: &'a [S],
    methods: &'a [M],
    rounds: usize,
    /// The figures of every round, for each method of each scenario. The list of a method that was not measured is
    /// empty.
    results: Vec<Vec<[f64; N]>>,
}

/// The results of one method on one scenario.
pub(super) struct Row<'a, S, M, const N: usize> {
    pub(super) scenario: &'a S,
    pub(super) method: &'a M,
    /// The figures of every round.
    pub(super) rounds: &'a [[f64; N]],
    /// The medians of the rounds; NaN if the method was not measured.
    pub(super) figures: [f64; N],
    /// The medians of each method on the same scenario.
    pub(super) all: Vec<[f64; N]>,
}

impl<'a, S, M, const N: usize> Comparison<'a, S, M, N> {
    /// Calls `measure` for each method of each scenario in each round. `measure` returns `None` if the method is not
    /// available. If `is_rotated`, each round begins with another method, so that no method always benefits from the same
    /// predecessor.
    pub(super) fn run(
        rounds: usize,
        is_rotated: bool,
        scenarios: &'a [S],
        methods: &'a [M],
        mut measure: impl FnMut(&'a S, &'a M) -> Result<Option<[f64; N]>, BenchError>,
    ) -> Result<Self, BenchError> {
        let mut results = vec![Vec::new(); scenarios.len() * methods.len()];
        for round in 0..rounds {
            for (i, scenario) in scenarios.iter().enumerate() {
                let first = if is_rotated { round } else { 0 };
                for method in first..first + methods.len() {
                    let method = method % methods.len();
                    let figures = measure(scenario, &methods[method])?;
                    results[i * methods.len() + method].extend(figures);
                }
            }
        }
        Ok(Self {
            scenarios,
            methods,
            rounds,
            results,
        })
    }

    /// Returns the results of all methods on the first scenario, then on the next scenario, and so on.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_, S, M, N>> {
        let results = self.results.chunks(self.methods.len().max(1));
        let scenarios = self.scenarios.iter().zip(results);
        scenarios.flat_map(|(scenario, results)| {
            let all: Vec<_> = results.iter().map(|rounds| medians(rounds)).collect();
            let methods = self.methods.iter().zip(results).enumerate();
            methods.map(move |(i, (method, rounds))| Row {
                scenario,
                method,
                rounds,
                figures: all[i],
                all: all.clone(),
            })
        })
    }

    /// Returns a table with one row per method and scenario. The title also contains the number of rounds.
    pub(super) fn table(
        &self,
        title: &str,
        columns: &str,
        cells: impl Fn(Row<'_, S, M, N>) -> Vec<Cell>,
    ) -> Table {
        Table::of(self.title(title), columns, self.rows().map(cells))
    }

    /// Appends the number of rounds to the title of a table.
    pub(super) fn title(&self, title: &str) -> String {
        format!("{title}; medians of {} rounds", self.rounds)
    }

    /// Returns the medians of each method by scenario.
    pub(super) fn by_scenario(&self) -> impl Iterator<Item = (&S, Vec<[f64; N]>)> {
        let results = self.results.chunks(self.methods.len().max(1));
        let medians = results.map(|all| all.iter().map(|rounds| medians(rounds)).collect());
        self.scenarios.iter().zip(medians)
    }
}

impl<S, M, const N: usize> Row<'_, S, M, N> {
    pub(super) const fn is_measured(&self) -> bool {
        !self.rounds.is_empty()
    }
}

/// Returns the median of each figure; NaN if there are no rounds.
fn medians<const N: usize>(rounds: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|i| {
        let figures: Vec<_> = rounds.iter().map(|figures| figures[i]).collect();
        median(&figures)
    })
}

/// The methods that cannot be measured, by reason.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<String, BTreeSet<String>>);

impl Refused {
    pub(super) fn add(&mut self, method: impl Into<String>, why: impl std::fmt::Display) {
        let methods = self.0.entry(why.to_string()).or_default();
        methods.insert(method.into());
    }

    pub(super) fn contains(&self, method: &str) -> bool {
        self.0.values().any(|methods| methods.contains(method))
    }

    /// Publishes a table of the methods and reasons, if there are any.
    pub(super) fn publish(self, publish: Publish<'_>) {
        if self.0.is_empty() {
            return;
        }
        let rows = self.0.into_iter().map(|(why, methods)| {
            let methods: Vec<_> = methods.into_iter().collect();
            vec![methods.join("; ").into(), why.into()]
        });
        publish(Table::of("not measured", "methods | reason", rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_over_rounds() {
        let mut calls = 0.0;
        let compared = Comparison::run(
            3,
            false,
            &["64 B", "4 KiB"],
            &[1.0, 0.0, 2.0],
            |_, method| {
                calls += 1.0;
                Ok((*method > 0.0).then_some([calls, *method]))
            },
        );
        let compared = compared.unwrap();
        let rows: Vec<_> = compared.rows().collect();
        let cases: Vec<_> = rows
            .iter()
            .map(|row| (*row.scenario, *row.method))
            .collect();
        assert_eq!(
            (cases[1], cases[3], rows.len()),
            (("64 B", 0.0), ("4 KiB", 1.0), 6)
        );
        assert_eq!(rows[0].rounds, [[1.0, 1.0], [7.0, 1.0], [13.0, 1.0]]);
        assert_eq!(
            (rows[0].figures, rows[5].figures),
            ([7.0, 1.0], [12.0, 2.0])
        );
        assert_eq!(rows[2].all[0], rows[0].figures);
        assert!(!rows[1].is_measured() && rows[1].figures[0].is_nan());
        let all: Vec<_> = compared.by_scenario().map(|(_, all)| all[2]).collect();
        assert_eq!(all, [rows[2].figures, rows[5].figures]);
    }

    #[test]
    fn refused_methods_are_grouped_by_reason() {
        let mut refused = Refused::default();
        for method in ["b", "a", "b"] {
            refused.add(method, "no GPU");
        }
        assert!(refused.contains("a") && !refused.contains("c"));
        let mut tables = Vec::new();
        refused.publish(&mut |table| tables.push(table.to_string()));
        assert!(tables[0].contains("a; b") && tables[0].contains("no GPU"));
        Refused::default().publish(&mut |_| unreachable!("nothing was refused"));
    }
}
