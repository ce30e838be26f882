//! Whole outputs of `gptrain estimate`. A file `tests/fixtures/estimate/*.txt` holds command lines, each with
//! what it prints: the exit code unless it is 0, standard output, and standard error behind `! `. A comment
//! above a command says what to look for in a changed output. A new row is a new command line:
//! `UPDATE=1 cargo nextest run --locked --test cli -E 'test(estimate_snapshots)'` writes its output.

use crate::estimate_cli::{estimate, json};
use std::path::Path;

const COMMAND: &str = "$ gptrain estimate ";

/// A plan fits into 100 columns.
#[test]
fn plans() {
    for line in check("plans").lines() {
        let width = line.chars().count();
        assert!(
            width <= 100 || line.starts_with(COMMAND) || line.starts_with('#'),
            "{width}: {line}"
        );
    }
}

#[test]
fn changes() {
    check("changes");
}

#[test]
fn searches() {
    check("searches");
}

#[test]
fn measured_runs() {
    check("measured_runs");
}

#[test]
fn refusals() {
    check("refusals");
}

/// Compares each command's output with the file, whose text it returns.
fn check(name: &str) -> String {
    let path = format!("tests/fixtures/estimate/{name}.txt");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
    let expected = std::fs::read_to_string(&file).unwrap();
    let mut actual = String::new();
    let mut after_comment = true;
    for line in expected
        .lines()
        .filter(|line| line.starts_with(COMMAND) || line.starts_with('#'))
    {
        if !after_comment {
            actual.push('\n');
        }
        actual += &format!("{line}\n");
        after_comment = line.starts_with('#');
        if let Some(args) = line.strip_prefix(COMMAND) {
            actual += &printed(args);
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &actual).unwrap();
        return actual;
    }
    for (i, (was, is)) in expected.lines().zip(actual.lines()).enumerate() {
        let remedy = "if the change is right, run this test with UPDATE=1 and read the difference";
        assert!(was == is, "{path}:{}: {remedy}\n- {was}\n+ {is}", i + 1);
    }
    assert_eq!(expected.lines().count(), actual.lines().count(), "{path}");
    expected
}

fn printed(args: &str) -> String {
    let (code, out, err) = estimate(args);
    let mut text = String::new();
    if code != 0 {
        text += &format!("exit code {code}\n");
    }
    text += &out;
    for line in err.lines() {
        text += &format!("! {line}\n");
    }
    text
}

/// Figures in JSON that published runs, models or the command line give: least, most, place, arguments.
const FIGURES: &str = "
# The run took 104 to 105 s per step, at about 150 TFLOP/s, and 3.5 months.
102 108  /time/seconds  manifests/tr11-176b-bloom.yaml --tokens 366e9
145 155  /tflops/hardware  manifests/tr11-176b-bloom.yaml --tokens 366e9
105 130  /run/days  manifests/tr11-176b-bloom.yaml --tokens 366e9
176e9 1e12  /max_params  manifests/tr11-176b-bloom.yaml --max-params --gpus 384
24 376  /min_gpus  manifests/tr11-176b-bloom.yaml --min-gpus
5e9 1e11  /max_params  manifests/gpt2-1.5b.yaml --hardware a100-40g --max-params --gpus 4
1 1  /min_gpus  manifests/gpt2-1.5b.yaml --hardware a100-40g --set batch.global=64 --min-gpus
# Two spellings of a number.
300e9 300e9  /run/tokens  manifests/tr11-176b-bloom.yaml --tokens 300B
300e9 300e9  /run/tokens  manifests/tr11-176b-bloom.yaml --tokens 300_000_000_000
# The log has 120.1 s, and two odd steps.
116 124  /time/seconds  manifests/tr11-176b-bloom.yaml --calibrate tests/fixtures/estimate/odd_step.log
# A program without measurements has a wide bar.
0 0.3  /rows/0/time_bar  --score tests/fixtures/estimate/unknown_program.csv --as nemo
0.4 1  /rows/1/time_bar  --score tests/fixtures/estimate/unknown_program.csv --as nemo
# A comparison keeps the number of devices unless it is set.
64 64  /now/devices  manifests/llama3-8b.yaml --what-if topology.tensor=4,batch.micro=2
64 64  /what_if/devices  manifests/llama3-8b.yaml --what-if topology.tensor=4,batch.micro=2
64 64  /now/devices  manifests/llama3-8b.yaml --what-if topology.tensor=4,topology.data=64
256 256  /what_if/devices  manifests/llama3-8b.yaml --what-if topology.tensor=4,topology.data=64
# The sizes of Llama 2 7B and, rounded, of GPT-3 13B.
6738415616 6738415616  /parameters  7B
12.8e9 12.9e9  /parameters  13B --family gpt2
64 64  /best/gpus  7B --search --gpus 64
# Several plans take the same time within 2 %.
2 1000  /equal  manifests/gpt2-1.5b.yaml --search --gpus 16 --hardware h100-80g
# Changes of a plan that does not fit do fit.
0 39.4  /ladder/0/mem_gib  manifests/gpt2-1.5b.yaml --as ddp --hardware a100-40g --set topology.data=8
";

#[test]
fn figures() {
    for row in FIGURES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = row.splitn(5, ' ').collect();
        let [least, most, _, place, args] = words[..] else { panic!("{row}") };
        let limits = least.parse::<f64>().unwrap()..=most.parse().unwrap();
        let plan = json(args);
        let figure = plan.pointer(place).and_then(|figure| figure.as_f64());
        assert!(figure.is_some_and(|figure| limits.contains(&figure)), "{row}: {figure:?}");
    }
}
