//! Tests of modules and launches.

use crate::sys::{self, allocate, read};
use crate::{cu, fails, ok, passes};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const TEXT: &CStr = c"//
// made by hand; .entry commented
.version 8.0
.target sm_70
.address_size 64
.visible .const .align 4 .u32 factor = 258;
.visible .global .align 8 .b8 table[16] = {1, 2, 3};
.visible .entry daq_simulated_copy(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }
.visible .entry nothing() { ret; }
";

fn load(text: &CStr) -> (i32, CUmodule) {
    let (mut module, image, none) = (null_mut(), text.as_ptr().cast(), null_mut());
    let code = cu!(cuModuleLoadDataEx(
        &raw mut module,
        image,
        0,
        none,
        null_mut()
    ));
    (code, module)
}

fn function(module: CUmodule, name: &CStr) -> (i32, CUfunction) {
    let (mut function, name) = (null_mut(), name.as_ptr());
    let code = cu!(cuModuleGetFunction(&raw mut function, module, name));
    (code, function)
}

fn launch(function: CUfunction, grid: u32, block: [u32; 2], shared: u32, values: &[u64]) -> i32 {
    sys::launch(function, [grid, 1], block, shared, null_mut(), values)
}

#[test]
fn module_from_ptx_has_declared_symbols() {
    passes!("", || {
        let (code, module) = load(TEXT);
        assert_eq!(code, 0);
        assert_eq!(function(module, c"nothing").0, 0);
        assert_eq!(function(module, c"commented").0, 500);
        assert_eq!(function(module, c"absent").0, 500);
        let (mut address, mut bytes) = (0, 0);
        let mut variable = |name: &CStr| {
            let (start, size, name) = (&raw mut address, &raw mut bytes, name.as_ptr());
            match cu!(cuModuleGetGlobal_v2(start, size, module, name)) {
                0 => Ok(read(address, bytes)),
                code => Err(code),
            }
        };
        assert_eq!(variable(c"factor"), Ok(vec![2, 1, 0, 0]));
        let table = [&[1, 2, 3][..], &[0; 13]].concat();
        assert_eq!(variable(c"table"), Ok(table));
        assert_eq!(variable(c"none"), Err(500));
        ok!(cuModuleUnload(module));
        fails!(cuModuleUnload(module) => 400);
    }, {"leaks": {"memory": 0, "modules": 0}});
}

#[test]
fn module_from_invalid_image_is_rejected() {
    passes!("version=12040", || {
        assert_eq!(load(c"hello").0, 200);
        assert_eq!(load(c"").0, 200);
        assert_eq!(load(c".version 8.4\n.target sm_80\n").0, 0);
        assert_eq!(load(c".version 8.5\n.target sm_80\n").0, 222);
        // The compiler's messages are returned to the caller.
        let mut log = [1_u8; 30];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), 30 as *mut c_void];
        let (mut module, text) = (null_mut(), c".version 9.0\n.target sm_80\n");
        let code = cu!(cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        ));
        assert_eq!(code, 222);
        assert_eq!(values[1] as usize, 29);
        assert_eq!(&log, b"ptxas fatal   : Unsupported .\0");
    });
}

#[test]
fn kernel_with_host_function_runs() {
    passes!("", || {
        let (_, module) = load(TEXT);
        let (_, copy) = function(module, c"daq_simulated_copy");
        let device = allocate(64);
        ok!(cuMemsetD8_v2(device, 1, 32));
        ok!(cuMemsetD8_v2(device + 32, 2, 32));
        let copy = |values: &[u64]| launch(copy, 1, [32, 1], 0, values);
        assert_eq!(copy(&[device + 8, device + 40, 4]), 0);
        assert_eq!(read(device, 16), [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1]);
        // An address outside all memory is an error of the kernel, so the context is broken.
        assert_eq!(copy(&[device, device + 60, 8]), 0);
        fails!(cuCtxSynchronize() => 700);
        assert_eq!(copy(&[device, device, 8]), 700);
    }, {"launches": 2});
}

#[test]
fn launch_beyond_limits_is_rejected() {
    passes!("", || {
        let (_, module) = load(TEXT);
        let (_, nothing) = function(module, c"nothing");
        let go = |grid, block, shared| launch(nothing, grid, block, shared, &[]);
        assert_eq!(go(1, [1024, 1], 48 << 10), 0);
        assert_eq!(go(0, [1024, 1], 0), 1);
        assert_eq!(go(1, [1024, 2], 0), 1);
        assert_eq!(go(1, [1025, 1], 0), 1);
        assert_eq!(go(1, [32, 1], (48 << 10) + 1), 1);
        let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        fails!(cuFuncSetAttribute(nothing, shared, 232_449) => 1);
        ok!(cuFuncSetAttribute(nothing, shared, 232_448));
        assert_eq!(go(1, [32, 1], 232_448), 0);
        assert_eq!(go(1, [32, 1], 232_449), 1);
        for (shared, expected) in [(0, 8), (100 << 10, 2)] {
            let mut blocks = 0;
            let out = &raw mut blocks;
            ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                out, nothing, 256, shared
            ));
            assert_eq!(blocks, expected);
        }
        ok!(cuModuleUnload(module));
        assert_eq!(go(1, [1, 1], 0), 400);
    });
}
