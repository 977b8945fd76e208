//! The contents of a module: the entries and global variables of PTX, and the names in a cubin.

use crate::attributes::CAPABILITY;
use crate::code::{INVALID_IMAGE, INVALID_PTX, NO_BINARY_FOR_GPU, Result, UNSUPPORTED_PTX_VERSION};

/// A global variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name of the variable.
    pub name: String,
    /// The initial contents.
    pub bytes: Vec<u8>,
}

/// A loaded image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// PTX: every entry and variable is known.
    Ptx {
        /// The kernels.
        entries: Vec<String>,
        /// The global variables.
        variables: Vec<Variable>,
    },
    /// A cubin. It contains a kernel if its bytes contain the kernel's name.
    Cubin(Vec<u8>),
}

/// Returns the newest PTX version that a driver of `version` supports, as 10 × major + minor.
///
/// The values are from the table "PTX Release History" in NVIDIA's PTX manual.
pub const fn newest(version: i32) -> u32 {
    let minor = (version % 1000 / 10).cast_unsigned();
    match version / 1000 {
        ..=10 => 65,
        11 => 70 + minor,
        12 => match minor {
            0..=5 => 80 + minor,
            _ => 79 + minor,
        },
        _ => 90 + minor,
    }
}

impl Image {
    /// Parses PTX for a driver of `version`. An error contains the code and a line for the compiler's log.
    pub fn ptx(text: &str, version: i32) -> std::result::Result<Self, (i32, String)> {
        let text = without_comments(text);
        let mut words = words(&text);
        let wrong = |what: &str| (INVALID_PTX, format!("ptxas fatal   : {what}"));
        if words.next() != Some(".version") {
            return Err((INVALID_IMAGE, "ptxas fatal   : no .version".to_owned()));
        }
        let number = words.next().unwrap_or_default();
        let ptx = number
            .split_once('.')
            .and_then(|(major, minor)| {
                Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
            })
            .ok_or_else(|| wrong(&format!("'{number}' is not a version")))?;
        if ptx > newest(version) {
            let message = format!("ptxas fatal   : Unsupported .version {number}");
            return Err((UNSUPPORTED_PTX_VERSION, message));
        }
        if words.next() != Some(".target") {
            return Err(wrong("no .target"));
        }
        let target = words.next().unwrap_or_default();
        let capability = target
            .strip_prefix("sm_")
            .and_then(|digits| digits.trim_end_matches(['a', 'f']).parse::<i32>().ok())
            .ok_or_else(|| wrong(&format!("'{target}' is not a target")))?;
        if capability > CAPABILITY {
            return Err((
                NO_BINARY_FOR_GPU,
                format!("ptxas fatal   : {target} is newer than the device"),
            ));
        }
        let words: Vec<&str> = words.collect();
        let entries = words
            .iter()
            .zip(words.iter().skip(1))
            .filter(|(word, _)| **word == ".entry")
            .map(|(_, name)| (*name).to_owned())
            .collect();
        let mut variables = Vec::new();
        for (at, word) in words.iter().enumerate() {
            if matches!(*word, ".global" | ".const") && !is_parameter(&words, at) {
                let variable = variable(&words[at + 1..]).ok_or_else(|| {
                    wrong(&format!("{word} {}", words.get(at + 1).unwrap_or(&"")))
                })?;
                variables.push(variable);
            }
        }
        Ok(Self::Ptx { entries, variables })
    }

    /// Returns true if the image contains the kernel `name`.
    pub fn has_entry(&self, name: &str) -> bool {
        match self {
            Self::Ptx { entries, .. } => entries.iter().any(|entry| entry == name),
            Self::Cubin(bytes) => {
                // The code of the kernel NAME is in the section `.text.NAME`.
                let section = format!(".text.{name}\0");
                bytes
                    .windows(section.len())
                    .any(|part| part == section.as_bytes())
            }
        }
    }
}

