//! Batched copies.

use super::copy::AddressKind::Either;
use super::copy::{Copy, submit_to};
use super::stream::{Operation, Stream};
use super::{In, Out, context, driver, require};
use crate::code::{Code, Result};
use std::ffi::{c_int, c_uint};

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    order: c_uint,
    from: [c_int; 2],
    to: [c_int; 2],
    flags: c_uint,
}

/// Arguments common to both versions of the batch call.
#[derive(Clone, Copy)]
struct Batch {
    targets: In<u64>,
    sources: In<u64>,
    bytes: In<usize>,
    count: usize,
    attributes: In<Attributes>,
    /// Index of the first copy that each attribute applies to.
    firsts: In<usize>,
    attribute_count: usize,
}

impl Batch {
    /// Submits the batch. An error has the index of the failed copy, if known.
    fn submit(&self, stream: usize) -> std::result::Result<(), (Option<usize>, Code)> {
        let general = |code| (None, code);
        let waits = self.check().map_err(general)?;
        let device = context::current().map_err(general)?;
        let stream = Stream::find(device, stream).map_err(general)?;
        // The driver rejects the default stream.
        require(!stream.is_default()).map_err(general)?;
        let mut copies = Vec::with_capacity(self.count);
        for n in 0..self.count {
            let copy = || {
                let (to, from) = (self.targets.at(n)?, self.sources.at(n)?);
                Copy::linear(device, (Either, to), (Either, from), self.bytes.at(n)?)
            };
            copies.push(copy().map_err(|code| (Some(n), code))?);
        }
        let operation = Operation::Batch(copies.as_slice().into());
        submit_to(&stream, operation, &copies, waits).map_err(general)
    }

    /// Checks the attributes. Returns true if the sources must be read before the call returns.
    fn check(&self) -> Result<bool> {
        const DURING_CALL: c_uint = 2;
        require(self.count > 0 && (1..=self.count).contains(&self.attribute_count))?;
        let mut waits = false;
        for n in 0..self.attribute_count {
            let first = self.firsts.at(n)?;
            require(if n == 0 {
                first == 0
            } else {
                first > self.firsts.at(n - 1)? && first < self.count
            })?;
            let order = self.attributes.at(n)?.order;
            require((1..=3).contains(&order))?;
            waits |= order == DURING_CALL;
        }
        Ok(waits)
    }
}

/// Defines a version of the batch call; the first version also stores the index of the failed copy.
macro_rules! batch_call {
    ($name:ident $(, $failed:ident: $kind:ty)?) => {
        driver! {
            in_context(_) fn $name(
                targets: In<u64>,
                sources: In<u64>,
                bytes: In<usize>,
                count: usize,
                attributes: In<Attributes>,
                firsts: In<usize>,
                attribute_count: usize,
                $($failed: $kind,)?
                stream: usize,
            ) {
                let batch = Batch { targets, sources, bytes, count, attributes, firsts, attribute_count };
                batch.submit(stream).map_err(|(_nth, code)| {
                    $($failed.offer(_nth.unwrap_or(usize::MAX));)?
                    code
                })
            }
        }
    };
}
batch_call!(cuMemcpyBatchAsync, failed: Out<usize>);
batch_call!(cuMemcpyBatchAsync_v2);
