//! The script of a GPU's first hour (`benches/gpu_hour.sh`), with stand-ins for its programs: every way to
//! start it, what it leaves in `$OUT`, and its limits.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Program of the folder. It leaves what the real ones do: lines, and a run's folder.
const PROGRAM: &str = "#!/bin/sh
mkdir -p \"$WORK/runs/some/checkpoints\" && echo weights >\"$WORK/runs/some/checkpoints/shard\"
echo \"$(basename \"$0\") $*\"
echo 'test result: ok. 1 passed; 0 failed'
[ ! -e \"$PWD/fails\" ]
";

/// Folder as `gpu_hour.sh pack` lays it.
struct Hour {
    root: tempfile::TempDir,
}

impl Hour {
    fn new() -> Hour {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("target/gpu-hour");
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::copy("benches/gpu_hour.sh", folder.join("gpu_hour.sh")).unwrap();
        for name in ["gptrain", "ops", "model", "bench_train", "bench_ops"] {
            let program = folder.join("bin").join(name);
            fs::write(&program, PROGRAM).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(root.path().join("out")).unwrap();
        Hour { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Starts steps from a folder, by a path of the script.
    fn run(&self, from: &str, script: &Path, steps: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(script);
        command
            .args(steps)
            .current_dir(self.path(from))
            .env("PYTHON", "false");
        command
            .env("OUT", self.path("out"))
            .envs(variables.iter().copied());
        command.output().unwrap()
    }

    /// Names in the archive.
    fn archived(&self, archive: &str) -> Vec<String> {
        let listed = Command::new("tar")
            .arg("-tzf")
            .arg(self.path(archive))
            .output()
            .unwrap();
        assert!(listed.status.success(), "{archive}");
        String::from_utf8(listed.stdout)
            .unwrap()
            .lines()
            .map(str::to_string)
            .collect()
    }
}

#[test]
fn the_hour_starts_from_anywhere_and_returns_one_file() {
    let steps = ["machine", "ops", "products", "train"];
    let hour = Hour::new();
    symlink(hour.path("target/gpu-hour/gpu_hour.sh"), hour.path("hour")).unwrap();
    let absolute = hour.path("target/gpu-hour/gpu_hour.sh");
    for (from, script) in [
        ("", Path::new("target/gpu-hour/gpu_hour.sh")),
        ("target/gpu-hour", Path::new("./gpu_hour.sh")),
        ("out", &absolute),
        ("", Path::new("./hour")),
    ] {
        let _ = fs::remove_file(hour.path("out/hour.tar.gz"));
        let output = hour.run(from, script, &steps, &[]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && !said.contains("failed,"),
            "{}: {said}",
            script.display()
        );
        assert_eq!(said.matches("== ").count(), steps.len(), "{said}");
        assert!(said.contains("gptrain bench manifests/quickstart.yaml"), "{said}");
        let left: Vec<_> = fs::read_dir(hour.path("out")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let archived = hour.archived("out/hour.tar.gz");
        for step in steps {
            assert!(archived.contains(&format!("./{step}.txt")), "{archived:?}");
            assert!(archived.contains(&format!("./{step}.log")), "{archived:?}");
        }
        assert!(!archived.iter().any(|name| name.contains("runs")), "{archived:?}");
    }
}

/// Every number of threads up to the cores, and the peer on all of them.
#[test]
fn the_steps_of_a_processor_cover_its_cores() {
    let hour = Hour::new();
    let script = hour.path("target/gpu-hour/gpu_hour.sh");
    let output = hour.run("", &script, &["cpu", "cores"], &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    for words in [
        "bench_train --threads 1 --rounds 1",
        "bench_train --precision bf16 --threads",
        "bench_ops cpu gpt2 f32",
        "Model name",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(hour.run("", &script, &["cpus"], &[]).status.code(), Some(2));
}

/// The archive is there after a step that fails, with the tables of the steps before.
#[test]
fn a_failed_step_of_the_hour_is_returned_too() {
    let hour = Hour::new();
    fs::write(hour.path("target/gpu-hour/fails"), "").unwrap();
    let script = hour.path("target/gpu-hour/gpu_hour.sh");
    let output = hour.run("", &script, &["products"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("failed, exit code 1"));
    assert!(
        hour.archived("out/hour.tar.gz")
            .contains(&"./products.txt".to_string())
    );
}

/// A call that may take no second starts no step, and one without `OUT` leaves its archive beside the script.
#[test]
fn the_hour_keeps_its_budget() {
    let hour = Hour::new();
    let script = hour.path("target/gpu-hour/gpu_hour.sh");
    let output = hour.run("", &script, &["machine", "train"], &[("BUDGET", "5")]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said.matches("not started, the 5 s of BUDGET are over")
            .count(),
        2,
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
    let output = hour.run("", &script, &["machine"], &[("OUT", ""), ("BUDGET", "900")]);
    assert!(output.status.success());
    assert!(
        hour.archived("target/gpu-hour/hour.tar.gz")
            .contains(&"./machine.txt".to_string())
    );
}

/// Every name that the script accepts is a function, and its steps are those that the header describes.
#[test]
fn every_step_of_the_hour_is_described() {
    let script = fs::read_to_string("benches/gpu_hour.sh").unwrap();
    let names = |list: &str| {
        let list = script.lines().find_map(|line| line.strip_prefix(list));
        list.unwrap().trim_matches(['=', '"']).split(' ')
    };
    let steps: Vec<&str> = names("STEPS").chain(names("CPU_STEPS")).collect();
    assert!(steps.len() > 12, "{steps:?}");
    for step in steps {
        assert!(script.contains(&format!("\n{step}() {{\n")), "{step}");
        assert!(script.contains(&format!("\n#   {step} ")), "{step}");
    }
}
