//! Names and descriptions of error codes.

use super::{Out, driver};
use crate::code::{self, Code, INVALID_VALUE};
use std::ffi::{CStr, c_char};

fn give(out: &Out<*const c_char>, text: Option<&'static CStr>) -> crate::code::Result {
    out.set(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(|_| ()).ok_or(INVALID_VALUE)
}

driver! {
    anytime() fn cuGetErrorName(code: Code, out: Out<*const c_char>) {
        give(&out, code::describe(code).map(|(name, _)| name))
    }

    anytime() fn cuGetErrorString(code: Code, out: Out<*const c_char>) {
        give(&out, code::describe(code).map(|(_, text)| text))
    }
}
