//! `tests/tracer`: a command of which one system call kills it or fails. Compiled when a test first asks
//! for it.

use super::binary::within;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Interference with one of the calls that change files in a folder.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    None,
    /// The process is killed before it.
    Kill,
    /// It is not made, and fails.
    Error(Errno),
}

/// The program, and the folder whose changes it counts.
pub struct Tracer {
    program: PathBuf,
    folder: PathBuf,
    report: PathBuf,
}

impl Tracer {
    /// None, with a line why, where no compiler is installed or no process may be traced.
    pub fn of_changes_in(folder: &Path) -> Option<Tracer> {
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let own = target.join(format!("tracer-{}", std::process::id()));
        let compiler = std::env::var("CXX").unwrap_or("c++".into());
        let source = "tests/tracer/tracer.cpp";
        let flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        let Ok(built) = Command::new(compiler)
            .args(flags)
            .arg(&own)
            .arg(source)
            .output()
        else {
            println!("no C++ compiler");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // Tests in other processes build it too.
        let program = target.join("tracer");
        fs::rename(own, &program).unwrap();
        let report = target.join(format!("traced-{}", std::process::id()));
        let tracer = Tracer { program, folder: folder.to_path_buf(), report };
        let nothing = tracer.command(Fault::None, 0, Command::new("true").current_dir(folder));
        let may = { nothing }.status().unwrap().code();
        if may != Some(0) {
            println!("no process may be traced here ({may:?})");
            return None;
        }
        Some(tracer)
    }

    /// The command with this fault at call `at`, from 1.
    pub fn command(&self, fault: Fault, at: usize, command: &Command) -> Command {
        let words = match fault {
            Fault::None => vec!["none".to_string()],
            Fault::Kill => vec!["kill".to_string(), at.to_string()],
            Fault::Error(errno) => vec![errno.raw_os_error().to_string(), at.to_string()],
        };
        let paths = [&self.program, &self.folder, &self.report];
        let mut outer: Vec<&str> = paths.map(|path| path.to_str().unwrap()).to_vec();
        outer.extend(words.iter().map(String::as_str));
        within(&outer, command)
    }

    /// Counted calls of the last command, and the name of the one with the fault.
    pub fn report(&self) -> (usize, String) {
        let text = fs::read_to_string(&self.report).unwrap();
        let (calls, name) = text.trim_end_matches('\n').split_once(' ').unwrap();
        (calls.parse().unwrap(), name.to_string())
    }
}
