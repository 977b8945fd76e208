//! Stores to a BAR mapping by selectable methods, to compare daq's own copy with reference methods.

use crate::gpu::bar_mapping::{BarMapping, BarMappingError};
use crate::sys::store::Width;
use crate::sys::{reference_copy, store};

/// The method with which bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMethod {
    /// The C library's copy.
    Memcpy,
    /// A plain loop of 32-byte streaming stores.
    Avx2,
    /// A plain loop of 64-byte streaming stores.
    Avx512,
    /// Direct stores of cache lines (MOVDIR64B).
    Direct,
    /// daq's own copy, with 16-byte streaming stores.
    Own16,
    /// daq's own copy, with 32-byte streaming stores.
    Own32,
    /// daq's own copy, with 64-byte streaming stores.
    Own64,
}

impl StoreMethod {
    /// All methods, the reference methods first.
    pub const ALL: [Self; 7] = [
        Self::Memcpy,
        Self::Avx2,
        Self::Avx512,
        Self::Direct,
        Self::Own16,
        Self::Own32,
        Self::Own64,
    ];

    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
            Self::Direct => "MOVDIR64B",
            Self::Own16 => "daq by 16",
            Self::Own32 => "daq by 32",
            Self::Own64 => "daq by 64",
        }
    }

    const fn width(self) -> Option<Width> {
        match self {
            Self::Own16 => Some(Width::Sse2),
            Self::Own32 => Some(Width::Avx2),
            Self::Own64 => Some(Width::Avx512),
            _ => None,
        }
    }

    /// Whether this processor supports the method.
    pub fn is_supported(self) -> bool {
        match self {
            Self::Memcpy => true,
            Self::Avx2 => Width::Avx2.is_supported(),
            Self::Avx512 => Width::Avx512.is_supported(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Direct => reference_copy::has_direct(),
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            Self::Direct => false,
            own => own.width().is_some_and(Width::is_supported),
        }
    }

    /// Copies `bytes` bytes, which have left the CPU after a fence.
    ///
    /// # Safety
    /// `from` must be valid for reads and `to` for writes of `bytes` bytes, and the two ranges must not overlap. This
    /// processor must [support](Self::is_supported) the method.
    pub(crate) unsafe fn store(self, to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the caller guarantees all requirements of this call.
        unsafe {
            match self {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx2 => reference_copy::by_32(to, from, bytes),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Avx512 => reference_copy::by_64(to, from, bytes),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Self::Direct => reference_copy::direct(to, from, bytes),
                method => match method.width() {
                    Some(width) => store::copy_to_with(width, to, from, bytes),
                    None => reference_copy::plain(to, from, bytes),
                },
            }
        }
    }
}

/// Stores to and loads from a BAR mapping by selectable methods, for measurements.
#[derive(Debug)]
pub struct RawStores<'a> {
    mapped: &'a BarMapping,
    /// Whether the processor supports each method of [`StoreMethod::ALL`]. The results are kept because a query takes
    /// longer than a store.
    here: [bool; StoreMethod::ALL.len()],
}

impl<'a> RawStores<'a> {
    /// Creates the stores. Fails if `mapped` cannot be used now.
    pub fn new(mapped: &'a BarMapping) -> Result<Self, BarMappingError> {
        mapped.check()?;
        Ok(Self {
            mapped,
            here: StoreMethod::ALL.map(StoreMethod::is_supported),
        })
    }

    /// Stores `from` at `offset` and waits until the bytes have left the CPU.
    ///
    /// # Panics
    /// If the range is not inside the mapping, or the processor does not support the method.
    pub fn store(&self, method: StoreMethod, offset: usize, from: &[u8]) {
        assert!(
            self.here[method as usize],
            "this processor does not support {}",
            method.name()
        );
        let to = self.at(offset, from.len());
        // SAFETY: the range is inside the mapping, as just checked. No reference to the mapping exists. The processor
        // supports the method.
        unsafe { method.store(to, from.as_ptr(), from.len()) };
        store::fence();
    }

    /// Loads bytes from `offset` on with the C library's copy.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn load(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: the range is inside the mapping, as just checked.
        unsafe { reference_copy::plain(to.as_mut_ptr(), from, to.len()) };
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let have = self.mapped.bytes();
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= have);
        assert!(
            fits,
            "{bytes} bytes at offset {offset} exceed the mapping of {have} bytes"
        );
        self.mapped.pointer().as_ptr().wrapping_add(offset)
    }
}
