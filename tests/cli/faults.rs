//! A kill, and an error, at the system calls by which commands change files (`tests/tracer`). The output
//! is then the old one, the new one or absent; the same command succeeds; and nothing else is left.
//!
//! The suite takes some of the calls, among them the last ones, which give outputs their names. All of them,
//! with every kind of error: `GPTRAIN_EVERY_FAULT=1`.

use crate::common::binary::{Done, Lab, run_args};
use crate::common::tracer::{Fault, Tracer};
use crate::random::{furnished, sane};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const ERRORS: [Errno; 3] = [Errno::NOSPC, Errno::IO, Errno::ACCESS];

/// Last calls of a command, which give its output its name: all of them are taken.
const LAST: usize = 9;

/// A command and its output.
struct Case {
    line: &'static str,
    outputs: &'static [&'static str],
    /// Output without which the others are not readable.
    key: &'static str,
    /// Command that makes the output which this one replaces.
    old: Option<&'static str>,
}

const DATASET: &[&str] = &["out.bin", "out.idx", "out.tokenizer"];

/// Files of an output by name; None if it is not readable.
type Files = Option<BTreeMap<String, Vec<u8>>>;

#[test]
fn datasets_and_tokenizers_are_whole_or_absent() {
    let build = "data build text.txt -t tok.json -o out";
    let old = Some("data build lines.jsonl -t bytes -o out --append-eod");
    each_fault(&[
        Case { line: build, outputs: DATASET, key: "out.idx", old: None },
        Case {
            line: "data build text.txt -t tok.json -o out --overwrite",
            outputs: DATASET,
            key: "out.idx",
            old,
        },
        Case {
            line: "data build lines.jsonl -t tok.json -o out --shuffle 3",
            outputs: DATASET,
            key: "out.idx",
            old: None,
        },
        Case {
            line: "data merge corpus corpus -o out --overwrite",
            outputs: DATASET,
            key: "out.idx",
            old,
        },
        Case {
            line: "data train-tokenizer text.txt --vocab 290 -o out --overwrite",
            outputs: &["out"],
            key: "out",
            old: Some("data train-tokenizer lines.jsonl --vocab 280 -o out"),
        },
    ]);
}

#[test]
fn folders_are_whole_or_absent() {
    let export = "export runs/a --hf out";
    let import = "import --hf hf --output out";
    let average = "average runs/a/checkpoints/step-00000002 runs/a --output out";
    let folder = |line, old| Case { line, outputs: &["out"], key: "out", old };
    each_fault(&[
        folder(export, None),
        folder(
            "export runs/a --hf out --overwrite",
            Some("export runs/a/checkpoints/step-00000002 --hf out"),
        ),
        folder(import, None),
        folder("import --hf hf --output out --overwrite", Some(average)),
        folder("convert hf out --to megatron --pipeline 2", None),
        folder(average, None),
        folder(
            "average runs/a/checkpoints/step-00000002 runs/a --output out --overwrite",
            Some(import),
        ),
    ]);
}

fn each_fault(cases: &[Case]) {
    let lab = furnished(60, 40, 2);
    let Some(tracer) = Tracer::of_changes_in(&lab.path("")) else { return };
    cases
        .iter()
        .for_each(|case| Sweep::new(&lab, case).run(&tracer));
}

/// Faults of one command.
struct Sweep<'a> {
    lab: &'a Lab,
    case: &'a Case,
    old: Files,
    new: Files,
    /// Names in the folder when no command has left anything.
    names: BTreeSet<String>,
}

