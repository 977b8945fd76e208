//! Kernel arguments, and the check that they match the kernel's declaration.

use crate::sys::cuda::{self, Code};
use std::fmt;

/// Maximum number of kernel parameters.
pub(super) const MAX_ARGUMENTS: usize = 64;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// `unsigned int`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `unsigned long long`, and every pointer to device memory.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
}

impl Argument {
    /// Returns the value as a 64-bit word whose first bytes, in little-endian order, are the bytes of the argument.
    pub(super) const fn bits(self) -> u64 {
        match self {
            Self::U32(value) => value as u64,
            Self::I32(value) => value.cast_unsigned() as u64,
            Self::U64(value) => value,
            Self::F32(value) => value.to_bits() as u64,
            Self::F64(value) => value.to_bits(),
        }
    }

    /// Returns the size of the type in bytes.
    const fn bytes(self) -> usize {
        match self {
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::U64(_) | Self::F64(_) => 8,
        }
    }
}

/// The parameters that a kernel declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    /// Size of each parameter in bytes; unused entries are 0.
    bytes: [usize; MAX_ARGUMENTS],
    /// Number of parameters; one more than the maximum represents all larger numbers.
    count: usize,
}

impl Declared {
    /// Queries one parameter after the other. Returns `None` if the driver cannot report parameters.
    pub(super) fn ask(
        about: impl Fn(usize) -> Option<Result<(usize, usize), Code>>,
    ) -> Option<Self> {
        let mut declared = Self {
            bytes: [0; MAX_ARGUMENTS],
            count: 0,
        };
        while declared.count <= MAX_ARGUMENTS {
            match about(declared.count)? {
                Ok((_, bytes)) => {
                    if let Some(place) = declared.bytes.get_mut(declared.count) {
                        *place = bytes;
                    }
                    declared.count += 1;
                }
                // The kernel has no parameter with this index.
                Err(cuda::INVALID_VALUE) => break,
                Err(_) => return None,
            }
        }
        Some(declared)
    }

    fn matches(&self, arguments: &[Argument]) -> bool {
        self.count == arguments.len()
            && arguments
                .iter()
                .zip(&self.bytes)
                .all(|(argument, bytes)| argument.bytes() == *bytes)
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes.get(..self.count) {
            Some(bytes) => f.write_str(&sizes(bytes)),
            None => write!(f, "more than {MAX_ARGUMENTS}"),
        }
    }
}

/// Formats a list of sizes such as `3, of 8, 4 and 4 bytes`.
fn sizes(bytes: &[usize]) -> String {
    let each: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    match each.as_slice() {
        [] => "none".to_owned(),
        [one] => format!("1, of {one} bytes"),
        [others @ .., last] => {
            format!("{}, of {} and {last} bytes", bytes.len(), others.join(", "))
        }
    }
}

/// Returns why `arguments` do not match the declared parameters of a kernel; `None` if they match or the declaration is
/// unknown.
pub(super) fn mismatch(declared: Option<&Declared>, arguments: &[Argument]) -> Option<String> {
    let given = || {
        let bytes: Vec<usize> = arguments.iter().map(|argument| argument.bytes()).collect();
        sizes(&bytes)
    };
    if arguments.len() > MAX_ARGUMENTS {
        return Some(format!(
            "arguments given: {}; at most {MAX_ARGUMENTS} can be passed",
            given()
        ));
    }
    declared
        .filter(|declared| !declared.matches(arguments))
        .map(|declared| {
            format!(
                "arguments declared: {declared}; arguments given: {}",
                given()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the declaration of a kernel with parameters of these sizes.
    fn declared(bytes: &[usize]) -> Option<Declared> {
        Declared::ask(|index| {
            Some(
                bytes
                    .get(index)
                    .map(|bytes| (8 * index, *bytes))
                    .ok_or(cuda::INVALID_VALUE),
            )
        })
    }

    const TWO: [Argument; 2] = [Argument::U64(1), Argument::F32(2.0)];

    #[test]
    fn arguments_as_declared_are_accepted() {
        assert_eq!(mismatch(declared(&[8, 4]).as_ref(), &TWO), None);
        assert_eq!(mismatch(declared(&[]).as_ref(), &[]), None);
        let max = [Argument::I32(0); MAX_ARGUMENTS];
        assert_eq!(mismatch(declared(&[4; MAX_ARGUMENTS]).as_ref(), &max), None);
    }

    #[test]
    fn arguments_unlike_declaration_are_rejected() {
        for (bytes, expected) in [
            (&[][..], "declared: none;"),
            (&[8], "declared: 1, of 8 bytes;"),
            (&[8, 8], "declared: 2, of 8 and 8 bytes;"),
            (&[8, 4, 4], "declared: 3, of 8, 4 and 4 bytes;"),
            (&[4; 70], "declared: more than 64;"),
        ] {
            let why = mismatch(declared(bytes).as_ref(), &TWO).unwrap();
            assert!(why.contains(expected), "{why}");
            assert!(why.contains("given: 2, of 8 and 4 bytes"), "{why}");
        }
        let many = [Argument::I32(0); MAX_ARGUMENTS + 1];
        for declared in [None, declared(&[4; MAX_ARGUMENTS + 1])] {
            assert!(
                mismatch(declared.as_ref(), &many)
                    .unwrap()
                    .contains("at most")
            );
        }
    }

    #[test]
    fn arguments_unknown_to_driver_are_accepted() {
        assert_eq!(Declared::ask(|_| None), None);
        // 801 is CUDA_ERROR_NOT_SUPPORTED.
        assert_eq!(Declared::ask(|_| Some(Err(Code(801)))), None);
        assert_eq!(mismatch(None, &TWO), None);
    }
}
