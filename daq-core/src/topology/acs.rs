//! PCIe Access Control Services (ACS): whether a bridge forwards transfers between two devices below it directly, or
//! redirects them to the processor.
//!
//! Layout and bits are those of the PCI Express Base Specification, "ACS Extended Capability". Linux defines their
//! names in include/uapi/linux/pci_regs.h.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Offset of the first extended capability in the configuration space (`PCI_CFG_SPACE_SIZE`).
const FIRST_OFFSET: u16 = 0x100;
/// Identifier of the ACS capability (`PCI_EXT_CAP_ID_ACS`).
const CAPABILITY_ID: u32 = 0x0d;
/// Maximum number of capabilities that fit into the configuration space. Limits the walk if the list is circular.
const MAX_CAPABILITIES: usize = (4096 - FIRST_OFFSET as usize) / 8;
/// Peer-to-peer requests are redirected (`PCI_ACS_RR`).
const REQUEST_REDIRECT: u16 = 0x04;
/// Peer-to-peer completions are redirected (`PCI_ACS_CR`).
const COMPLETION_REDIRECT: u16 = 0x08;
/// Peer-to-peer egress control is enabled (`PCI_ACS_EC`).
const EGRESS_CONTROL: u16 = 0x20;
/// File of a recorded tree with the required words of the configuration space: one line per word, with offset and value
/// in hexadecimal.
const RECORDED_FILE: &str = "config.hex";

/// The access control services of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acs {
    /// Unknown, because only root can read the configuration space beyond its first 64 bytes. Does not mean absent.
    #[default]
    Unknown,
    /// The bridge does not have the ACS capability, so it forwards transfers directly.
    Absent,
    /// Value of the ACS control register.
    Control(u16),
}

impl Acs {
    /// Whether the bridge redirects transfers between two devices to the processor; `None` if unknown.
    ///
    /// Checks the same bits as Linux does before it allows peer-to-peer transfers (drivers/pci/p2pdma.c).
    pub const fn redirects(self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(false),
            Self::Control(bits) => {
                Some(bits & (REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL) != 0)
            }
        }
    }

    /// Returns the names of the redirecting bits that are set, as in the specification: `RR CR`.
    pub fn bits(self) -> String {
        let Self::Control(bits) = self else {
            return String::new();
        };
        let named = [
            (REQUEST_REDIRECT, "RR"),
            (COMPLETION_REDIRECT, "CR"),
            (EGRESS_CONTROL, "EC"),
        ];
        let set = named.iter().filter(|(bit, _)| bits & bit != 0);
        set.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
    }

    /// Reads the access control services of the bridge in the directory `at` of this machine's `/sys` or of a recorded
    /// one.
    pub(super) fn read(at: &Path) -> Self {
        let space = Space::read(at);
        Self::find(|offset| space.word(offset))
    }

    /// Walks the list of extended capabilities. `word` returns the word of the configuration space at an offset.
    fn find(mut word: impl FnMut(u16) -> Option<u32>) -> Self {
        let mut at = FIRST_OFFSET;
        for _ in 0..MAX_CAPABILITIES {
            let Some(header) = word(at) else {
                return Self::Unknown;
            };
            // A read from a device that does not respond returns all ones.
            if header == u32::MAX {
                return Self::Unknown;
            }
            if header & 0xffff == CAPABILITY_ID {
                let control = word(at + 4).and_then(|word| u16::try_from(word >> 16).ok());
                return control.map_or(Self::Unknown, Self::Control);
            }
            at = u16::try_from(header >> 20).unwrap_or(0) & 0xffc;
            if at < FIRST_OFFSET {
                return Self::Absent;
            }
        }
        Self::Absent
    }
}

/// The readable part of a device's configuration space.
enum Space {
    /// The bytes that Linux returns.
    Whole(Vec<u8>),
    /// Recorded words, by offset.
    Recorded(BTreeMap<u16, u32>),
}

impl Space {
    fn read(at: &Path) -> Self {
        if let Ok(bytes) = fs::read(at.join("config")) {
            return Self::Whole(bytes);
        }
        let text = fs::read_to_string(at.join(RECORDED_FILE)).unwrap_or_default();
        let words = text.lines().filter_map(|line| {
            let (offset, word) = line.split_once(' ')?;
            let offset = u16::from_str_radix(offset, 16).ok()?;
            Some((offset, u32::from_str_radix(word.trim(), 16).ok()?))
        });
        Self::Recorded(words.collect())
    }

