//! Counters that only some kinds of components have, in addition to the ledger of every source or sink. Each kind declares
//! its counters beside the code that adds to them.

use super::metric::MetricText;
use super::{Counter, CounterFile, CounterFileError, Equation};
use serde::{Serialize, Serializer};

/// The counters of one kind of component.
#[derive(Debug)]
pub struct CountSet {
    /// The counters. A whole is declared before its parts.
    pub counts: &'static [Count],
    /// The equations between the counters.
    pub equations: &'static [Equation],
}

/// A counter of a [`CountSet`].
#[derive(Debug)]
pub struct Count {
    /// The name, which is unique within a component.
    pub name: &'static str,
    /// The metric of the counter, without the labels that name the component. `None` for a sample of
    /// `daq_source_counts_total`.
    pub metric: Option<MetricText>,
    /// Whether the value is calculated from the equation in which it is the last term, and not stored.
    pub is_calculated: bool,
}

/// The counters of a component that its [`CountSet`]s declare.
#[derive(Clone, Debug, Default)]
pub struct Counts(Vec<(&'static CountSet, Vec<Counter>)>);

impl Counts {
    /// Creates the counters of `sets` in `counter_file`, named `PREFIX.NAME`.
    pub fn on(
        counter_file: &CounterFile,
        prefix: &str,
        sets: &[&'static CountSet],
    ) -> Result<Self, CounterFileError> {
        let set = |set: &&'static CountSet| {
            let counters = set.counts.iter().map(|count| {
                if count.is_calculated {
                    Ok(Counter::default())
                } else {
                    counter_file.counter(&format!("{prefix}.{}", count.name))
                }
            });
            Ok((*set, counters.collect::<Result<_, CounterFileError>>()?))
        };
        sets.iter().map(set).collect::<Result<_, _>>().map(Self)
    }

    /// Creates the counters of `sets` in memory.
    pub fn in_memory(sets: &[&'static CountSet]) -> Self {
        let set = |set: &&'static CountSet| {
            let counters = set.counts.iter().map(|_| Counter::default());
            (*set, counters.collect())
        };
        Self(sets.iter().map(set).collect())
    }

    /// Returns the counter `name`. For a name that was not declared, returns a counter that is not reported.
    pub fn counter(&self, name: &str) -> Counter {
        let all = self
            .0
            .iter()
            .flat_map(|(set, counters)| set.counts.iter().zip(counters));
        let mut found = all.filter(|(count, _)| count.name == name);
        found
            .next()
            .map_or_else(Counter::default, |(_, counter)| counter.clone())
    }

    /// Reads all counters, from the last to the first, and calculates the values that are not stored.
    pub fn read(&self) -> CountsReport {
        let mut sets: Vec<_> = self
            .0
            .iter()
            .rev()
            .map(|(set, counters)| {
                let mut values: Vec<_> = counters.iter().rev().map(Counter::get).collect();
                values.reverse();
                let mut report = SetReport { set, values };
                report.settle();
                report
            })
            .collect();
        sets.reverse();
        CountsReport(sets)
    }
}

/// A snapshot of the counters of one [`CountSet`].
#[derive(Clone, Debug)]
struct SetReport {
    set: &'static CountSet,
    values: Vec<u64>,
}

impl SetReport {
    fn get(&self, name: &str) -> u64 {
        self.iter()
            .find(|(count, _)| count.name == name)
            .map_or(0, |(_, value)| value)
    }

    fn iter(&self) -> impl Iterator<Item = (&'static Count, u64)> {
        self.set.counts.iter().zip(self.values.iter().copied())
    }

    /// Returns the left side of an equation, and the terms of its right side.
    fn terms(&self, equation: &Equation) -> (u64, Vec<u64>) {
        let right = equation.right.iter().map(|name| self.get(name));
        (self.get(equation.left), right.collect())
    }

    fn settle(&mut self) {
        for equation in self.set.equations {
            let (left, right) = self.terms(equation);
            let last = self.set.counts.iter().position(|count| {
                count.is_calculated && equation.right.last() == Some(&count.name)
            });
            if let Some(last) = last {
                self.values[last] = right
                    .iter()
                    .fold(left, |left, term| left.saturating_sub(*term));
            }
        }
    }
}

/// A snapshot of [`Counts`].
#[derive(Clone, Debug, Default)]
pub struct CountsReport(Vec<SetReport>);

impl CountsReport {
    /// Returns the counters with their values, in the order of their declaration.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Count, u64)> {
        self.0.iter().flat_map(SetReport::iter)
    }

    /// Returns the value of the counter `name`; 0 if the component does not have this counter.
    pub fn get(&self, name: &str) -> u64 {
        let mut found = self.iter().filter(|(count, _)| count.name == name);
        found.next().map_or(0, |(_, value)| value)
    }

    /// Whether the component has no such counters.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the stored counters that are above 0, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let stored = self
            .iter()
            .filter(|(count, value)| !count.is_calculated && *value > 0);
        stored.map(|(count, value)| (count.name, value)).collect()
    }

    /// Returns each equation, the value of its left side, and the values of the terms of its right side.
    pub(super) fn terms(&self) -> impl Iterator<Item = (&'static Equation, (u64, Vec<u64>))> {
        self.0.iter().flat_map(|report| {
            let equations = report.set.equations.iter();
            equations.map(|equation| (equation, report.terms(equation)))
        })
    }
}

impl PartialEq for CountsReport {
    fn eq(&self, other: &Self) -> bool {
        let named = |(count, value): (&'static Count, u64)| (count.name, value);
        self.iter().map(named).eq(other.iter().map(named))
    }
}

impl Eq for CountsReport {}

impl Serialize for CountsReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(count, value)| (count.name, value)))
    }
}

