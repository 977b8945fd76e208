//! The keys of a component that can be parsed without its driver.

use crate::config::Section;

/// The common keys of a component's section. These keys are known even if the driver's keys have errors.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The section, used to locate errors in the file.
    pub section: Section,
    /// Index among the components of this kind without errors; `None` if the component has errors.
    pub index: Option<usize>,
    /// The ring that the component fills, if the section sets it.
    pub output: Option<String>,
    /// The ring that the component reads, if the section sets it.
    pub input: Option<String>,
    /// The cores of the component's threads.
    pub cores: Vec<usize>,
    /// Maximum number of frames in one batch, if the section sets it.
    pub burst: Option<u32>,
}

impl KnownKeys {
    /// Returns the key that names the ring that the component fills, or `None` for sinks.
    pub(crate) fn output_key(&self) -> Option<&'static str> {
        match self.section.kind() {
            "source" => Some("ring"),
            "kernel" => Some("output"),
            _ => None,
        }
    }

    /// Returns the key that names the ring that the component reads, or `None` for sources.
    pub(crate) fn input_key(&self) -> Option<&'static str> {
        (self.section.kind() != "source").then_some("input")
    }

    /// Returns the key that names the component's cores.
    pub(crate) fn cores_key(&self) -> &'static str {
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