    fn word(&self, offset: u16) -> Option<u32> {
        match self {
            Self::Whole(bytes) => {
                let offset = usize::from(offset);
                let word = bytes.get(offset..offset + 4)?;
                Some(u32::from_le_bytes(word.try_into().ok()?))
            }
            Self::Recorded(words) => words.get(&offset).copied(),
        }
    }
}

/// Returns the name and the text of the file that records the words which [`Acs::read`] needs. The rest of the
/// configuration space, which can contain serial numbers, is left out. Returns `None` if no word could be read.
pub(super) fn recorded_words(at: &Path) -> Option<(&'static str, String)> {
    let space = Space::read(at);
    let mut text = String::new();
    Acs::find(|offset| {
        let word = space.word(offset)?;
        text.push_str(&format!("{offset:03x} {word:08x}\n"));
        Some(word)
    });
    (!text.is_empty()).then_some((RECORDED_FILE, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Creates a configuration space with an unrelated capability, followed by ACS with the control register `control`.
    fn space(control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        // Advanced error reporting (0x0001) version 1, next capability at 0x148; then ACS version 1, no next
        // capability.
        bytes[0x100..0x104].copy_from_slice(&0x1481_0001_u32.to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        bytes[0x14c..0x14e].copy_from_slice(&0x005f_u16.to_le_bytes());
        bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8]) -> Acs {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), bytes).unwrap();
        Acs::read(dir.path())
    }

    #[test]
    fn acs_control_register_is_found_after_other_capabilities() {
        assert_eq!(of(&space(0x1d)), Acs::Control(0x1d));
        assert_eq!(Acs::Control(0x1d).bits(), "RR CR");
        for (control, redirects) in [
            (0, false),
            (0x01, false),
            (0x10, false),
            (0x04, true),
            (0x08, true),
            (0x20, true),
        ] {
            let found = of(&space(control)).redirects();
            assert_eq!(found, Some(redirects), "{control:#x}");
        }
    }

    #[test]
    fn acs_unreadable_is_unknown_and_missing_is_absent() {
        let whole = space(0x04);
        assert_eq!(of(&whole[..64]).redirects(), None, "not root");
        assert_eq!(of(&whole[..256]).redirects(), None);
        assert_eq!(
            of(&whole[..0x14c]),
            Acs::Unknown,
            "the configuration space ends within the capability"
        );
        assert_eq!(
            of(&[0xff; 4096]),
            Acs::Unknown,
            "the device does not respond"
        );
        assert_eq!(of(&[0; 4096]), Acs::Absent);
        assert_eq!(Acs::read(Path::new("/nowhere")), Acs::Unknown);
    }

    #[test]
    fn cyclic_capability_list_ends() {
        let mut bytes = vec![0; 4096];
        bytes[0x100..0x104].copy_from_slice(&0x1001_0001_u32.to_le_bytes());
        assert_eq!(of(&bytes), Acs::Absent);
    }

    #[test]
    fn recorded_config_space_keeps_acs_only() {
        let mut bytes = space(0x1d);
        // A serial number (capability 0x0003) after the ACS capability.
        bytes[0x148..0x14c].copy_from_slice(&0x1601_000d_u32.to_le_bytes());
        bytes[0x160..0x16c].copy_from_slice(b"\x03\0\x01\0SERIALNR");
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), &bytes).unwrap();
        let (name, text) = recorded_words(dir.path()).unwrap();
        assert_eq!(text, "100 14810001\n148 1601000d\n14c 001d005f\n");
        fs::remove_file(dir.path().join("config")).unwrap();
        assert_eq!(recorded_words(dir.path()), None);
        fs::write(dir.path().join(name), &text).unwrap();
        assert_eq!(Acs::read(dir.path()), Acs::Control(0x1d));
        assert_eq!(
            recorded_words(dir.path()),
            Some((name, text)),
            "a recording can be recorded again"
        );
    }

    proptest! {
        #[test]
        fn random_config_space_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            of(&bytes);
        }
    }
}
