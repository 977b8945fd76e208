//! Modules with their functions and variables.

use super::context::Device;
use super::copy::Copy;
use super::physical::Physical;
use super::space::{self, Origin};
use super::table::Table;
use super::{In, Out, driver, lock, require};
use crate::attributes;
use crate::code::{Code, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, Result};
use crate::faults::OPTIONS;
use crate::kernels::{self, Kernel};
use crate::ptx::{Image, elf_bytes};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

const MAX_DYNAMIC_SHARED: c_uint = 8;

/// A module.
#[derive(Debug)]
pub struct Module {
    /// The device of its context.
    pub device: &'static Device,
    image: Image,
    /// Address and size in bytes of each variable, by name.
    variables: BTreeMap<String, (u64, usize)>,
    /// Handle of each function, by name.
    functions: Mutex<BTreeMap<String, usize>>,
}

/// A kernel of a module.
#[derive(Debug)]
pub struct Function {
    /// The device of its context.
    pub device: &'static Device,
    /// The host function that replaces the kernel; a kernel without one does nothing.
    pub kernel: Option<&'static Kernel>,
    /// Bytes of dynamic shared memory that a block may use.
    pub shared: AtomicI32,
}

/// All modules.
pub static MODULES: Table<Module> = Table::new();
/// All functions.
pub static FUNCTIONS: Table<Function> = Table::new();

impl Module {
    fn load(device: &'static Device, image: Image) -> Result<Self> {
        let mut module = Self {
            device,
            image,
            variables: BTreeMap::new(),
            functions: Mutex::default(),
        };
        if let Image::Ptx { variables, .. } = &module.image {
            for variable in variables {
                let bytes = variable.bytes.len().max(1);
                let placed = Physical::new(device.ordinal, bytes, space::skew(bytes))
                    .and_then(|memory| space::lock().place(memory, bytes, Origin::Variable))
                    .and_then(|address| {
                        Copy::initialise(device, address, &variable.bytes).map(|()| address)
                    });
                match placed {
                    Ok(address) => {
                        module
                            .variables
                            .insert(variable.name.clone(), (address, variable.bytes.len()));
                    }
                    Err(code) => {
                        module.unload();
                        return Err(code);
                    }
                }
            }
        }
        Ok(module)
    }

    fn function(&self, name: &str) -> Result<usize> {
        if !self.image.has_entry(name) {
            return Err(NOT_FOUND);
        }
        let mut functions = lock(&self.functions);
        let function = || {
            FUNCTIONS.insert(Arc::new(Function {
                device: self.device,
                kernel: kernels::find(name),
                shared: AtomicI32::new(attributes::SHARED),
            }))
        };
        Ok(*functions.entry(name.to_owned()).or_insert_with(function))
    }

    /// Releases the functions and variables of the module.
    pub fn unload(&self) {
        for function in lock(&self.functions).values() {
            let _ = FUNCTIONS.remove(*function);
        }
        let mut space = space::lock();
        for (address, _) in self.variables.values() {
            let _ = space.unplace(*address, Origin::Variable);
        }
    }
}

/// Reads an image. The error contains the text for the compiler's log.
fn read(image: In<u8>) -> std::result::Result<Image, (Code, String)> {
    let plain = |code| (code, String::new());
    let byte = |n| image.at(n).map_err(plain);
    // Reading stops at the first byte that is not part of an image.
    let mut magic = true;
    for (n, expected) in b"\x7fELF".iter().enumerate() {
        magic = magic && byte(n)? == *expected;
    }
    if magic {
        let part = |from: usize, bytes: usize| {
            (from..from + bytes)
                .filter_map(|n| image.at(n).ok())
                .collect()
        };
        let bytes = elf_bytes(part).map_err(plain)?;
        return Ok(Image::Cubin(part(0, bytes)));
    }
    if byte(0)?.is_ascii_whitespace() || matches!(byte(0)?, b'/' | b'.') {
        let text = In(image.0.cast::<c_char>())
            .text()
            .map_err(|_| plain(INVALID_IMAGE))?;
        return Image::ptx(&text, OPTIONS.version);
    }
    Err(plain(INVALID_IMAGE))
}

