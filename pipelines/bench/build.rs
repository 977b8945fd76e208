//! Removes the debug sections from the release binary, which are several times as large as its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-debug");
    }
}