impl Sweep<'_> {
    fn new<'a>(lab: &'a Lab, case: &'a Case) -> Sweep<'a> {
        let clean = names(&lab.path(""));
        let mut sweep = Sweep { lab, case, old: None, new: None, names: clean };
        if let Some(old) = case.old {
            sweep.gptrain(old).expect(0, &[]);
            sweep.old = sweep.read();
        }
        sweep.reset();
        sweep.gptrain(case.line).expect(0, &[]);
        sweep.new = sweep.read();
        sweep.names.extend(names(&lab.path("")));
        sweep
    }

    fn run(&self, tracer: &Tracer) {
        self.reset();
        let plain = self.lab.command(&words(self.case.line));
        Done::of(tracer.command(Fault::None, 0, &plain).output().unwrap()).well();
        let (calls, _) = tracer.report();
        assert!(calls > 5, "{}: {calls} calls", self.case.line);
        for (at, fault) in faults(calls) {
            self.reset();
            let done = Done::of(tracer.command(fault, at, &plain).output().unwrap());
            let (_, call) = tracer.report();
            let what = format!("{}: {fault:?} at call {at} of {calls}, {call}", self.case.line);
            self.check(&done, matches!(fault, Fault::Kill), &what);
        }
        self.clear();
    }

    /// Checks the result of a command with a fault, and the same command again.
    fn check(&self, done: &Done, killed: bool, what: &str) {
        sane(done, what, killed);
        let said = || format!("{what}\nended with {:?}\n{}", done.code, done.err);
        let found = self.read();
        let is_new = self.is_new(&found);
        // Several files of a dataset do not get their names at once: the next command puts them back.
        let may_be_absent = self.old.is_none() || (killed && self.case.outputs.len() > 1);
        assert!(is_new || found == self.old || (found.is_none() && may_be_absent), "{}", said());
        // An error of a cleanup after the last rename is a warning.
        assert!(killed || (done.code == Some(0)) == is_new, "{}", said());
        let again = self.gptrain(self.case.line);
        if is_new && self.case.old.is_none() {
            again.expect(2, &[]); // it exists
        } else {
            assert_eq!(again.code, Some(0), "{}\nand again:\n{}", said(), again.err);
        }
        assert!(self.is_new(&self.read()), "{}\nand again:\n{}", said(), again.err);
        assert_eq!(names(&self.lab.path("")), self.names, "{}\nand again:\n{}", said(), again.err);
    }

    /// Whether these are the files of the command without faults: of the same lengths, and where no number
    /// of a run is in them, of the same bytes.
    fn is_new(&self, found: &Files) -> bool {
        let (Some(found), Some(new)) = (found, &self.new) else { return false };
        let same = |(name, bytes): (&String, &Vec<u8>)| {
            let is_stamped = name.contains("checkpoints/");
            let is_like = |all: &Vec<u8>| bytes.len() == all.len() && (is_stamped || bytes == all);
            new.get(name).is_some_and(is_like)
        };
        found.len() == new.len() && found.iter().all(same)
    }

    fn read(&self) -> Files {
        let mut files = BTreeMap::new();
        for name in self.case.outputs {
            collect(&self.lab.path(name), name, &mut files);
        }
        self.lab.path(self.case.key).exists().then_some(files)
    }

    /// Makes the folder as it was before the command.
    fn reset(&self) {
        self.clear();
        for (name, bytes) in self.old.iter().flatten() {
            let path = self.lab.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    fn clear(&self) {
        self.case
            .outputs
            .iter()
            .for_each(|name| remove(&self.lab.path(name)));
    }

    fn gptrain(&self, line: &str) -> Done {
        self.lab.gptrain(&words(line))
    }
}

/// Faults of a command with so many calls: all of them, or some.
fn faults(calls: usize) -> Vec<(usize, Fault)> {
    let every = std::env::var_os("GPTRAIN_EVERY_FAULT").is_some();
    let stride = (calls / 4).max(1);
    let is_taken = |at: &usize| every || *at < 4 || at + LAST > calls || at.is_multiple_of(stride);
    let mut faults = Vec::new();
    for at in (1..=calls).filter(is_taken) {
        faults.push((at, Fault::Kill));
        let errors = if every { &ERRORS[..] } else { &ERRORS[at % 3..=at % 3] };
        faults.extend(errors.iter().map(|errno| (at, Fault::Error(*errno))));
    }
    faults
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}

fn collect(path: &Path, name: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    if path.is_dir() {
        for inner in names(path) {
            collect(&path.join(&inner), &format!("{name}/{inner}"), files);
        }
    } else if let Ok(bytes) = fs::read(path) {
        files.insert(name.to_string(), bytes);
    }
}

#[test]
fn a_run_continues_after_any_fault_without_a_gap_in_its_record() {
    let lab = Lab::new();
    let Some(tracer) = Tracer::of_changes_in(&lab.path("")) else { return };
    let sets = [
        "train.steps=6",
        "checkpoint.interval=2",
        "checkpoint.wait_for_storage_s=0",
        "log.folder=out",
    ];
    let plain = lab.command(&run_args(&sets));
    Done::of(tracer.command(Fault::None, 0, &plain).output().unwrap()).well();
    let (calls, _) = tracer.report();
    let losses = lab.losses("out");
    assert_eq!(losses.len(), 6);
    for (at, fault) in faults(calls) {
        remove(&lab.path("out"));
        let done = Done::of(tracer.command(fault, at, &plain).output().unwrap());
        let (_, call) = tracer.report();
        let what = format!("{fault:?} at call {at} of {calls}, {call}");
        sane(&done, &what, matches!(fault, Fault::Kill));
        let again = lab.run(&sets);
        let said = format!("{what}\nended with {:?}\n{}\nthen\n{}", done.code, done.err, again.err);
        assert_eq!(again.code, Some(0), "{said}");
        assert_eq!(lab.losses("out"), losses, "{said}");
        let left: Vec<_> = names(&lab.path("out/checkpoints")).into_iter().collect();
        assert!(left.iter().all(|name| !name.contains(".tmp-")), "{left:?}, {said}");
    }
    lab.gptrain(&["inspect-ckpt", "out", "--deep"]).well();
}
