//! The numbers of a source or a ring in a history: as changes, as series in memory, or as columns of an answer.

use daq_core::ledger::{ReaderReport, RingReport, SourceReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares the numbers of a component. `T` is a number, or one number per bucket.
///
/// The numbers in the first list are differences of the fields with the same names in two reports, those in the list
/// `values` are computed otherwise, and those in the list `named` exist once per name, such as the cause of a loss.
macro_rules! numbers {
    (
        $(#[$about:meta])*
        $name:ident: differences of $report:ident { $($change:ident,)+ }
        $(values { $($(#[$value_about:meta])* $value:ident,)+ })?
        $(named { $($(#[$named_about:meta])* $named:ident,)+ })?
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) struct $name<T> {
            $(pub(super) $change: T,)+
            $($($(#[$value_about])* pub(super) $value: T,)+)?
            $($($(#[$named_about])* pub(super) $named: BTreeMap<String, T>,)+)?
        }

        impl<T> $name<T> {
            /// Returns the numbers without the numbers by name.
            pub(super) fn fixed(&self) -> impl Iterator<Item = &T> {
                [$(&self.$change,)+ $($(&self.$value,)+)?].into_iter()
            }

            pub(super) fn fixed_mut(&mut self) -> impl Iterator<Item = &mut T> {
                [$(&mut self.$change,)+ $($(&mut self.$value,)+)?].into_iter()
            }

            /// Converts every number.
            pub(super) fn map<U>(&self, mut convert: impl FnMut(&T) -> U) -> $name<U> {
                $name {
                    $($change: convert(&self.$change),)+
                    $($($value: convert(&self.$value),)+)?
                    $($($named: {
                        let names = self.$named.iter();
                        names.map(|(name, number)| (name.clone(), convert(number))).collect()
                    },)+)?
                }
            }
        }

        $(impl<T> $name<T> {
            /// Returns the numbers by name.
            pub(super) fn named(&self) -> impl Iterator<Item = &BTreeMap<String, T>> {
                [$(&self.$named,)+].into_iter()
            }

            pub(super) fn named_mut(&mut self) -> impl Iterator<Item = &mut BTreeMap<String, T>> {
                [$(&mut self.$named,)+].into_iter()
            }
        })?

        impl $name<u64> {
            /// Returns the differences between two reports. All other numbers are 0.
            fn differences(before: &$report, now: &$report) -> Self {
                Self {
                    $($change: now.$change.saturating_sub(before.$change),)+
                    ..Self::default()
                }
            }
        }
    };
}

numbers! {
    /// The numbers of a source.
    SourceNumbers: differences of SourceReport {
        expected, delivered, bytes, rejected, duplicates, skipped, incomplete,
    }
    named {
        /// Lost packets by cause.
        lost,
        /// Frames that the ring of the source refused, by the reader that blocked the ring.
        blocked,
    }
}

numbers! {
    /// The numbers of a ring.
    RingNumbers: differences of RingReport { published, ring_full, }
    values {
        /// Maximum number of frames that a reader of the ring had not read yet.
        fill,
    }
}

impl SourceNumbers<u64> {
    /// Returns what changed between two reports of a source. `readers` are the two reports of each reader of the source's
    /// ring, by name.
    pub(super) fn between<'a>(
        before: &SourceReport,
        now: &SourceReport,
        readers: impl Iterator<Item = (&'a str, u64, &'a ReaderReport)>,
    ) -> Self {
        let lost = now.lost.iter().map(|(cause, count)| {
            let old = before.lost.get(cause).copied().unwrap_or(0);
            ((*cause).to_owned(), count.saturating_sub(old))
        });
        let blocked = readers
            .map(|(name, old, reader)| (name.to_owned(), reader.blocked.saturating_sub(old)));
        Self {
            lost: lost.filter(|(_, count)| *count > 0).collect(),
            blocked: blocked.filter(|(_, count)| *count > 0).collect(),
            ..Self::differences(before, now)
        }
    }

    /// Whether data of the source is missing.
    pub(super) fn has_loss(&self) -> bool {
        !self.lost.is_empty() || self.skipped > 0 || self.incomplete > 0
    }
}

impl RingNumbers<u64> {
    /// Returns what changed between two reports of a ring. `pending` is the lag of the slowest reader.
    pub(super) fn between(before: &RingReport, now: &RingReport, pending: u64) -> Self {
        Self {
            fill: pending.min(now.capacity),
            ..Self::differences(before, now)
        }
    }
}
