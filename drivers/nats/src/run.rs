//! The name of this run of daq in subjects and ids.

use daq_core::units::format_datetime;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the name of this run: its first use in UTC and a random number, such as `20261128T044904Z-9c41d2e0`. All sinks of
/// the process have the same name.
pub fn run_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let text = format_datetime(u64::try_from(now.as_nanos()).unwrap_or(0));
        let compact: String = text
            .chars()
            .take(19)
            .filter(char::is_ascii_alphanumeric)
            .collect();
        let random = RandomState::new().build_hasher().finish() & 0xffff_ffff;
        format!("{compact}Z-{random:08x}")
    });
    name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_has_one_name() {
        let name = run_name();
        assert_eq!(name, run_name());
        assert_eq!(
            (name.len(), &name[8..9], &name[15..17]),
            (25, "T", "Z-"),
            "{name}"
        );
    }
}
