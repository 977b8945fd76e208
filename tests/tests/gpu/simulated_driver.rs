//! Checks that programs find the simulated CUDA driver where they search for NVIDIA's driver.

use daq_testkit::{Simulated, skip};
use std::process::Command;

/// A program that uses only the dynamic loader. It prints the number of devices, and whether the driver has
/// `cuMemCreate`.
const PROGRAM: &str = "
import ctypes
driver = ctypes.CDLL('libcuda.so.1')
count = ctypes.c_int(-1)
print(driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value, hasattr(driver, 'cuMemCreate'))
";

fn run(simulated: &Simulated) -> String {
    let mut command = Command::new("python3");
    let output = simulated
        .prepare(command.args(["-c", PROGRAM]))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn simulated_driver_is_found_by_loader() {
    if daq_testkit::program("python3").is_none() {
        skip!("python3 is not installed");
    }
    let simulated = Simulated::new("gpus=3");
    assert!(simulated.report().is_null());
    assert_eq!(run(&simulated), "0 0 3 True\n");
    assert_eq!(simulated.report()["calls"]["cuDeviceGetCount"], 1);
    assert_eq!(simulated.leaks(), [""; 0]);
}

#[test]
fn simulated_older_driver_lacks_functions() {
    if daq_testkit::program("python3").is_none() {
        skip!("python3 is not installed");
    }
    let simulated = Simulated::new("version=10010").without("cuMemCreate");
    assert_eq!(run(&simulated), "0 0 1 False\n");
}