/// Loads an image. `log` is called with the compiler's messages.
fn load(out: &Out<usize>, image: In<u8>, log: impl FnOnce(&str)) -> Result {
    let device = super::context::current()?;
    require(!out.is_null() && !image.is_null())?;
    let image = read(image).map_err(|(code, message)| {
        log(&message);
        code
    })?;
    out.set(MODULES.insert(Arc::new(Module::load(device, image)?)))
}

driver! {
    /// Loads an image with options. Only the options for logs have an effect: a buffer for each log, and the size of the
    /// buffer.
    in_context(_).alone fn cuModuleLoadDataEx(
        module: Out<usize>,
        image: In<u8>,
        count: c_uint,
        options: In<c_uint>,
        values: Out<usize>,
    ) {
        const INFO_LOG: c_uint = 3;
        const ERROR_LOG: c_uint = 5;
        let values_in = In(values.0.cast_const());
        let place = |option| -> Option<usize> {
            (0..count as usize).find(|n| options.at(*n).is_ok_and(|given| given == option))
        };
        let put = |option, text: &str| {
            let (Some(buffer), Some(size)) = (place(option), place(option + 1)) else {
                return;
            };
            let (Ok(buffer), Ok(room)) = (values_in.at(buffer), values_in.at(size)) else {
                return;
            };
            // The value of the size option is the size itself, in the lower half of the pointer.
            let room = i32::try_from(room & 0xffff_ffff).unwrap_or(i32::MAX);
            if Out(buffer as *mut c_char).text(text, room).is_ok() {
                let length = text.len().min(room.cast_unsigned() as usize - 1);
                // `size` is an index of the caller's array of values.
                Out(values.0.wrapping_add(size)).offer(length);
            }
        };
        put(INFO_LOG, "");
        let mut message = String::new();
        let loaded = load(&module, image, |text| text.clone_into(&mut message));
        put(ERROR_LOG, &message);
        loaded
    }

    giving_back(_).alone fn cuModuleUnload(module: usize) {
        MODULES.remove(module)?.unload();
        Ok(())
    }

    in_context(_) fn cuModuleGetFunction(function: Out<usize>, module: usize, name: In<c_char>) {
        require(!function.is_null())?;
        function.set(MODULES.get(module)?.function(&name.text()?)?)
    }

    in_context(_) fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: usize, name: In<c_char>) {
        let module = MODULES.get(module)?;
        let (start, length) = module.variables.get(&name.text()?).ok_or(NOT_FOUND)?;
        require(!address.is_null() || !bytes.is_null())?;
        address.offer(*start);
        bytes.offer(*length);
        Ok(())
    }

    /// Has no effect, because functions are loaded together with their modules.
    in_context(_).alone fn cuFuncLoad(function: usize) {
        FUNCTIONS.get(function).map(|_| ())
    }

    in_context(_) fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: usize) {
        let function = FUNCTIONS.get(function)?;
        value.set(match attribute {
            0 => attributes::THREADS.cast_signed(),
            4 => 32,
            5 | 6 => attributes::CAPABILITY,
            MAX_DYNAMIC_SHARED => function.shared.load(Ordering::Acquire),
            9 => -1,
            1..=15 => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    in_context(_) fn cuFuncSetAttribute(function: usize, attribute: c_uint, value: c_int) {
        const CARVEOUT: c_uint = 9;
        let function = FUNCTIONS.get(function).map_err(|_| INVALID_HANDLE)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                require((0..=attributes::SHARED_OPTIN).contains(&value))?;
                function.shared.store(value, Ordering::Release);
                Ok(())
            }
            CARVEOUT => require((-1..=100).contains(&value)),
            _ => Err(INVALID_VALUE),
        }
    }
}
