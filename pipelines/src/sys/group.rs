//! Groups of users.

use std::ffi::CString;
use std::io;
use std::ptr;

/// Maximum size of a group's entry in bytes, with the names of its members.
const MAX_ENTRY: usize = 1 << 20;

/// Returns the number of the group `name`; `None` if the system has no such group.
pub(crate) fn number(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut buffer = vec![0_u8; 1024];
    loop {
        let mut group = std::mem::MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: `name` ends with a zero byte. The library writes the entry to `group`, at most `buffer.len()` bytes of
        // texts to `buffer`, and a pointer to `group` or a null pointer to `found`. All of them outlive the call.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                group.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        match error {
            0 if found.is_null() => return Ok(None),
            // SAFETY: `found` is not null, so the library has initialised `group`.
            0 => return Ok(Some(unsafe { group.assume_init() }.gr_gid)),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < MAX_ENTRY => buffer.resize(buffer.len() * 4, 0),
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_root_has_number_zero_and_unknown_groups_have_none() {
        assert_eq!(number("root").unwrap(), Some(0));
        assert_eq!(number("no such group").unwrap(), None);
        assert!(number("a\0b").is_err());
    }
}
