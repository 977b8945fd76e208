//! Configuration: TOML files, environment variables and `--set`, merged into one document with source locations.
//!
//! A document is loaded, overridden and expanded. Then each component reads its own keys from its section into its own
//! type. All errors are collected and shown together.
//!
//! ```
//! use daq_core::config::{Diagnostics, Document};
//! use daq_core::units::ByteSize;
//!
//! #[derive(Debug, serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Ring {
//!     slot: ByteSize,
//!     slots: u32,
//! }
//!
//! let mut diagnostics = Diagnostics::new();
//! let document = Document::from_text(
//!     "daq.toml",
//!     "[ring.raw]\nslot = \"1 MiB\"\nslotz = 64\n",
//!     &mut diagnostics,
//! );
//! let mut section = document.sections("ring").remove(0);
//! assert!(section.finish::<Ring>(&[], &mut diagnostics).is_none());
//! assert_eq!(
//!     diagnostics.render(document.sources(), false),
//!     "\
//! error: unknown key `slotz` in [ring.raw]
//!  --> daq.toml:3:1
//!   |
//! 3 | slotz = 64
//!   | ^^^^^
//!   |
//!   = help: did you mean `slots`?
//! "
//! );
//! ```

mod de;
mod diagnostic;
mod document;
mod expand;
mod fault;
mod groups;
mod kinds;
mod list;
mod overrides;
mod placeholder;
mod read;
mod section;
mod source_map;
mod suggest;
mod tree;

pub use diagnostic::{Diagnostic, Diagnostics, Label, Problem, Severity};
pub use document::Document;
pub use expand::environment;
pub use kinds::with_kinds;
pub use list::{List, Listed};
pub use overrides::Overrides;
pub use section::{DetachedKeys, Section};
pub use source_map::{Origin, SourceMap, Span};
pub use suggest::nearest;

#[cfg(test)]
mod tests;
