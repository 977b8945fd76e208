//! Runs the binary on a configuration in its own directory.

use super::TIMEOUT;
use super::ledger;
use super::live::Live;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns the `daq` binary next to this test's executable, or the one that `DAQ_TEST_BINARY` names.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("DAQ_TEST_BINARY").map_or_else(
        || {
            let exe = std::env::current_exe().unwrap();
            // target/PROFILE/deps/TEST
            exe.ancestors().nth(2).unwrap().join("daq")
        },
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "{} does not exist; build it with `cargo build -p daq -p daq-bench`",
        path.display()
    );
    path
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

/// The runnable examples, `configs/*.toml`.
pub fn configs() -> Vec<PathBuf> {
    let found = super::files(&repository().join("configs"), ".toml");
    assert!(!found.is_empty(), "there are no configs");
    found
}

/// A configuration in its own directory. The directory is the working directory of every run and holds the state, so
/// that runs of one `Daq` see each other's ends and those of two do not.
#[derive(Debug)]
pub struct Daq {
    dir: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

/// The result of a command other than `run`.
#[derive(Clone, Debug)]
pub struct Done {
    /// The exit code; 128 + the signal if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The final report; null if the run printed none.
    pub report: Value,
    /// The exit code; 128 + the signal if a signal ended it.
    pub code: i32,
    /// Standard error.
    pub stderr: String,
}

impl Daq {
    /// Writes `config` to `daq.toml` in a new directory.
    pub fn new(config: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("daq-test-")
            .tempdir()
            .unwrap();
        std::fs::write(dir.path().join("daq.toml"), config).unwrap();
        Self {
            dir,
            environment: Vec::new(),
        }
    }

    /// Sets an environment variable for all runs.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the data of all SigMF files in `directory`, in the order of their names.
    pub fn data(&self, directory: &str) -> Vec<u8> {
        let files = super::files(&self.path(directory), ".sigmf-data");
        files
            .iter()
            .flat_map(|file| std::fs::read(file).unwrap())
            .collect()
    }

    /// Writes another file into the directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns a command of the binary with the environment of these tests only.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(binary());
        self.prepare(&mut command).args(arguments);
        command
    }

    /// Sets directory and environment of these tests for any `command`.
    pub fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("LANG", "C.UTF-8")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
    }

    /// Runs a command until it exits.
    pub fn cli<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Done {
        self.start(self.command(arguments)).wait()
    }

    /// Runs a command until it exits; spaces separate its arguments.
    pub fn cli_line(&self, arguments: &str) -> Done {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        self.cli(&arguments)
    }

    /// Runs for a short time, and longer if a source has not delivered anything: a busy machine may not schedule its
    /// threads at first.
    pub fn run_a_while(&self, arguments: &[&str]) -> Outcome {
        let mut time = Duration::from_millis(200);
        loop {
            let millis = format!("{} ms", time.as_millis());
            let outcome = self.run(&[&["--for", &millis], arguments].concat()).ok();
            let sources = outcome.report["sources"].as_object().unwrap();
            assert!(!sources.is_empty());
            if sources
                .values()
                .all(|source| source["delivered"].as_u64() > Some(0))
            {
                return outcome;
            }
            assert!(time < TIMEOUT, "{:#}\n{}", outcome.report, outcome.stderr);
            time *= 4;
        }
    }

    /// Runs `daq run daq.toml --report json` with `arguments` until it exits.
    ///
    /// Panics unless stdout holds one JSON object whose ledgers balance, or nothing if the run did not start.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.spawn(arguments).wait()
    }

    /// Starts `daq run daq.toml --report json` with `arguments`.
    pub fn spawn(&self, arguments: &[&str]) -> Live {
        let command = self.command(&[&["run", "daq.toml", "--report", "json"], arguments].concat());
        self.spawn_command(command)
    }

    /// Starts any command that becomes a run with `--report json`.
    pub fn spawn_command(&self, command: Command) -> Live {
        Live::new(self.start(command))
    }

    pub(crate) fn start(&self, mut command: Command) -> Process {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let n = STARTED.fetch_add(1, Ordering::Relaxed);
        let logs = self.path("logs");
        std::fs::create_dir_all(&logs).unwrap();
        let (stdout, stderr) = (
            logs.join(format!("{n}.stdout")),
            logs.join(format!("{n}.stderr")),
        );
        command
            .stdout(std::fs::File::create(&stdout).unwrap())
            .stderr(std::fs::File::create(&stderr).unwrap());
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process {
            child,
            stdout,
            stderr,
        }
    }
}

/// A process with its output in files.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Returns the log so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).unwrap()).into_owned()
    }

    pub(crate) fn wait(&mut self) -> Done {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > TIMEOUT {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("the process hangs; its log:\n{}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        let code = status.code().unwrap_or_else(|| {
            use std::os::unix::process::ExitStatusExt;
            128 + status.signal().unwrap_or(0)
        });
        let stdout = std::fs::read(&self.stdout).unwrap();
        let stdout = String::from_utf8(stdout).expect("daq prints UTF-8");
        Done {
            code,
            stdout,
            stderr: self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    pub(crate) fn of(done: Done) -> Self {
        let Done {
            code,
            stdout,
            stderr,
        } = done;
        assert!(!stderr.contains("panicked"), "{stderr}");
        let report = if stdout.is_empty() {
            assert_ne!(code, 0, "a run that succeeds prints its report:\n{stderr}");
            Value::Null
        } else {
            let report: Value = serde_json::from_str(&stdout)
                .unwrap_or_else(|e| panic!("not one JSON object: {e}\n{stdout}\n{stderr}"));
            assert!(report.is_object(), "{stdout}");
            let wrong = ledger::violations(&report);
            assert!(wrong.is_empty(), "{wrong:#?}\n{report:#}\n{stderr}");
            report
        };
        Self {
            report,
            code,
            stderr,
        }
    }

    /// Panics unless the run succeeded with nothing pending.
    #[must_use]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{:#}", self.stderr, self.report);
        let open = ledger::open(&self.report);
        assert!(
            open.is_empty(),
            "{open:#?}\n{:#}\n{}",
            self.report,
            self.stderr
        );
        self
    }

    /// Returns the number at `path`, as in `sources.adc.lost.late`; 0 if there is none.
    pub fn count(&self, path: &str) -> u64 {
        ledger::count(&self.report, path)
    }
}

impl Done {
    /// Returns standard output, which must be one JSON value.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }

    /// Panics unless the command succeeded.
    #[must_use]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }
}