/// Declares counters that only one kind of component has. The names of the fields are the names of the counters.
///
/// ```
/// daq_core::counts! {
///     /// The counters of a camera.
///     pub struct CameraCounts {
///         /// Number of frames that the camera ended early.
///         short,
///     }
/// }
/// assert_eq!(CameraCounts::SET.counts[0].name, "short");
/// ```
///
/// A counter of a source without a metric of its own is a sample of `daq_source_counts_total`. The counters of a sink have
/// metrics of their own. A value that is not stored is declared under `calculated`, as the last term of an equation:
///
/// ```
/// daq_core::counts! {
///     /// The counters of a mail sink.
///     pub struct MailCounts {
///         /// Messages that the sink began to send.
///         started, counter "daq_sink_mail_messages_total" {
///             meaning: "Always the sum of sent and open messages.",
///         },
///         /// Messages that the server has accepted.
///         sent, counter "daq_sink_mail_sent_messages_total" {},
///     }
///     calculated {
///         /// Messages that the server has not accepted yet.
///         open, gauge "daq_sink_mail_open_messages" {},
///     }
///     equation started = sent, open;
/// }
/// let counts = daq_core::ledger::Counts::in_memory(&[MailCounts::SET]);
/// let mail = MailCounts::of(&counts);
/// mail.started.add(3);
/// mail.sent.add(1);
/// assert_eq!(counts.read().get("open"), 2);
/// ```
#[macro_export]
macro_rules! counts {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident
                $(, $kind:ident $metric:literal { $($key:ident: $text:expr,)* })?,
            )*
        }
        $(calculated {
            $(
                $(#[doc = $rest_doc:literal])+
                $rest:ident, $rest_kind:ident $rest_metric:literal { $($rest_key:ident: $rest_text:expr,)* },
            )*
        })?
        $(equation $left:ident = $first:ident $(+ $right:ident)* $(, $pending:ident)?;)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        $vis struct $name {
            $($(#[doc = $doc])+ pub $field: $crate::ledger::Counter,)*
        }

        impl $name {
            /// The declaration of the counters.
            pub const SET: &'static $crate::ledger::CountSet = &$crate::ledger::CountSet {
                counts: &[
                    $($crate::ledger::Count {
                        name: stringify!($field),
                        metric: $crate::count_metric!(
                            concat!($($doc),+) $(, $kind $metric { $($key: $text,)* })?
                        ),
                        is_calculated: false,
                    },)*
                    $($($crate::ledger::Count {
                        name: stringify!($rest),
                        metric: $crate::count_metric!(
                            concat!($($rest_doc),+), $rest_kind $rest_metric { $($rest_key: $rest_text,)* }
                        ),
                        is_calculated: true,
                    },)*)?
                ],
                equations: &[$($crate::ledger::Equation {
                    left: stringify!($left),
                    right: &[stringify!($first), $(stringify!($right),)* $(stringify!($pending))?],
                }),*],
            };

            /// Returns the counters of a component that declares them.
            pub fn of(counts: &$crate::ledger::Counts) -> Self {
                Self { $($field: counts.counter(stringify!($field)),)* }
            }
        }
    };
}

/// Returns the description of the metric of a counter, if it has one.
#[doc(hidden)]
#[macro_export]
macro_rules! count_metric {
    ($doc:expr) => {
        None
    };
    ($doc:expr, $kind:ident $metric:literal { $($key:ident: $text:expr,)* }) => {
        Some($crate::ledger::MetricText {
            $($key: $text,)*
            ..$crate::ledger::MetricText::new($metric, $crate::metric_kind!($kind), &[], $doc)
        })
    };
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro `counts` is for other crates")]
mod tests {
    use super::*;
    use crate::ledger::MetricKind;

    counts! {
        /// The counters of a test.
        struct SentCounts {
            /// Packets that the sink began to send.
            packets, counter "daq_sink_packets_total" {
                meaning: "Always the sum of sent and pending packets.",
            },
            /// Packets that were sent.
            sent, counter "daq_sink_sent_packets_total" {},
            /// Messages without data.
            control,
        }
        calculated {
            /// Packets that are being sent.
            pending, gauge "daq_sink_pending_packets" {},
        }
        equation packets = sent, pending;
    }

    #[test]
    fn counters_are_found_by_name_and_calculated_values_settle_equations() {
        let counter_file = CounterFile::in_memory();
        let counts = Counts::on(&counter_file, "sink.tx", &[SentCounts::SET]).unwrap();
        let sent = SentCounts::of(&counts);
        sent.packets.add(5);
        sent.sent.add(3);
        sent.control.add(0);
        counts.counter("unknown").add(1);
        let report = counts.clone().read();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "packets": 5, "sent": 3, "control": 0, "pending": 2 })
        );
        assert_eq!(report.counters(), [("packets", 5), ("sent", 3)]);
        let balanced = report
            .terms()
            .all(|(_, (left, right))| left == right.iter().sum::<u64>());
        assert!(balanced && report.terms().count() == 1);
        assert_eq!((report.get("pending"), report.get("unknown")), (2, 0));
        assert!(report != CountsReport::default() && CountsReport::default().is_empty());
    }

    #[test]
    fn counters_have_the_declared_metrics() {
        let metrics: Vec<_> = SentCounts::SET
            .counts
            .iter()
            .map(|count| count.metric)
            .collect();
        let packets = metrics[0].unwrap();
        assert_eq!(packets.help, "Packets that the sink began to send.");
        assert_eq!(
            (packets.kind, packets.name),
            (MetricKind::Counter, "daq_sink_packets_total")
        );
        assert!(metrics[2].is_none());
        assert_eq!(metrics[3].unwrap().kind, MetricKind::Gauge);
    }
}
