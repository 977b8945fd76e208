//! Equations between counters.

use std::fmt;

/// An equation between the numbers of a component, which holds in every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Equation {
    /// The number on the left side, as named in JSON.
    pub left: &'static str,
    /// The numbers on the right side, which are added.
    pub right: &'static [&'static str],
}

impl fmt::Display for Equation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.left, self.right.join(" + "))
    }
}
