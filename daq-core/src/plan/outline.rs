//! What is known of a component without its driver.

use crate::config::Section;

/// What a component's section says by the keys that the engine owns: known even where the rest cannot be
/// read.
#[derive(Clone, Debug)]
pub struct Outline {
    /// The section, for places in messages.
    pub section: Section,
    /// Its index among the components of its kind that could be read; `None` if it could not.
    pub index: Option<usize>,
    /// The ring that it fills, if it says.
    pub fills: Option<String>,
    /// The ring that it reads, if it says.
    pub reads: Option<String>,
    /// The cores that it wants.
    pub cores: Vec<usize>,
    /// Most frames taken at once, if it says.
    pub burst: Option<u32>,
}

impl Outline {
    /// The key that names the ring that it fills; sinks have none.
    pub fn fills_by(&self) -> Option<&'static str> {
        match self.section.kind() {
            "source" => Some("ring"),
            "kernel" => Some("output"),
            _ => None,
        }
    }

    /// The key that names the ring that it reads; sources have none.
    pub fn reads_by(&self) -> Option<&'static str> {
        (self.section.kind() != "source").then_some("input")
    }

    /// The key that names its cores.
    pub fn cores_by(&self) -> &'static str {
        if self.section.kind() == "source" {
            "cores"
        } else {
            "core"
        }
    }

    pub(super) fn of(section: &Section, index: Option<usize>) -> Self {
        let mut outline = Self {
            index,
            fills: None,
            reads: None,
            cores: Vec::new(),
            burst: section.peek("burst"),
            section: section.clone(),
        };
        let ring = |key| outline.section.peek(key);
        (outline.fills, outline.reads) = (
            outline.fills_by().and_then(ring),
            outline.reads_by().and_then(ring),
        );
        let key = outline.cores_by();
        let core = outline.section.peek(key).map(|core| vec![core]);
        outline.cores = core
            .or_else(|| outline.section.peek(key))
            .unwrap_or_default();
        outline
    }
}
