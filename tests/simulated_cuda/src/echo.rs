//! Persistent kernels that answer a doorbell, for `daq bench doorbell` and `daq selftest`.
//!
//! The first parameters of every kernel are the doorbell, the reply and the poll limit. The limit protects against
//! mappings that do not work. The simulated kernels ignore the limit, because simulated mappings always work.

use crate::code::Result;
use crate::kernels::{Kernel, Memory};

/// Bit of the doorbell: stop.
const STOP: u64 = 1 << 63;
/// The values from which the payload words are computed.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// All echo kernels.
pub const KERNELS: [Kernel; 6] = [
    echo("daq_echo_ordered"),
    echo("daq_echo_acquire"),
    echo("daq_echo_relaxed"),
    echo("daq_echo_warps"),
    Kernel {
        name: "daq_echo_frames",
        parameters: &[8; 8],
        run: frames,
        stays: true,
    },
    Kernel {
        name: "daq_echo_order",
        parameters: &[8; 6],
        run: order,
        stays: true,
    },
];

const fn echo(name: &'static str) -> Kernel {
    Kernel {
        name,
        parameters: &[8; 3],
        run: |memory, values, _| answer(memory, values, |_, _| Ok(())),
        stays: true,
    }
}

/// Replies to each change of the doorbell after `work` has run with the previous and the current value.
fn answer(memory: &dyn Memory, values: &[u64], mut work: impl FnMut(u64, u64) -> Result) -> Result {
    let mut last = 0;
    loop {
        memory.check()?;
        let heard = memory.load(values[0])?;
        if heard & STOP != 0 {
            return Ok(());
        }
        if heard == last {
            memory.rest();
            continue;
        }
        work(last, heard)?;
        memory.store(values[1], heard)?;
        last = heard;
    }
}

fn frames(memory: &dyn Memory, values: &[u64], _: [u32; 3]) -> Result {
    let [input, stride, slots, bytes, output] = *values.last_chunk().unwrap_or(&[0; 5]);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    answer(memory, values, |done, posted| {
        (done..posted).filter(|_| output != 0).try_for_each(|n| {
            let from = input + n % slots * stride;
            memory.copy(output + n * stride, from, bytes)
        })
    })
}

fn order(memory: &dyn Memory, values: &[u64], _: [u32; 3]) -> Result {
    let [input, words, wrong] = *values.last_chunk().unwrap_or(&[0; 3]);
    answer(memory, values, |_, heard| {
        for i in 0..words {
            if memory.load(input + i * 8)? != heard.wrapping_mul(FACTOR).wrapping_add(i) {
                memory.store(wrong, memory.load(wrong)? + 1)?;
            }
        }
        Ok(())
    })
}
