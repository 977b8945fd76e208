//! Runs the tests of the Python package against the program.

use daq_testkit::{binary, python, repository};

/// Runs all tests in a folder. The arguments are the program and the folder of the package.
const SCRIPT: &str = r#"
import os, sys, unittest
os.environ["DAQ_TEST_BINARY"], folder = sys.argv[1:]
os.chdir(folder)
sys.path[:0] = ["src", "."]
unittest.main(module=None, argv=["unittest", "discover", "-s", "tests", "-t", "."])
"#;

#[test]
fn the_python_package_reads_rings_and_recordings() {
    let package = repository().join("python");
    python!("numpy").run(SCRIPT, &[binary(), package]);
}
