//! The key `keep` of a format: fields of packet headers that travel with their frame.

use super::checks::Check;
use super::field::{Endian, Field, FieldKeys};
use daq_core::config::Problem;
use daq_core::frame::{KeptFields, MAX_KEPT_FIELDS, is_metadata_name};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum length of a name in bytes.
const MAX_NAME: usize = 64;

/// A number at a fixed position of the header, which frames keep.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeptFieldConfig {
    /// Name of the field in files and kernels: letters, digits and `_`, not starting with a digit.
    pub name: String,
    /// Offset in bytes from the start of the packet.
    pub offset: usize,
    /// Size in bytes, 1 to 8.
    pub bytes: usize,
    /// Byte order of the field; default `"big"`.
    #[serde(default)]
    pub endian: Endian,
    /// Number of significant bits, by default all.
    pub bits: Option<u32>,
    /// Number of lowest bits that are not part of the number.
    #[serde(default)]
    pub shift: u32,
}

/// An item of a heap, which frames keep.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeptItemConfig {
    /// Name of the item in files and kernels: letters, digits and `_`, not starting with a digit.
    pub name: String,
    /// Identifier of the item, as in `0x4101`; the item must be immediate, with its value in the item pointer.
    pub item: u64,
}

/// The kept fields of a format, each with its position in the header.
#[derive(Clone, Debug)]
pub(super) struct Keep<P>(Box<[(String, P)]>);

impl<P> Default for Keep<P> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<P> Keep<P> {
    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the position of field `i`.
    pub(super) fn position(&self, i: usize) -> Option<&P> {
        self.0.get(i).map(|(_, position)| position)
    }

    /// Returns the fields for which `read` returns a value.
    #[inline]
    pub(super) fn read(&self, read: impl Fn(&P) -> Option<u64>) -> KeptFields {
        let mut kept = KeptFields::default();
        for (i, (_, position)) in self.0.iter().enumerate() {
            if let Some(value) = read(position) {
                kept.set(i, value);
            }
        }
        kept
    }
}

impl Keep<Field> {
    /// Returns the fields `keys` of a header of `header` bytes, and reports problems to `check`.
    pub(super) fn fields(check: &mut Check, keys: &[KeptFieldConfig], header: usize) -> Self {
        let names: Vec<_> = keys.iter().map(|key| key.name.as_str()).collect();
        check_names(check, &names);
        let field = |(i, key): (usize, &KeptFieldConfig)| {
            let name = format!("keep.{i}");
            let keys = FieldKeys::new(key.offset, key.bytes, key.endian).cut(key.bits, key.shift);
            (key.name.clone(), keys.checked(&name, header, check))
        };
        Self(keys.iter().enumerate().map(field).collect())
    }
}

impl Keep<u64> {
    /// Returns the items `keys`, whose identifiers are below `end`, and reports problems to `check`.
    pub(super) fn items(check: &mut Check, keys: &[KeptItemConfig], end: u64) -> Self {
        let names: Vec<_> = keys.iter().map(|key| key.name.as_str()).collect();
        check_names(check, &names);
        for (i, key) in keys.iter().enumerate() {
            check.item(&format!("keep.{i}.item"), key.item, end);
        }
        Self(
            keys.iter()
                .map(|key| (key.name.clone(), key.item))
                .collect(),
        )
    }
}

/// Returns problems of the names of kept fields. `key` returns the key of name `i`.
pub(crate) fn name_problems(names: &[&str], key: impl Fn(usize) -> String) -> Vec<Problem> {
    let mut found = Vec::new();
    let count = names.len();
    if count > MAX_KEPT_FIELDS {
        let message = format!("a frame can keep at most {MAX_KEPT_FIELDS} fields, not {count}");
        found.push(Problem::at("keep", message).help("remove fields"));
    }
    for (i, name) in names.iter().enumerate() {
        let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        let mut letters = name.bytes();
        let is_name = name.len() <= MAX_NAME
            && letters.next().is_some_and(is_letter)
            && letters.all(|byte| is_letter(byte) || byte.is_ascii_digit());
        let mut wrong = |message: String, help: String| {
            found.push(Problem::at(key(i), message).help(help));
        };
        if !is_name {
            wrong(
                format!("{name:?} is not a valid name of a field"),
                format!(
                    "use at most {MAX_NAME} letters, digits and `_`, and do not start with a digit"
                ),
            );
        }
        if is_metadata_name(name) {
            wrong(
                format!("`{name}` is already a name in the metadata of all frames"),
                format!("choose another name, such as `sender_{name}`"),
            );
        }
        if names[..i].contains(name) {
            wrong(
                format!("two kept fields have the name `{name}`"),
                "give each field its own name".to_owned(),
            );
        }
    }
    found
}

