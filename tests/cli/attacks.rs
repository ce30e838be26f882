//! Attempts to make `gptrain run` and its checkpoints panic, start over or lose data.

use crate::common::binary::{Done, Lab, within};
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn sequence_parallelism_of_one_tensor_rank_is_none() {
    let lab = Lab::new();
    let alone = &["topology.sequence_parallel=true", "train.steps=2"];
    lab.run(alone).well();
    lab.run(&["train.steps=2", "log.folder=runs/plain"]).well();
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/plain"));
    for grid in ["{data: 2, zero: 1}", "{pipeline: 2}"] {
        let grid = grid.replace('}', ", sequence_parallel: true}");
        let sets = [format!("topology={grid}"), "train.steps=2".into(), "log.folder=g".into()];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        lab.run(&sets).well();
        let _ = fs::remove_dir_all(lab.path("g"));
        let estimate = ["estimate", "run.yaml", "--set", sets[0]];
        assert!(!lab.gptrain(&estimate).err.contains("panicked"));
    }
}

#[test]
fn checkpoints_that_cannot_be_seen_are_not_taken_for_none() {
    let lab = Lab::new();
    let run = || lab.run(&["train.steps=6"]);
    run().well();
    let (checkpoints, away) = (lab.path("runs/a/checkpoints"), lab.path("away"));
    let metrics = fs::read(lab.path("runs/a/metrics.jsonl")).unwrap();
    fs::rename(&checkpoints, &away).unwrap();

    // Moved away.
    let says =
        ["holds no checkpoint, and the run has saved step-00000006", "bring the checkpoints"];
    run().expect(2, &says);
    // On a disk that is not mounted.
    symlink(lab.path("scratch/checkpoints"), &checkpoints).unwrap();
    run().expect(2, &["runs/a/checkpoints: is a link to", "which does not exist"]);
    lab.gptrain(&["inspect-ckpt", "runs/a"])
        .expect(2, &["which does not exist"]);
    fs::remove_file(&checkpoints).unwrap();
    // Something else of the name.
    fs::write(&checkpoints, "").unwrap();
    run().expect(1, &["cannot list runs/a/checkpoints", "Not a directory"]);
    fs::remove_file(&checkpoints).unwrap();
    assert_eq!(fs::read(lab.path("runs/a/metrics.jsonl")).unwrap(), metrics, "nothing was cut");

    fs::rename(&away, &checkpoints).unwrap();
    run().well();
    // The message says how to begin again.
    fs::remove_dir_all(&checkpoints).unwrap();
    fs::remove_file(lab.path("runs/a/last-checkpoint")).unwrap();
    run().well();
    assert_eq!(lab.metrics("runs/a").len(), 6);
}

