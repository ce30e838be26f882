//! Every command with a full disk, a closed output, little memory, a folder of another user, or a signal
//! to end: reported work is complete, an output is complete or absent,
//! and the same command does it afterwards.

use super::{Attack, Dice, furnished, sane};
use crate::common::binary::{Done, Lab, within};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A file, with its content.
type Written = (PathBuf, Vec<u8>);

/// A command, and what it writes.
type Line = (&'static str, &'static [&'static str]);

#[rustfmt::skip]
const COMMANDS: &[Line] = &[
    ("run run.yaml --set train.steps=6 --set log.folder=out", &[]),
    ("run run.yaml --set train.steps=6 --set log.folder=out --set topology.data=2", &[]),
    ("data build text.txt -t bytes -o out", &["out.bin", "out.idx"]),
    ("data build lines.jsonl -t tok.json -o out --append-eod", &["out.bin", "out.idx"]),
    ("data train-tokenizer text.txt --vocab 300 -o out", &["out"]),
    ("data merge corpus corpus -o out", &["out.bin", "out.idx"]),
    ("data check corpus --digest", &[]),
    ("data inspect corpus", &[]),
    ("data samples corpus --seq-len 16 --json", &[]),
    ("manifest check run.yaml", &[]),
    ("manifest show run.yaml", &[]),
    ("manifest schema", &[]),
    ("estimate run.yaml --json", &[]),
    ("inspect-ckpt runs/a --deep", &[]),
    ("export runs/a --hf out", &["out"]),
    ("average runs/a/checkpoints/step-00000002 runs/a --output out", &["out"]),
    ("import --hf hf --output out", &["out"]),
    ("report runs/a -o out", &["out"]),
    ("eval runs/a --data corpus --json", &[]),
    ("sample runs/a --tokens 8 --tokenizer tok.json", &[]),
];

/// A run, a dataset and a tokenizer that the commands read, and what each writes when nothing is done
/// to it.
pub struct Duress {
    lab: Lab,
    whole: Vec<Option<Vec<Written>>>,
}

impl Duress {
    pub fn new() -> Duress {
        let lab = furnished(3000, 800, 2);
        Duress { lab, whole: vec![None; COMMANDS.len()] }
    }

    /// Result of command `i` without interference: (code, files).
    fn undisturbed(&mut self, i: usize) {
        let (line, outputs) = COMMANDS[i];
        let done = Done::of(command(&self.lab, line).output().unwrap());
        assert_eq!(done.code, Some(0), "{line}: {}{}", done.out, done.err);
        let mut files = Vec::new();
        outputs
            .iter()
            .for_each(|output| collect(&self.lab.path(output), &mut files));
        self.whole[i] = Some(files);
        self.clear();
    }

    /// Takes away what the commands write.
    fn clear(&self) {
        for entry in fs::read_dir(self.lab.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("out") || name.starts_with(".out") {
                let _ = fs::remove_file(&entry);
                let _ = fs::remove_dir_all(&entry);
            }
        }
    }
}

fn command(lab: &Lab, line: &str) -> Command {
    lab.command(&line.split_whitespace().collect::<Vec<_>>())
}

/// All files below a path, with their content; stamps of an import's and a mean's runs left out.
fn collect(path: &Path, files: &mut Vec<Written>) {
    if path.is_dir() {
        let mut inner: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        inner.sort();
        inner.iter().for_each(|path| collect(path, files));
    } else if let Ok(bytes) = fs::read(path) {
        files.push((path.into(), bytes));
    }
}

impl Attack for Duress {
    fn case(&mut self, dice: &mut Dice) {
        let i = dice.below(COMMANDS.len() as u64) as usize;
        if self.whole[i].is_none() {
            self.undisturbed(i);
        }
        let (line, outputs) = COMMANDS[i];
        let (how, done, killed) = disturbed(&self.lab, line, dice);
        let what = format!("{line}, {how}");
        sane(&done, &what, killed);
        let mut files = Vec::new();
        outputs
            .iter()
            .for_each(|output| collect(&self.lab.path(output), &mut files));
        let whole = self.whole[i].as_ref().unwrap();
        let same = alike(&files, whole);
        let said = format!("{what}\nended with {:?}\n{}", done.code, done.err);
        match done.code {
            Some(0) => assert!(same, "a damaged result: {said}"),
            // A pair's first file may be there: its second comes at once after it.
            _ => assert!(same || files.len() < whole.len().max(1), "a half result: {said}"),
        }
        if outputs.is_empty() && line.starts_with("run") {
            let on = Done::of(command(&self.lab, line).output().unwrap());
            assert_eq!(on.code, Some(0), "and again, {said}\n{}", on.err);
            assert_eq!(self.lab.metrics("out").len(), 6, "{said}");
            let sound = Done::of(
                command(&self.lab, "inspect-ckpt out --deep")
                    .output()
                    .unwrap(),
            );
            assert_eq!(sound.code, Some(0), "{said}\n{}", sound.err);
        }
        self.clear();
    }
}

/// The same files of the same lengths; what a dataset, a tokenizer or weights consist of to the byte.
fn alike(found: &[Written], whole: &[Written]) -> bool {
    let exact = ["bin", "idx", "safetensors"];
    let same = |((path, bytes), (other, all)): (&Written, &Written)| {
        let named = path
            .extension()
            .is_some_and(|end| exact.iter().any(|e| end == *e));
        // A new run's number is in its checkpoints.
        let by_bytes = named && !path.iter().any(|name| name == "checkpoints");
        path == other && (bytes == all || !by_bytes)
    };
    found.len() == whole.len() && found.iter().zip(whole).all(same)
}

/// The command under one kind of duress: which, how it ended, and whether a signal may have ended it.
fn disturbed(lab: &Lab, line: &str, dice: &mut Dice) -> (String, Done, bool) {
    let plain = command(lab, line);
    let limited = |limit: String| {
        let done = Done::of(within(&["prlimit", &limit], &plain).output().unwrap());
        (limit, done, false)
    };
    match dice.below(7) {
        0 => limited(format!("--fsize={}", 1 << dice.below(20))),
        1 => limited(format!("--as={}", 250_000_000 + dice.below(500_000_000))),
        2 => limited(format!("--nofile={}", 8 + dice.below(16))),
        3 => ("its output closed".into(), closed(plain, dice), false),
        4 => not_its_own(lab, &plain),
        _ => {
            let scale = 8 + dice.below(13); // up to a second, more often soon
            let wait = Duration::from_micros(dice.below(1 << scale));
            let signal = [Signal::TERM, Signal::INT][dice.below(2) as usize];
            (format!("{signal:?} after {wait:?}"), told_to_end(plain, signal, wait), true)
        }
    }
}

/// Runs with a closed standard output, a closed standard error, or both.
fn closed(mut command: Command, dice: &mut Dice) -> Done {
    let which = 1 + dice.below(3);
    let mut child = command.spawn().unwrap();
    let read = |pipe: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        pipe.map(|pipe| pipe.read_to_end(&mut bytes));
        bytes
    };
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    if which & 1 > 0 {
        out = None;
    }
    if which & 2 > 0 {
        err = None;
    }
    let stderr = read(err.as_mut().map(|pipe| pipe as &mut dyn Read));
    let stdout = read(out.as_mut().map(|pipe| pipe as &mut dyn Read));
    let status = child.wait().unwrap();
    let mut done = Done::of(Output { status, stdout, stderr });
    if which & 2 > 0 && matches!(done.code, Some(1..=5)) {
        done.err = "(standard error was closed)".into();
    }
    done
}

/// Another user may read the folder and not write to it.
fn not_its_own(lab: &Lab, plain: &Command) -> (String, Done, bool) {
    let how = "in a folder that it may not write to".to_string();
    let folder = lab.path("");
    let modes = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    modes(0o555);
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let program = plain.get_program();
    let may_start = || {
        Command::new(other[0])
            .args(&other[1..])
            .arg(program)
            .arg("-V")
            .output()
    };
    let outer = match geteuid().is_root() {
        false => &["env"][..],
        true if may_start().is_ok_and(|done| done.status.success()) => &other,
        true => &["prlimit", "--fsize=0"], // another user cannot read the program
    };
    let done = Done::of(within(outer, plain).output().unwrap());
    modes(0o755);
    (how, done, false)
}

fn told_to_end(mut command: Command, signal: Signal, wait: Duration) -> Done {
    let mut child: Child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(wait);
    let _ = kill_process(Pid::from_child(&child), signal);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    Done::of(Output { status: child.wait().unwrap(), stdout: out, stderr: err })
}