/// Reports problems of the names of kept fields to `check`.
fn check_names(check: &mut Check, names: &[&str]) {
    for problem in name_problems(names, |i| format!("keep.{i}.name")) {
        let key = problem.key.unwrap_or_default();
        let help = problem.help.unwrap_or_default();
        check.must(false, &key, || (problem.message, help));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, Format, RawConfig, spead};
    use daq_core::config::Problem;
    use daq_core::frame::KeptFields;

    fn raw(keep: &str) -> Result<Format, Vec<Problem>> {
        let keys = "header = 24\npayload = 8\nsequence = { offset = 0, bytes = 8 }\n";
        let text = format!("{keys}keep = [{keep}]");
        toml::from_str::<RawConfig>(&text).unwrap().build()
    }

    #[test]
    fn fields_are_read_from_header() {
        let format = raw("{ offset = 8, bytes = 2, name = \"module\" },
             { offset = 10, bytes = 8, endian = \"little\", name = \"bunch_id\" },
             { offset = 8, bytes = 2, bits = 4, shift = 4, name = \"nibble\" }")
        .unwrap();
        assert_eq!(format.facts().kept, ["module", "bunch_id", "nibble"]);
        let mut packet = [0; 32];
        packet[8..10].copy_from_slice(&0x1234_u16.to_be_bytes());
        packet[10..18].copy_from_slice(&u64::MAX.to_le_bytes());
        let expected = KeptFields::default()
            .with(0, 0x1234)
            .with(1, u64::MAX)
            .with(2, 3);
        assert_eq!(format.read_kept(&packet), expected);
        assert_eq!(format.read_kept(&packet[..9]), KeptFields::default());
    }

    #[test]
    fn all_problems_of_kept_fields_are_reported() {
        let found = raw(
            "{ offset = 20, bytes = 8, name = \"a\" }, { offset = 8, bytes = 2, bits = 17, name = \"a\" },
             { offset = 8, bytes = 2, name = \"9lives\" }, { offset = 8, bytes = 2, name = \"sequence\" }",
        )
        .unwrap_err();
        let keys: Vec<_> = found
            .into_iter()
            .filter_map(|problem| problem.key)
            .collect();
        let expected = ["1.name", "2.name", "3.name", "0.offset", "1.bits"];
        assert_eq!(keys, expected.map(|key| format!("format.keep.{key}")));
        let many: Vec<_> = (0..9)
            .map(|i| format!("{{ offset = 8, bytes = 1, name = \"f{i}\" }}"))
            .collect();
        let found = raw(&many.join(", ")).unwrap_err();
        assert_eq!(found[0].key.as_deref(), Some("format.keep"));
    }

    #[test]
    fn immediate_items_are_kept() {
        let config = |text: &str| toml::from_str::<spead::SpeadConfig>(text).unwrap().build();
        let format = config(
            "heap = 8\npacket = 8\nkeep = [{ item = 0x4101, name = \"feng_id\" }, { item = 0x4103, name = \"frequency\" }]",
        )
        .unwrap();
        let mut packet = Vec::new();
        let addressed = spead::Item {
            id: 0x4103,
            value: 3,
            immediate: false,
        };
        let items = [spead::Item::immediate(0x4101, 42), addressed];
        spead::build_packet(40, &items, &[0; 8], &mut packet);
        assert_eq!(format.read_kept(&packet), KeptFields::default().with(0, 42));
        let why = format.explain(Finding::NoKeptField(1), &packet).unwrap();
        assert!(why.contains("item 0x4103 is in the payload"), "{why}");
        let why = format.explain(Finding::NoKeptField(1), &[]).unwrap();
        assert!(
            why.contains("no item 0x4103") && why.contains("`keep`"),
            "{why}"
        );
        let problems = config("keep = [{ item = 4, name = \"x\" }]").unwrap_err();
        assert_eq!(problems[0].key.as_deref(), Some("format.keep.0.item"));
    }
}
