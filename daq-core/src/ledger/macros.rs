//! The macro that declares a ledger: its counters, its report, its equation and its metrics.
//!
//! ```text
//! ledger! {
//!     /// Purpose of the counters.
//!     ledger SinkLedger { /* counters that no report shows */ }
//!     /// Purpose of the snapshot.
//!     report SinkReport ["sink"] {                      // the labels of its metrics
//!         /// Frames accepted by the sink.               // documentation, and the help text of the metric
//!         frames: u64 = Counter, counter "daq_sink_frames_total" { meaning: "…", },
//!         /// Whether the receiver is connected.         // without `= Counter`: a value that is not stored
//!         connected: bool,
//!     }
//!     equation frames = written + failed, pending;      // `pending` is calculated from the other terms
//!                                                       // a ledger may have several equations
//! }
//! ```
//!
//! The counters are read from the last to the first. Therefore declare the whole before its parts, and if frames move
//! from one counter to another, declare the first counter before the second. Then frames that move while the counters
//! are read violate no equation.

macro_rules! ledger {
    (
        $(#[$ledger_meta:meta])*
        ledger $ledger:ident {
            $($(#[$internal_meta:meta])* $internal:ident: $internal_type:ty,)*
        }
        $(#[$report_meta:meta])*
        report $report:ident $labels:tt {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])?
                $field:ident: $value:ty $(= $stored:ty)?
                $(, $kind:ident $metric:literal $(by $by:literal)? $(($($samples:tt)+))? {
                    $($key:ident: $text:expr,)*
                })?,
            )*
        }
        $(equation $left:ident $(as $left_key:literal)? = $first:ident $(+ $right:ident)* $(, $pending:ident)?;)*
    ) => {
        $(#[$ledger_meta])*
        #[derive(Clone, Debug, Default)]
        pub struct $ledger {
            $($(#[$internal_meta])* pub $internal: $internal_type,)*
            $($(
                #[doc = concat!("Stores [`", stringify!($report), "::", stringify!($field), "`].")]
                pub $field: $stored,
            )?)*
        }

        impl $ledger {
            /// Creates counters in `counter_file`, named `PREFIX.FIELD`.
            pub fn on(
                counter_file: &$crate::ledger::CounterFile,
                prefix: &str,
            ) -> Result<Self, $crate::ledger::CounterFileError> {
                $crate::ledger::stored::Stored::create(prefix, "", &mut |name| counter_file.counter(name))
            }
        }

        impl $crate::ledger::stored::Stored for $ledger {
            type Value = $report;

            fn create(
                prefix: &str,
                _field: &str,
                make: $crate::ledger::stored::Make<'_>,
            ) -> Result<Self, $crate::ledger::CounterFileError> {
                use $crate::ledger::stored::Stored;
                Ok(Self {
                    $($internal: Stored::create(prefix, stringify!($internal), make)?,)*
                    $($($field: <$stored as Stored>::create(prefix, stringify!($field), make)?,)?)*
                })
            }

            fn read(&self) -> $report {
                let mut report = $report::default();
                read_backwards!(report, self; $($($field: $stored,)?)*);
                report
            }
        }

        $(#[$report_meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct $report {
            $($(#[doc = $doc])+ $(#[serde($($serde)*)])? pub $field: $value,)*
        }

        impl $report {
            /// The metrics that show this report.
            pub const METRICS: &'static [$crate::ledger::Metric<Self>] = {
                $(
                    #[allow(non_upper_case_globals, dead_code, reason = "some fields have no metric")]
                    const $field: &str = concat!($($doc),+);
                )*
                &[$($($crate::ledger::Metric {
                    text: $crate::ledger::MetricText {
                        by: &[$($by)?],
                        $($key: $text,)*
                        ..$crate::ledger::MetricText::new($metric, metric_kind!($kind), &$labels, $field)
                    },
                    samples: metric_samples!($field $($($samples)+)?),
                },)?)*]
            };

            /// Returns the counters that are above 0, by name.
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                use $crate::ledger::stored::Total;
                let mut counts = vec![$($((stringify!($field), <$stored as $crate::ledger::stored::Stored>::Value::total(&self.$field)),)?)*];
                counts.retain(|(_, count)| *count > 0);
                counts
            }
        }

        impl $crate::ledger::stored::Balanced for $report {
            const EQUATIONS: &'static [$crate::ledger::Equation] = &[$($crate::ledger::Equation {
                left: equation_key!($left $($left_key)?),
                right: &[stringify!($first), $(stringify!($right),)* $(stringify!($pending))?],
            }),*];

            fn terms(&self) -> Vec<(u64, Vec<u64>)> {
                #[allow(unused_imports, reason = "a ledger without equations has no terms")]
                use $crate::ledger::stored::Total;
                vec![$((
                    self.$left.total(),
                    vec![self.$first.total(), $(self.$right.total(),)* $(self.$pending)?],
                )),*]
            }

            fn settle(&mut self) {
                #[allow(unused_variables, unused_mut, reason = "not every ledger has a calculated term")]
                let mut terms = self.terms().into_iter();
                $(
                    #[allow(unused_variables, reason = "not every equation has a calculated term")]
                    let (left, right) = terms.next().unwrap_or_default();
                    $(self.$pending = right.iter().fold(left, |left, term| left.saturating_sub(*term));)?
                )*
            }
        }
    };
}

/// Reads the counters of a ledger into a report, from the last to the first.
macro_rules! read_backwards {
    ($report:ident, $ledger:ident;) => {};
    ($report:ident, $ledger:ident; $field:ident: $stored:ty, $($rest:tt)*) => {
        read_backwards!($report, $ledger; $($rest)*);
        $report.$field = <$stored as $crate::ledger::stored::Stored>::read(&$ledger.$field);
    };
}

/// Returns the kind of a metric.
#[doc(hidden)]
#[macro_export]
macro_rules! metric_kind {
    (counter) => {
        $crate::ledger::MetricKind::Counter
    };
    (gauge) => {
        $crate::ledger::MetricKind::Gauge
    };
    (histogram) => {
        $crate::ledger::MetricKind::Histogram
    };
}

/// Returns the function that reads a metric from a report: the given one, or the value of the field.
macro_rules! metric_samples {
    ($field:ident) => {
        |report: &Self, put| $crate::ledger::metric::Sampled::sample(&report.$field, put)
    };
    ($field:ident $samples:expr) => {
        $samples
    };
}

macro_rules! equation_key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

/// Declares the causes of lost packets: for each cause, its variant, its name, and its texts in the metric of lost packets.
macro_rules! causes {
    ($($(#[$meta:meta])* $cause:ident $name:literal { cause: $text:literal, remedy: $remedy:literal, },)*) => {
        /// Cause of a lost packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(usize)]
        pub enum Cause {
            $($(#[$meta])* $cause,)*
        }

        impl Cause {
            /// Every cause, in ascending order of its numeric value.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$cause),*];

            /// Returns the name used in reports and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$cause => $name,)*
                }
            }

            /// Returns what the user should do about this loss.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$cause => $remedy,)*
                }
            }
        }

        const CAUSES: &str = concat!($($name, ": ", $text, " "),*).trim_ascii();
        const REMEDIES: &str = concat!($($name, ": ", $remedy, " "),*).trim_ascii();
    };
}
