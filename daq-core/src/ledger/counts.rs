//! Additional named counters of a source, which are not part of its ledger.

use super::{Counter, CounterFile, CounterFileError};
use std::collections::BTreeMap;

/// Additional counters of a source. They are not part of a ledger equation.
#[derive(Clone, Debug, Default)]
pub struct Counts(Vec<(&'static str, Counter)>);

impl Counts {
    /// Creates counters in `counter_file`, named `PREFIX.count.NAME`.
    pub fn on(
        counter_file: &CounterFile,
        prefix: &str,
        names: &[&'static str],
    ) -> Result<Self, CounterFileError> {
        let counters = names.iter().map(|name| {
            let counter = counter_file.counter(&format!("{prefix}.count.{name}"))?;
            Ok((*name, counter))
        });
        Ok(Self(counters.collect::<Result<_, CounterFileError>>()?))
    }

    /// Returns the counter `name`. For a name that was not declared
    /// ([`SourceSpec::counts`](crate::entry::SourceSpec::counts)), returns a counter that is not reported.
    pub fn counter(&self, name: &str) -> Counter {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map_or_else(Counter::default, |(_, counter)| counter.clone())
    }

    /// Returns the values of all counters, by name.
    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.0.iter();
        counters
            .map(|(name, counter)| (*name, counter.get()))
            .collect()
    }
}

/// Declares the named counters of a source, one line per counter. The names of the fields are the names of the
/// counters.
///
/// ```
/// daq_core::counts! {
///     /// The counters of a camera.
///     pub struct CameraCounts {
///         /// Number of frames that the camera ended early.
///         short,
///     }
/// }
/// assert_eq!(CameraCounts::NAMES, ["short"]);
/// ```
#[macro_export]
macro_rules! counts {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        $vis struct $name {
            $($(#[$field_meta])* pub $field: $crate::ledger::Counter,)*
        }

        impl $name {
            /// The names of the counters, for [`SourceSpec::counts`]($crate::entry::SourceSpec::counts).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Returns the counters of a source that declares them.
            pub fn of(counts: &$crate::ledger::Counts) -> Self {
                Self { $($field: counts.counter(stringify!($field)),)* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_unique_names() {
        let counter_file = CounterFile::in_memory();
        let counts = Counts::on(&counter_file, "source.adc", &["skipped", "short"]).unwrap();
        counts.counter("short").add(2);
        counts.counter("unknown").add(1);
        assert_eq!(
            counts.clone().read(),
            BTreeMap::from([("skipped", 0), ("short", 2)])
        );
    }
}