/// Returns the size of an ELF image in bytes, computed from its headers. `read` returns the bytes at `(offset, bytes)`
/// of the image.
///
/// Layout: "ELF-64 Object File Format", `Elf64_Ehdr` and `Elf64_Shdr`.
pub fn elf_bytes(read: impl Fn(usize, usize) -> Vec<u8>) -> Result<usize> {
    const NOBITS: u64 = 8;
    let header = read(0, 64);
    let number = |from: &[u8], at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&from[at..at + bytes]);
        usize::try_from(u64::from_le_bytes(value)).map_err(|_| INVALID_IMAGE)
    };
    // 64-bit, little-endian.
    if header[4..6] != [2, 1] {
        return Err(INVALID_IMAGE);
    }
    let table = |offset: usize, entry: usize, count: usize| -> Result<(usize, usize, usize)> {
        Ok((
            number(&header, offset, 8)?,
            number(&header, entry, 2)?,
            number(&header, count, 2)?,
        ))
    };
    let (programs, program, program_count) = table(32, 54, 56)?;
    let (sections, section, section_count) = table(40, 58, 60)?;
    let mut end = 64
        .max(programs + program * program_count)
        .max(sections + section * section_count);
    if section >= 64 {
        for n in 0..section_count {
            let header = read(sections + n * section, 64);
            if number(&header, 4, 4)? as u64 != NOBITS {
                end = end.max(number(&header, 24, 8)? + number(&header, 32, 8)?);
            }
        }
    }
    Ok(end)
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        kept.push_str(&rest[..at]);
        kept.push(' ');
        let end = if rest[at..].starts_with("//") {
            "\n"
        } else {
            "*/"
        };
        rest = rest[at + 2..].split_once(end).map_or("", |(_, rest)| rest);
        kept.push('\n');
    }
    kept.push_str(rest);
    kept
}

/// Splits a text into words and punctuation characters.
fn words(text: &str) -> impl Iterator<Item = &str> {
    const MARKS: &[char] = &['[', ']', '{', '}', '(', ')', ',', ';', '='];
    text.split_whitespace()
        .flat_map(|word| {
            word.split_inclusive(MARKS)
                .flat_map(|part| match part.char_indices().next_back() {
                    Some((at, mark)) if MARKS.contains(&mark) => [&part[..at], &part[at..]],
                    _ => [part, ""],
                })
        })
        .filter(|word| !word.is_empty())
}

/// Returns true if the word `.global` or `.const` at `at` belongs to a parameter: in `.param .u64 .ptr .global .align 4
/// name` it describes the target of a pointer. In a type such as `ld.global` it is not a separate word.
fn is_parameter(words: &[&str], at: usize) -> bool {
    at > 0 && matches!(words[at - 1], ".ptr")
}

/// Parses the words after `.global` or `.const`: `.align A .TYPE NAME[COUNT] = {…};`. Alignment, lanes, count and
/// values are optional. Returns `None` for an initialiser that is not a number.
fn variable(words: &[&str]) -> Option<Variable> {
    let mut words = words.iter().copied().peekable();
    let mut lanes = 1;
    let width = loop {
        match words.next()? {
            ".align" => {
                words.next()?.parse::<usize>().ok()?;
            }
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            kind => break kind.get(2..)?.parse::<usize>().ok()? / 8,
        }
    };
    let name = words.next()?.to_owned();
    let mut count = lanes;
    while words.next_if_eq(&"[").is_some() {
        count *= words.next()?.parse::<usize>().ok()?;
        words.next_if_eq(&"]")?;
    }
    let mut bytes = Vec::new();
    if words.next_if_eq(&"=").is_some() {
        for word in words.take_while(|word| *word != ";") {
            if !matches!(word, "{" | "}" | ",") {
                bytes.extend_from_slice(initial(word)?.to_le_bytes().get(..width)?);
            }
        }
    }
    bytes.resize(count.checked_mul(width)?, 0);
    Some(Variable { name, bytes })
}