#[test]
fn a_dataset_whose_tokens_change_is_noticed_at_a_resume() {
    let lab = Lab::new();
    lab.run(&["train.steps=5"]).well();
    let path = lab.path("corpus.bin");
    let whole = fs::read(&path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    fs::write(&path, changed).unwrap();
    lab.run(&["train.steps=6"])
        .expect(2, &["is not the dataset", "digest of pieces"]);
    fs::write(&path, whole).unwrap();
    lab.run(&["train.steps=6"]).well();
    let digests = lab.gptrain(&["data", "check", "corpus", "--digest"]);
    digests.well();
    assert!(digests.out.contains("corpus.bin  ") && digests.out.contains("corpus.idx  "));
}

#[test]
fn an_order_that_memory_has_no_room_for_is_refused() {
    let lab = Lab::new();
    let sets = ["train.steps=500000000"];
    let args = ["run", "run.yaml", "--set", sets[0]];
    let done = within(&["prlimit", "--as=4000000000"], &lab.command(&args))
        .output()
        .unwrap();
    Done::of(done).expect(2, &["the order of its", "is free", "ask for fewer samples"]);
    let done = lab.run(&["train.steps=2"]);
    assert!(done.expect(0, &[]).out.contains("sample order: "), "{}", done.out);
}

/// Also by `manifest check`, which orders nothing: on this machine the run would be refused. A longer
/// one no machine can order.
#[test]
fn an_order_without_room_is_foreseen() {
    let lab = Lab::new();
    let check = |set: &str| ["manifest", "check", "run.yaml", "--set", set].map(str::to_string);
    let limited = |set: &str| {
        let args = check(set);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Done::of(
            within(&["prlimit", "--as=4000000000"], &lab.command(&args))
                .output()
                .unwrap(),
        )
    };
    let done = limited("train.steps=500000000");
    done.well();
    let says = ["missing", "data.train: ", "the order of its", "is free"];
    assert!(says.iter().all(|says| done.out.contains(says)), "{}", done.out);
    assert!(!limited("train.steps=20").out.contains("missing"));
    let says = ["the order of one dataset holds below 2^32 - 2", "blend them"];
    limited("train.steps=2147483648").expect(2, &says);
    let says = ["valid", "one sample takes 17"];
    limited("data.split='9999,1,0'").expect(2, &says);
}

/// With little memory, a thread's stack may be refused, or in the thread itself the stack of its signal
/// handlers: every limit ends by a message, not by Rust's panic.
#[test]
fn little_memory_for_threads_ends_without_a_panic() {
    let lab = Lab::new();
    let mut codes = Vec::new();
    for mib in (12..80).step_by(4) {
        let limit = format!("--data={}", mib << 20);
        let _ = fs::remove_dir_all(lab.path("out"));
        let args = ["run", "run.yaml", "--set", "log.folder=out", "--set", "train.steps=2"];
        let done = Done::of(
            within(&["prlimit", &limit], &lab.command(&args))
                .output()
                .unwrap(),
        );
        assert!(!done.err.contains("panicked"), "{mib} MiB: {}", done.err);
        assert!(matches!(done.code, Some(0..=3)), "{mib} MiB: {:?} {}", done.code, done.err);
        assert!(done.code == Some(0) || !done.err.is_empty(), "{mib} MiB says nothing");
        codes.push(done.code);
    }
    assert!(codes.contains(&Some(1)), "{codes:?}");
}

/// With a limit of threads, from one to more than are needed, every command succeeds or names the thread
/// that it could not start, and leaves no unfinished output.
#[test]
fn threads_that_cannot_be_had_are_an_error() {
    let lab = Lab::new();
    let Some(most) = Restricted::of(&lab) else { return };
    lab.run(&["train.steps=3"]).well();
    fs::write(lab.path("t.txt"), "some text\n".repeat(40_000)).unwrap();
    most.give_away();
    for args in [
        &["run", "run.yaml", "--set", "log.folder=out", "--set", "train.threads=2"][..],
        &["run", "run.yaml", "--set", "log.folder=out", "--set", "topology.data=2"],
        &["data", "build", "t.txt", "-t", "bytes", "-o", "out", "--threads", "3"],
        &["data", "samples", "corpus", "corpus", "--seq-len", "16"],
        &["estimate", "run.yaml", "--search", "--gpus", "8", "--hardware", "h100-80g"],
        &["export", "runs/a", "--output", "out"],
        &["eval", "runs/a", "--data", "corpus"],
        &["bench", "--quick"],
    ] {
        let mut codes = Vec::new();
        for threads in 1..9 {
            let done = most.within(threads, args);
            codes.push(done.code);
            let said = format!("{args:?} with {threads}: {:?}\n{}", done.code, done.err);
            assert!(!done.err.contains("panicked"), "{said}");
            let refused = ["cannot start", "cannot be started", "thread"];
            assert!(done.code == Some(0) || refused.iter().any(|w| done.err.contains(w)), "{said}");
            assert!(matches!(done.code, Some(0..=3)), "{said}");
            for name in fs::read_dir(lab.path(""))
                .unwrap()
                .map(|e| e.unwrap().file_name())
            {
                let name = name.to_string_lossy().into_owned();
                assert!(!name.contains("partial") && !name.contains(".tmp-"), "{name}, {said}");
                if name.starts_with("out") {
                    let path = lab.path(&name);
                    fs::remove_dir_all(&path)
                        .or_else(|_| fs::remove_file(&path))
                        .unwrap();
                }
            }
        }
        assert!(codes[0] != Some(0), "{args:?}: {codes:?}");
    }
}

/// User without other processes, whose threads can be limited; root's cannot.
struct Restricted<'a> {
    lab: &'a Lab,
    user: u32,
}

