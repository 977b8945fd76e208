//! Fuzz targets of texts that users and other programs write.

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod config;
mod sigmf;