/// Parses a number in PTX syntax; floats are `0f` or `0d` followed by their bits.
fn initial(word: &str) -> Option<u64> {
    let bits = |prefix| {
        word.strip_prefix(prefix)
            .map(|digits| u64::from_str_radix(digits, 16).ok())
    };
    if let Some(value) = ["0x", "0X", "0f", "0F", "0d", "0D"]
        .into_iter()
        .find_map(bits)
    {
        return value;
    }
    match word.strip_prefix('-') {
        Some(number) => number.parse::<u64>().ok().map(u64::wrapping_neg),
        None => word.trim_end_matches('U').parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "//\n// made by hand: .entry nothing\n.version 8.3\n.target sm_90a\n.address_size 64\n
        .visible .const .align 4 .u32 step = 7;
        .visible .global .align 1 .b8 text[4] = {104, 105}; /* .entry none */
        .extern .global .align 8 .f64 sums[3];
        .global .v4 .f32 lanes = {0f3F800000, 0f00000000, 0f00000000, 0fBF800000};
        .visible .entry first(\n\t.param .u64 .ptr .global .align 4 first_param_0,\n.param .u32 b\n)
        .maxntid 256\n{ ld.global.u32 %r1, [%rd1]; ret; }
        .entry second() { ret; }";

    #[test]
    fn ptx_entries_and_variables_are_parsed() {
        let Image::Ptx { entries, variables } = Image::ptx(TEXT, 13_000).unwrap() else {
            panic!("this is PTX");
        };
        assert_eq!(entries, ["first", "second"]);
        let named = |name: &str, bytes: &[u8]| Variable {
            name: name.into(),
            bytes: bytes.into(),
        };
        let lanes = [0, 0, 0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0xbf];
        assert_eq!(
            variables,
            [
                named("step", &[7, 0, 0, 0]),
                named("text", b"hi\0\0"),
                named("sums", &[0; 24]),
                named("lanes", &lanes)
            ]
        );
    }

    #[test]
    fn ptx_newer_than_driver_is_rejected() {
        let code = |text: &str, version| {
            Image::ptx(text, version)
                .map(|_| ())
                .map_err(|(code, _)| code)
        };
        assert_eq!(code(".version 9.0\n.target sm_80", 13_000), Ok(()));
        assert_eq!(
            code(".version 9.0\n.target sm_80", 12_090),
            Err(UNSUPPORTED_PTX_VERSION)
        );
        assert_eq!(code(".version 8.4\n.target sm_80", 12_040), Ok(()));
        assert_eq!(
            code(".version 8.5\n.target sm_80", 12_040),
            Err(UNSUPPORTED_PTX_VERSION)
        );
        assert_eq!(code(".version 8.5\n.target sm_80", 12_060), Ok(()));
        assert_eq!(
            code(".version 8.0\n.target sm_100", 13_000),
            Err(NO_BINARY_FOR_GPU)
        );
        assert_eq!(code(".version 8.0\n", 13_000), Err(INVALID_PTX));
        assert_eq!(code("hello", 13_000), Err(INVALID_IMAGE));
    }

    #[test]
    fn elf_image_size_is_computed_from_its_tables() {
        let mut image = [0; 64 + 2 * 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[40..48].copy_from_slice(&64_u64.to_le_bytes());
        image[58..60].copy_from_slice(&64_u16.to_le_bytes());
        image[60..62].copy_from_slice(&2_u16.to_le_bytes());
        // The first section contains bytes up to 1000. The second is a NOBITS section, which occupies no bytes in the
        // image.
        for (at, kind, offset, bytes) in [(64, 1_u32, 600_u64, 400_u64), (128, 8, 600, 5000)] {
            image[at + 4..at + 8].copy_from_slice(&kind.to_le_bytes());
            image[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
            image[at + 32..at + 40].copy_from_slice(&bytes.to_le_bytes());
        }
        let read = |offset: usize, bytes: usize| image[offset..offset + bytes].to_vec();
        assert_eq!(elf_bytes(read), Ok(1000));
    }
}
