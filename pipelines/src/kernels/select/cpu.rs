//! The CPU implementation of `select`.

use super::super::account::Account;
use super::super::{emit, whole};
use super::Selection;
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ring::{Lease, SlotsMut};

pub(super) fn build(input_bytes: usize, selection: Selection) -> Box<dyn Kernel> {
    Box::new(Selector {
        input_bytes,
        output_bytes: selection.pieces.bytes(),
        selection,
    })
}

struct Selector {
    input_bytes: usize,
    output_bytes: usize,
    selection: Selection,
}

// `outputs` is the default, one per frame: behind losses, the numbers of all frames of a burst can be multiples of `every`.
impl Kernel for Selector {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        let mut account = Account::default();
        for frame in burst.iter() {
            let Some(meta) = self.selection.choice.choose(frame.meta()) else {
                account.filter();
                continue;
            };
            let Some(bytes) = whole(&frame, self.input_bytes)? else {
                account.fail();
                continue;
            };
            emit(out, self.output_bytes, meta, |slot| {
                self.selection.pieces.copy(bytes, slot);
            })?;
            account.take();
        }
        Ok(account.submit())
    }
}
