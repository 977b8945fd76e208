//! Injected faults, from `DAQ_SIMULATED_GDR`.

/// The options of `DAQ_SIMULATED_GDR`, separated by commas:
///
/// | option | meaning |
/// |---|---|
/// | `fail=SYMBOL@N:ERRNO` | the N-th call of a function returns this number; `gdr_open` sets `errno` |
/// | `misalign` | mappings start one GPU page before the requested address, and report this |
/// | `lose=N` | the memory of the N-th mapping is removed immediately, for all processes that have mapped it |
///
/// Counts begin at 1; `fail` may be given several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Calls that fail: the function, the number of the call, and the return value.
    pub fail: Vec<(String, u64, i32)>,
    /// True if mappings start one GPU page before the requested address.
    pub misalign: bool,
    /// Number of the mapping that loses its memory; 0 for none.
    pub lose: u64,
}

impl Options {
    /// Parses `DAQ_SIMULATED_GDR`. The error names the invalid option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for option in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            options.set(option).ok_or_else(|| {
                format!("DAQ_SIMULATED_GDR: option \"{option}\" is not understood")
            })?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Option<()> {
        let positive = |text: &str| text.parse::<u64>().ok().filter(|n| *n > 0);
        match option.split_once('=').unwrap_or((option, "")) {
            ("misalign", "") => self.misalign = true,
            ("lose", nth) => self.lose = positive(nth)?,
            ("fail", failure) => {
                let (symbol, rest) = failure.split_once('@')?;
                let (nth, errno) = rest.split_once(':')?;
                let errno = errno.parse().ok().filter(|errno| *errno != 0)?;
                self.fail.push((symbol.to_owned(), positive(nth)?, errno));
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

    use super::*;

    #[test]
    fn options_all_given_are_parsed() {
        let options = Options::parse("fail=gdr_open@1:2, misalign,lose=3,fail=gdr_map@2:12");
        assert_eq!(
            options.unwrap(),
            Options {
                fail: vec![("gdr_open".into(), 1, 2), ("gdr_map".into(), 2, 12)],
                misalign: true,
                lose: 3,
            }
        );
    }

    #[test]
    fn options_invalid_are_named_in_error() {
        for wrong in [
            "misalign=1",
            "lose=0",
            "lose",
            "fail=gdr_map@0:1",
            "fail=gdr_map@1:0",
            "fail=gdr_map",
            "loose=1",
        ] {
            let error = Options::parse(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