impl Restricted<'_> {
    fn of(lab: &Lab) -> Option<Restricted<'_>> {
        let root = rustix::process::geteuid().is_root();
        root.then(|| Restricted { lab, user: 1_000_000 + std::process::id() })
    }

    /// Everything in the folder, and the program, are the user's.
    fn give_away(&self) {
        fs::copy(env!("CARGO_BIN_EXE_gptrain"), self.lab.path("gptrain")).unwrap();
        let user = format!("{0}:{0}", self.user);
        let done = Command::new("chown")
            .args(["-R", &user])
            .arg(self.lab.path(""))
            .output();
        assert!(done.unwrap().status.success());
    }

    fn within(&self, threads: usize, args: &[&str]) -> Done {
        let user = ["--reuid", "--regid"].map(|option| format!("{option}={}", self.user));
        let limit = format!("--nproc={threads}");
        let outer = ["setpriv", &user[0], &user[1], "--clear-groups", "prlimit", &limit];
        let command = self.lab.command(args);
        let mut own = Command::new(self.lab.path("gptrain"));
        own.args(command.get_args()).current_dir(self.lab.path(""));
        own.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Done::of(within(&outer, &own).output().unwrap())
    }
}

#[test]
fn a_mean_that_runs_out_of_files_leaves_nothing() {
    let lab = Lab::new();
    lab.run(&["checkpoint.interval=6"]).well();
    let average = ["average", "runs/a/checkpoints/step-00000006", "runs/a", "--output", "out"];
    let mut failed = 0;
    for files in 4..24 {
        let limit = format!("--nofile={files}");
        let done = Done::of(
            within(&["prlimit", &limit], &lab.command(&average))
                .output()
                .unwrap(),
        );
        let names = fs::read_dir(lab.path(""))
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let left: Vec<_> = names
            .filter(|name| name.to_string_lossy().contains("out"))
            .collect();
        match done.code {
            Some(0) => fs::remove_dir_all(lab.path("out")).unwrap(),
            _ => assert!(left.is_empty(), "{files} files: {left:?}\n{}", done.err),
        }
        failed += usize::from(done.err.contains("Too many open files"));
    }
    assert!(failed > 2, "{failed}");
}

#[test]
fn more_threads_than_a_machine_has_are_a_mistake() {
    let lab = Lab::new();
    lab.run(&["train.threads=3000"])
        .expect(2, &["train.threads", "1024"]);
}

#[test]
fn a_slow_warm_up_is_no_damage() {
    let lab = Lab::new();
    // After step 3 the rate is 1.8e-8: less than a float next to 1 can show.
    let slow = ["lr={peak: 3e-8, warmup_samples: 20, decay: constant}", "train.steps=3"];
    lab.run(&slow).well();
    let done = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
    done.well();
    assert!(done.out.contains("as initialised"), "{}", done.out);
}

