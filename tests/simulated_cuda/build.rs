//! Sets the library's soname to that of the driver library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The library must stay loaded, because threads of streams would outlive an unloaded library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
