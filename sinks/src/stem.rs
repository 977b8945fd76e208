//! The stem of a sink's files: the directory of the files and the beginning of the file names.

use crate::directory::make_directory;
use crate::lock::StemLock;
use daq_core::check::{FileUse, NamedFile};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::sink::{SinkContext, SinkError, SinkFacts};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Keys of a sink that writes files with a common stem.
pub(crate) trait StemKeys: DeserializeOwned {
    /// Returns the key `path`, the directory.
    fn path(&self) -> &Path;

    /// Returns the key `name`, the stem; `None` if the stem is the sink's name.
    fn name(&self) -> Option<&str>;

    /// Checks all other properties that do not depend on the input.
    fn check(&self) -> Result<(), Problem>;
}

/// The beginning of a sink's file names: `NAME` in `PATH/NAME-000000`.
#[derive(Debug)]
pub(crate) struct Stem {
    path: PathBuf,
    name: String,
}

impl Stem {
    /// Reads and checks the keys of `section`. Returns `None` if an error was reported.
    pub(crate) fn read<K: StemKeys>(
        section: &mut Section,
        diagnostics: &mut Diagnostics,
    ) -> Option<(Self, K)> {
        let own = section.name().to_owned();
        let problems = |keys: &K| {
            let checked = check_name(keys.name().unwrap_or(&own)).and_then(|()| keys.check());
            checked.err().into_iter().collect()
        };
        let keys: K = section.finish_checked(&[], diagnostics, problems)?;
        let name = keys.name().unwrap_or(&own).to_owned();
        let path = keys.path().to_owned();
        Some((Self { path, name }, keys))
    }

    /// Returns the facts about a sink that writes the stem's files.
    pub(crate) fn facts(&self) -> SinkFacts {
        SinkFacts {
            claims: vec![Claim::Stem(self.path.join(&self.name))],
            files: vec![NamedFile::new("path", &self.path, FileUse::WritesInto)],
            ..SinkFacts::default()
        }
    }

    /// Creates the directory and locks the stem in this directory.
    pub(crate) fn lock(&self, context: &SinkContext) -> Result<StemLock, SinkError> {
        let dir = context.directory.join(&self.path);
        make_directory(&dir)?;
        StemLock::take(&dir, &self.name).map_err(|error| error.of_sink(&context.name))
    }
}

/// Maximum length of a stem. A file name may have 255 bytes, and the part after the stem has up to 40 bytes.
const MAX_STEM_BYTES: usize = 200;

/// Rejects names that cannot be part of a file name. The name may come from the key `name` or from the section.
fn check_name(name: &str) -> Result<(), Problem> {
    let shown: String = name.chars().take(40).collect();
    let problem = if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
        format!("{shown:?} cannot be the start of a file name")
    } else if name.len() > MAX_STEM_BYTES {
        format!(
            "{shown:?}… has {} bytes; the maximum is {MAX_STEM_BYTES}",
            name.len()
        )
    } else {
        return Ok(());
    };
    Err(Problem::at("name", problem).help("write a word such as \"adc\"; the directory is `path`"))
}