/// A pipe would be waited for, a device read until memory is out.
#[test]
fn what_is_not_a_file_is_refused_by_its_name() {
    let lab = Lab::new();
    let pipe = |name: &str| mkfifoat(CWD, lab.path(name), Mode::RUSR | Mode::WUSR).unwrap();
    lab.run(&["train.steps=2"]).well();
    let own =
        ["status.json", "events.jsonl", "metrics.jsonl", "checkpoints/latest", "manifest.yaml"];
    for name in own.into_iter().chain(["starts.json"]) {
        let path = lab.path("runs/a").join(name);
        let kept = fs::read(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        pipe(&format!("runs/a/{name}"));
        lab.run(&[])
            .expect(2, &[name, "it is a pipe, not a regular file", "→ remove it"]);
        for reader in [&["status", "runs/a"][..], &["report", "runs/a", "--overwrite"]] {
            let done = lab.gptrain(reader);
            assert!(done.code == Some(0) || done.err.contains("a pipe"), "{name}: {}", done.err);
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, kept).unwrap();
    }
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/tokenizer.json");
    lab.run(&["train.steps=1", "model.vocab=4096", "log.folder=runs/b"])
        .well();
    let tasks = ["eval", "runs/b", "--tasks", "/dev/zero", "--tokenizer", tokenizer];
    lab.gptrain(&tasks).expect(2, &["/dev/zero", "a device"]);
    let calibrate = ["estimate", "run.yaml", "--calibrate", "/dev/zero"];
    lab.gptrain(&calibrate)
        .expect(2, &["/dev/zero", "a device"]);
    fs::remove_file(lab.path("runs/a/starts.json")).unwrap();
    fs::remove_file(lab.path("runs/a/events.jsonl")).unwrap();
    fs::write(lab.path("precious"), "precious").unwrap();
    symlink(lab.path("precious"), lab.path("runs/a/events.jsonl")).unwrap();
    lab.run(&["train.steps=4"]).well();
    assert_eq!(fs::read(lab.path("precious")).unwrap(), b"precious");
}

#[test]
fn outputs_of_a_run_are_not_written_through_links_or_over_others() {
    let lab = Lab::new();
    fs::write(lab.path("precious"), "precious").unwrap();
    fs::create_dir_all(lab.path("runs/a")).unwrap();
    symlink(lab.path("precious"), lab.path("runs/a/run.lock")).unwrap();
    lab.run(&["train.steps=2"]).expect(1, &["runs/a"]);
    fs::remove_file(lab.path("runs/a/run.lock")).unwrap();
    for name in ["manifest.yaml", "report.html"] {
        symlink(lab.path("precious"), lab.path("runs/a").join(name)).unwrap();
    }
    lab.run(&["train.steps=2"]).well();
    lab.gptrain(&["report", "runs/a"]).well();
    lab.gptrain(&["report", "runs/a"]).well();
    lab.gptrain(&["report", "runs/a", "-o", "precious"])
        .expect(2, &["precious exists"]);
    let plot = ["inspect-ckpt", "runs/a", "--plot", "precious"];
    lab.gptrain(&plot).expect(2, &["precious exists"]);
    let trace = ["run", "run.yaml", "--set", "log.folder=b", "--set", "train.steps=2"];
    let traced = [&trace[..], &["--trace", "precious", "--trace-steps", "1..2"]].concat();
    lab.gptrain(&traced)
        .expect(2, &["there is another file, which is not a trace"]);
    assert_eq!(fs::read(lab.path("precious")).unwrap(), b"precious");
    let traced = [&trace[..], &["--trace", "t.json", "--trace-steps", "1..2"]].concat();
    lab.gptrain(&traced).well();

    // An export that finds no room leaves nothing in the way of the next.
    let export = ["export", "runs/a", "--hf", "out"];
    let shell = "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\"";
    let full = within(&["sh", "-c", shell], &lab.command(&export))
        .output()
        .unwrap();
    Done::of(full).expect(1, &["cannot write", "model.safetensors", "File too large"]);
    lab.gptrain(&export).well();
}

#[test]
fn an_index_that_is_no_file_is_not_read() {
    let lab = Lab::new();
    let step = lab.path("step-00000001");
    fs::create_dir(&step).unwrap();
    symlink("/dev/zero", step.join("index.json")).unwrap();
    let done = lab.gptrain(&["inspect-ckpt", "step-00000001"]);
    done.expect(1, &["is not a checkpoint: index.json: it is a device"]);
}

/// Under a low limit of the address space a command ends by a message, not by an abort.
#[test]
fn memory_that_is_refused_is_a_message_with_a_remedy() {
    let lab = Lab::new();
    fs::write(lab.path("big.txt"), vec![b'a'; 60_000_000]).unwrap();
    let program = env!("CARGO_BIN_EXE_gptrain");
    let build = "data build big.txt -t bytes -o x --threads 1";
    let script = format!("ulimit -v 160000; exec {program} {build}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(lab.path(""));
    let says = ["gptrain: out of memory: the system refused ", "    → lower ", "ulimit -v"];
    Done::of(command.output().unwrap()).expect(1, &says);
    assert!(!lab.path("x.bin").exists());
}
