//! Random attacks on the real binary. The suite runs the same few of each kind, CI a given number. By hand
//! they run for a given time, with a printed seed that repeats them:
//!
//! ```sh
//! GPTRAIN_ATTACK_SECONDS=60 cargo nextest run --locked --test cli \
//!     --run-ignored only --no-capture -E 'test(random::attacks)'
//! GPTRAIN_ATTACK_SEED=7 GPTRAIN_ATTACK_CASE=31 …      # that case again
//! ```
//!
//! In all cases `gptrain` neither panics nor hangs, nor ends by a signal that was not sent; it reports what
//! is wrong, and only correct results are reported as correct.

mod damage;
mod duress;
mod manifests;

use crate::common::binary::{Done, Lab};
use gptrain::base::rng;
use std::fs;
use std::time::{Duration, Instant};

/// Cases of each kind in the suite.
const FEW: u64 = 3;

/// A kind of attack, in a folder that its cases share.
trait Attack {
    /// One case; panics where it found something.
    fn case(&mut self, dice: &mut Dice);
}

/// A kind's name, and how it is made when a case of it comes.
type Kind = (&'static str, fn() -> Box<dyn Attack>);

const KINDS: [Kind; 4] = [
    ("sensible manifests", || Box::new(manifests::Sensible::new())),
    ("hostile manifests", || Box::new(manifests::Hostile::new())),
    ("damaged files", || Box::new(damage::Damaged::new())),
    ("duress", || Box::new(duress::Duress::new())),
];

/// A folder of what commands read: a text of so many lines, JSON of so many documents, a tokenizer, a run
/// of four steps that has its vocabulary and is saved every so many, and its Hugging Face folder.
pub fn furnished(lines: usize, documents: usize, interval: usize) -> Lab {
    let lab = Lab::new();
    let text: String = (0..lines)
        .map(|i| format!("line {i} of some text\n"))
        .collect();
    fs::write(lab.path("text.txt"), text).unwrap();
    let json = (0..documents).map(|i| format!("{{\"text\": \"line {i}\"}}\n"));
    fs::write(lab.path("lines.jsonl"), json.collect::<String>()).unwrap();
    let run = format!("run run.yaml --set train.steps=4 --set checkpoint.interval={interval}");
    for line in [
        &format!("{run} --set model.vocab=300"),
        "data train-tokenizer text.txt --vocab 300 -o tok.json",
        "export runs/a --hf hf",
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        Done::of(lab.command(&args).output().unwrap()).well();
    }
    lab
}

/// Random choices of one case.
pub struct Dice {
    key: u64,
    rolls: u64,
}

impl Dice {
    fn of(seed: u64, case: u64) -> Dice {
        Dice { key: rng::key(seed, &format!("attack {case}")), rolls: 0 }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.rolls += 1;
        rng::below(self.key, self.rolls, n.max(1))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Checks that hold for every command under any interference. `killed`: it may end by a signal.
pub fn sane(done: &Done, what: &str, killed: bool) {
    let said = || format!("{what}\nended with {:?}\n{}\n{}", done.code, done.out, done.err);
    assert!(!done.err.contains("panicked"), "{}", said());
    match done.code {
        Some(0) => {}
        Some(1..=5) => assert!(!done.err.trim().is_empty(), "says nothing: {}", said()),
        None if killed => {}
        _ => panic!("{}", said()),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// A case, with what repeats it where it found something.
struct Told(u64, u64, &'static str);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Told(seed, case, kind) = self;
            eprintln!("{kind}: GPTRAIN_ATTACK_SEED={seed} GPTRAIN_ATTACK_CASE={case} repeats it");
        }
    }
}

fn run(kind: usize, made: &mut Option<Box<dyn Attack>>, seed: u64, case: u64) {
    let (name, make) = KINDS[kind];
    let _told = Told(seed, case, name);
    made.get_or_insert_with(make)
        .case(&mut Dice::of(seed, case));
}

#[test]
#[ignore = "runs for a given time or a given number of cases"]
fn attacks() {
    let seed = number("GPTRAIN_ATTACK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let most = number("GPTRAIN_ATTACK_CASES");
    let seconds = match most {
        Some(_) => u64::MAX,
        None => number("GPTRAIN_ATTACK_SECONDS").unwrap_or(60),
    };
    let mut made: [_; KINDS.len()] = std::array::from_fn(|_| None);
    if let Some(case) = number("GPTRAIN_ATTACK_CASE") {
        let kind = (case % KINDS.len() as u64) as usize;
        return run(kind, &mut made[kind], seed, case);
    }
    println!("GPTRAIN_ATTACK_SEED={seed}");
    let started = Instant::now();
    let mut cases = 0;
    while cases < most.unwrap_or(u64::MAX) && started.elapsed() < Duration::from_secs(seconds) {
        let kind = (cases % KINDS.len() as u64) as usize;
        run(kind, &mut made[kind], seed, cases);
        cases += 1;
    }
    println!("{cases} attacks, nothing found");
}

fn few(kind: usize) {
    let (mut made, kinds) = (None, KINDS.len() as u64);
    (0..FEW).for_each(|case| run(kind, &mut made, 1, case * kinds + kind as u64));
}

#[test]
fn sensible_manifests_run() {
    few(0);
}

#[test]
fn hostile_manifests_are_refused() {
    few(1);
}

#[test]
fn damaged_files_are_noticed() {
    few(2);
}

#[test]
fn commands_under_duress_lose_nothing() {
    few(3);
}
