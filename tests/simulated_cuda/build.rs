//! Names the library as the driver names its own.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Streams have threads that would outlive an unloaded library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
