//! Tests of sources with real sockets and files, and fuzz targets of their parsers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocations;
mod fuzz_formats;
mod fuzz_headers;
mod fuzz_hsb;
mod hsb;
mod replay;
mod udp;
