//! The real binary, on a small dataset in a folder of its own.

use gptrain::base::rng;
pub use gptrain::base::testing::until;
use gptrain::data::indexed::{TokenType, Writer};
use gptrain::estimate::parts::PartTable;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// A folder with a dataset and a manifest `run.yaml` that trains in about a second.
pub struct Lab {
    folder: TempDir,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::with_documents(40)
    }

    pub fn with_documents(documents: u64) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        dataset(&folder.path().join("corpus"), documents, 64);
        let lab = Lab { folder };
        fs::write(lab.path("run.yaml"), MANIFEST).unwrap();
        lab
    }

    /// The same with documents of a plain pattern, in `clean`, and without any, in `noise`: a sample of
    /// these in 200 of those makes the loss of its step of four samples jump by a nat.
    pub fn poisoned() -> Lab {
        let lab = Lab::new();
        for (name, noisy) in [("clean", false), ("noise", true)] {
            let mut writer = Writer::create(&lab.path(name), TokenType::U16).unwrap();
            for document in 0..4 {
                let noise = |i: u64| rng::below(document, i, 64) as u32;
                let token = |i: u64| if noisy { noise(i) } else { (i % 8) as u32 };
                writer
                    .sequence(&(0..6000).map(token).collect::<Vec<_>>())
                    .unwrap();
                writer.end_document();
            }
            writer.finish().unwrap();
        }
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `gptrain ARGS`, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_remove("RUST_BACKTRACE");
        command.env("GPTRAIN_CACHE", self.path("cache"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// One rank of `world`, as torchrun would start it.
    pub fn rank(&self, rank: usize, world: usize, port: u16, sets: &[&str]) -> Command {
        let mut command = self.command(&run_args(sets));
        let (rank, world) = (rank.to_string(), world.to_string());
        command.env("RANK", &rank).env("LOCAL_RANK", &rank);
        command
            .env("WORLD_SIZE", &world)
            .env("LOCAL_WORLD_SIZE", &world);
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        command
    }

    /// All ranks as processes, left running.
    pub fn ranks(&self, world: usize, sets: &[&str]) -> Ranks {
        let port = free_port();
        let start = |rank| self.rank(rank, world, port, sets).spawn().unwrap();
        Ranks { children: (0..world).map(start).collect() }
    }

    /// `gptrain ARGS`, to its end.
    pub fn gptrain(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    /// `gptrain run run.yaml --set …`, to its end, with variables of the environment.
    pub fn run_with(&self, variables: &[(&str, &Path)], sets: &[&str]) -> Done {
        self.gptrain_with(variables, &run_args(sets))
    }

    /// `gptrain ARGS`, to its end, with variables of the environment.
    pub fn gptrain_with(&self, variables: &[(&str, &Path)], args: &[&str]) -> Done {
        Done::of(
            self.command(args)
                .envs(variables.iter().copied())
                .output()
                .unwrap(),
        )
    }

    /// `gptrain run run.yaml --set …`, to its end.
    pub fn run(&self, sets: &[&str]) -> Done {
        self.gptrain(&run_args(sets))
    }

    /// The same, where no file may grow beyond `bytes`.
    pub fn limited(&self, bytes: u64, sets: &[&str]) -> Done {
        Done::of(
            limited(&self.command(&run_args(sets)), bytes)
                .output()
                .unwrap(),
        )
    }

    /// The same, left running.
    pub fn start(&self, sets: &[&str]) -> Child {
        self.command(&run_args(sets)).spawn().unwrap()
    }

    /// The lines of a run's metrics.jsonl with a training loss.
    pub fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines
            .filter(|line: &serde_json::Value| line.get("grad_norm").is_some())
            .collect()
    }

    /// The tables of planned and measured parts in a run's record.
    pub fn part_tables(&self, run: &str) -> Vec<PartTable> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        let with_parts = text.lines().filter(|line| line.contains("\"parts\""));
        with_parts
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Bit-exact results of a run's steps: (step, loss, gradient norm, learning rate).
    pub fn losses(&self, run: &str) -> Vec<[u64; 4]> {
        let number = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap().to_bits();
        let metrics = self.metrics(run);
        let keys = ["step", "lm_loss", "grad_norm", "lr"];
        metrics
            .iter()
            .map(|line| keys.map(|key| number(line, key)))
            .collect()
    }

    /// Waits until a run has taken `steps` steps, as long as it gets on.
    pub fn wait_for_steps(&self, run: &str, steps: usize) {
        let mut taken = 0;
        while taken < steps {
            let more = || self.metrics(run).len() > taken;
            until(&format!("{run} gets on from step {taken} to {steps}"), more);
            taken = self.metrics(run).len();
        }
    }
}

/// Failure line of a failed run's processes: exactly one prints it, as one line, and each ends with
/// code 3.
pub fn verdict(ended: &[Done]) -> String {
    let codes: Vec<_> = ended.iter().map(|done| done.code).collect();
    let said: Vec<&str> = ended.iter().flat_map(|done| done.err.lines()).collect();
    assert_eq!(codes, vec![Some(3); ended.len()], "{said:#?}");
    assert_eq!(said.len(), 1, "{said:#?}");
    said[0].to_string()
}

/// The processes of a run of several ranks.
pub struct Ranks {
    pub children: Vec<Child>,
}

impl Ranks {
    pub fn pid(&self, rank: usize) -> Pid {
        Pid::from_child(&self.children[rank])
    }

    pub fn signal(&self, rank: usize, signal: Signal) {
        kill_process(self.pid(rank), signal).unwrap();
    }

    /// Whether a rank has ended.
    pub fn ended(&self, rank: usize) -> bool {
        has_ended(&self.children[rank])
    }

    /// Waits until a run has taken so many steps; fails at once if its ranks end before, as they do
    /// where the limit under test was too short for the load of the machine.
    pub fn reach(&self, lab: &Lab, run: &str, steps: usize) {
        let reached = || lab.metrics(run).len() >= steps;
        let ended = || self.children.iter().all(has_ended);
        until(&format!("{run} takes {steps} steps"), || reached() || ended());
        assert!(reached(), "its ranks have ended before {run} took {steps} steps");
    }

    /// Waits until all of these have ended by themselves.
    pub fn end(mut self, ranks: impl IntoIterator<Item = usize>) -> Vec<Done> {
        let ranks: Vec<usize> = ranks.into_iter().collect();
        for rank in &ranks {
            until(&format!("rank {rank} has ended"), || self.ended(*rank));
        }
        let read = |child: &mut Child| {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
            child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
            Done::of(Output { status: child.wait().unwrap(), stdout: out, stderr: err })
        };
        ranks
            .iter()
            .map(|rank| read(&mut self.children[*rank]))
            .collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process of the rank that a supervisor has started.
pub fn rank_of(supervisor: Pid) -> Option<Pid> {
    let pid = supervisor.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

/// State of a process as the kernel has it: T if it is stopped, Z if it has ended and was not waited for. None
/// if it is gone.
pub fn process_state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process has ended; it is still to be waited for.
pub fn has_ended(child: &Child) -> bool {
    waitid(WaitId::Pid(Pid::from_child(child)), ENDED)
        .unwrap()
        .is_some()
}

/// Asks whether a process has ended, and leaves it to be waited for.
const ENDED: WaitIdOptions = WaitIdOptions::EXITED
    .union(WaitIdOptions::NOHANG)
    .union(WaitIdOptions::NOWAIT);

/// A command under which no file may grow beyond `bytes`.
pub fn limited(command: &Command, bytes: u64) -> Command {
    within(&["prlimit", &format!("--fsize={bytes}")], command)
}

/// A command that another one starts: `prlimit --as=1000000 COMMAND`.
pub fn within(outer: &[&str], command: &Command) -> Command {
    let mut whole = Command::new(outer[0]);
    whole
        .args(&outer[1..])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole.current_dir(command.get_current_dir().unwrap());
    whole
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    whole
}

/// Unused port of this machine, below the range of ephemeral ports.
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let asked = || ASKED.fetch_add(1, Ordering::Relaxed);
    // Other test processes begin elsewhere.
    let first = std::process::id().wrapping_mul(61);
    std::iter::repeat_with(asked)
        .map(|asked| 10_000 + (first.wrapping_add(asked) % 20_000) as u16)
        .find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .expect("a free port")
}

pub fn run_args<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    ["run", "run.yaml"].into_iter().chain(sets).collect()
}

/// Result of a command.
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn of(output: Output) -> Done {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        Done { code: output.status.code(), out, err }
    }

    /// Asserts that it ended well.
    pub fn well(&self) {
        self.expect(0, &[]);
    }

    /// Asserts the exit code, and that stderr holds each of the words.
    pub fn expect(&self, code: i32, words: &[&str]) -> &Done {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in:\n{}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

// Ranks on a busy machine come late, and none is to say that it waits.
const MANIFEST: &str = "
model: {layers: 2, hidden: 32, heads: 4, vocab: 64, seq_len: 16}
data: {train: corpus, split: '80,20,0'}
batch: {micro: 2, global: 4}
lr: {peak: 3e-3, min: 3e-4, warmup_samples: 8, decay: cosine}
checkpoint: {interval: 5}
log: {folder: runs/a, interval: 1, tensorboard: false}
train: {steps: 12, seed: 3, threads: 1, eval_interval: 6, eval_samples: 3}
comm: {start_timeout_s: 480}
";

/// Documents of a repeating pattern with some noise: a model can learn it.
fn dataset(prefix: &Path, documents: u64, vocab: u64) {
    let mut writer = Writer::create(prefix, TokenType::U16).unwrap();
    for document in 0..documents {
        let noise = |i: u64| rng::below(document, i, vocab) as u32;
        let token = |i: u64| if noise(2 * i) < 8 { noise(2 * i + 1) } else { (i % 8) as u32 };
        let tokens: Vec<u32> = (0..50 + noise(1000) as u64).map(token).collect();
        writer.sequence(&tokens).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
}
