//! The macro that declares ledgers.

macro_rules! ledger {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $crate::ledger::Counter,)*
        }

        impl $name {
            /// Creates counters in `counter_file`, named `PREFIX.FIELD`.
            pub fn on(counter_file: &$crate::ledger::CounterFile, prefix: &str) -> Result<Self, $crate::ledger::CounterFileError> {
                Ok(Self { $($field: counter_file.counter(&format!("{prefix}.{}", stringify!($field)))?,)* })
            }

            /// Sets every counter for which `value`, given the counter's name, returns a value.
            pub fn set_all(&self, value: impl Fn(&str) -> Option<u64>) {
                $(if let Some(value) = value(stringify!($field)) {
                    self.$field.set(value);
                })*
            }
        }
    };
}
