//! What a ledger stores for one field of its report, and how the terms of an equation are added.

use super::{Counter, CounterFileError, Equation};
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Creates the counter with the given name.
pub(super) type Make<'a> = &'a mut dyn FnMut(&str) -> Result<Counter, CounterFileError>;

/// One or more counters that become one value of a report.
pub(super) trait Stored: Sized {
    /// The value in the report.
    type Value;

    /// Creates the counters of the field `field`, named `PREFIX.FIELD`.
    fn create(prefix: &str, field: &str, make: Make<'_>) -> Result<Self, CounterFileError>;

    /// Reads the counters.
    fn read(&self) -> Self::Value;
}

impl Stored for Counter {
    type Value = u64;

    fn create(prefix: &str, field: &str, make: Make<'_>) -> Result<Self, CounterFileError> {
        make(&format!("{prefix}.{field}"))
    }

    fn read(&self) -> u64 {
        self.get()
    }
}

/// A state that is stored in a counter.
pub trait Word: Copy {
    /// Returns the state that a number represents.
    fn from_word(word: u64) -> Self;

    /// Returns the number that represents the state.
    fn to_word(self) -> u64;
}

impl Word for bool {
    fn from_word(word: u64) -> Self {
        word != 0
    }

    fn to_word(self) -> u64 {
        self.into()
    }
}

/// The current state of a component, which one thread sets and any thread reads.
#[derive(Clone, Debug, Default)]
pub struct State<T>(Counter, PhantomData<T>);

impl<T: Word> State<T> {
    /// Returns the current state.
    pub fn get(&self) -> T {
        T::from_word(self.0.get())
    }

    /// Sets the state. Only its single writer may call this.
    pub fn set(&self, state: T) {
        self.0.set(state.to_word());
    }
}

impl<T: Word> Stored for State<T> {
    type Value = T;

    fn create(prefix: &str, field: &str, make: Make<'_>) -> Result<Self, CounterFileError> {
        Ok(Self(Counter::create(prefix, field, make)?, PhantomData))
    }

    fn read(&self) -> T {
        self.get()
    }
}

/// A value of a report that can be a term of an equation.
pub(super) trait Total {
    /// Returns the value, or the sum of several values.
    fn total(&self) -> u64;
}

impl Total for u64 {
    fn total(&self) -> u64 {
        *self
    }
}

impl Total for BTreeMap<&'static str, u64> {
    fn total(&self) -> u64 {
        self.values().copied().fold(0, u64::saturating_add)
    }
}

impl<const N: usize> Total for [u64; N] {
    fn total(&self) -> u64 {
        self.iter().copied().fold(0, u64::saturating_add)
    }
}

impl<T: Word> Total for T {
    fn total(&self) -> u64 {
        self.to_word()
    }
}

/// A report that may have equations.
pub(super) trait Balanced {
    /// The equations.
    const EQUATIONS: &'static [Equation];

    /// Returns, for each equation, the value of the left side and those of the terms of the right side.
    fn terms(&self) -> Vec<(u64, Vec<u64>)>;

    /// Calculates the terms that no counter stores.
    fn settle(&mut self);
}
