//! What is known of a component without its driver.

use crate::config::Section;

/// What a component's section says by the keys that the engine owns: known even where the rest cannot be
/// read.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The section, for places in messages.
    pub section: Section,
    /// Its index among the components of its kind that could be read; `None` if it could not.
    pub index: Option<usize>,
    /// The ring that it fills, if it says.
    pub output: Option<String>,
    /// The ring that it reads, if it says.
    pub input: Option<String>,
    /// The cores that it wants.
    pub cores: Vec<usize>,
    /// Most frames taken at once, if it says.
    pub burst: Option<u32>,
}

impl KnownKeys {
    /// The key that names the ring that it fills; sinks have none.
    pub fn output_key(&self) -> Option<&'static str> {
        match self.section.kind() {
            "source" => Some("ring"),
            "kernel" => Some("output"),
            _ => None,
        }
    }

    /// The key that names the ring that it reads; sources have none.
    pub fn input_key(&self) -> Option<&'static str> {
        (self.section.kind() != "source").then_some("input")
    }

    /// The key that names its cores.
    pub fn cores_key(&self) -> &'static str {
        if self.section.kind() == "source" {
            "cores"
        } else {
            "core"
        }
    }

    pub(super) fn of(section: &Section, index: Option<usize>) -> Self {
        let mut known = Self {
            index,
            output: None,
            input: None,
            cores: Vec::new(),
            burst: section.peek("burst"),
            section: section.clone(),
        };
        let ring = |key| known.section.peek(key);
        (known.output, known.input) = (
            known.output_key().and_then(ring),
            known.input_key().and_then(ring),
        );
        let key = known.cores_key();
        let core = known.section.peek(key).map(|core| vec![core]);
        known.cores = core.or_else(|| known.section.peek(key)).unwrap_or_default();
        known
    }
}
