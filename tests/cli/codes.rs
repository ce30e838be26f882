//! Exit codes: every command with wrong usage, with input that is missing or damaged, and where the
//! system refuses something, against the table of docs/runs.md, which `--help` has too.

use super::random::furnished;
use crate::common::binary::{Done, Lab, limited, within};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Code for an operation that failed.
const FAILED: i32 = 1;
/// Code for wrong input.
const WRONG: i32 = 2;

const COMMANDS: &[&str] = &[
    "run",
    "sample",
    "eval",
    "average",
    "report",
    "compare",
    "status",
    "wandb",
    "mlflow",
    "job",
    "sweep",
    "nodes",
    "inspect-ckpt",
    "check-run",
    "prune",
    "convert",
    "export",
    "import",
    "diagnose",
    "estimate",
    "bench",
    "completions",
    "man",
    "manifest check",
    "manifest show",
    "manifest schema",
    "manifest new",
    "data build",
    "data train-tokenizer",
    "data merge",
    "data check",
    "data inspect",
    "data samples",
];

/// Input that does not exist.
const MISSING: &[&str] = &[
    "run nope.yaml",
    "run run.yaml --resume-from step-00000077",
    "sample nope --prompt a",
    "sample runs/a --prompt a --tokenizer nope",
    "eval nope --data corpus",
    "eval runs/a --data nope",
    "eval runs/a --tasks nope.jsonl --tokenizer tok.json",
    "average nope nope --output out",
    "report nope",
    "compare nope nope2",
    "status nope",
    "wandb nope",
    "mlflow nope",
    "job nope.yaml",
    "sweep nope.yaml --set lr.peak=1,2",
    "nodes nope",
    "inspect-ckpt nope",
    "check-run nope --log nope",
    "check-run hf --log nope",
    "prune nope --keep-last 1",
    "convert nope out --to hf",
    "export nope --output out",
    "import --hf nope --output out",
    "import --hf hf --output out --reference nope",
    "import nope --output out",
    "diagnose nope",
    "estimate nope.yaml",
    "estimate run.yaml --calibrate nope",
    "estimate run.yaml --hardware nope",
    "bench nope.yaml",
    "manifest check nope.yaml",
    "manifest show nope.yaml",
    "manifest new --data nope --output out.yaml",
    "data build nope -t tok.json -o out",
    "data build text.txt -t nope.json -o out",
    "data train-tokenizer nope --vocab 300 -o out",
    "data merge nope nope -o out",
    "data check nope",
    "data inspect nope",
    "data samples nope --seq-len 16",
    "completions nope",
];

/// Damaged input, as `damaged` makes it.
const DAMAGED: &[(i32, &str)] = &[
    (WRONG, "run bad.yaml"),
    (WRONG, "job bad.yaml"),
    (WRONG, "sweep bad.yaml --set lr.peak=1,2"),
    (WRONG, "estimate bad.yaml"),
    (WRONG, "bench bad.yaml"),
    (WRONG, "manifest check bad.yaml"),
    (WRONG, "manifest show bad.yaml"),
    (WRONG, "data build bad.jsonl -t tok.json -o out"),
    (WRONG, "data build text.txt -t bad.json -o out"),
    (WRONG, "data train-tokenizer bad.jsonl --vocab 300 -o out"),
    (WRONG, "data check short"),
    (WRONG, "data inspect short"),
    (WRONG, "data samples short --seq-len 16"),
    (WRONG, "data merge short short -o out"),
    (WRONG, "run run.yaml --set data.train=short --set log.folder=out"),
    (WRONG, "manifest new --data short --output out.yaml"),
    (WRONG, "eval runs/a --data short"),
    (WRONG, "eval runs/a --tasks bad.jsonl --tokenizer tok.json"),
    (WRONG, "eval flipped --data corpus"),
    (WRONG, "eval cut --data corpus"),
    (WRONG, "eval gone --data corpus"),
    (WRONG, "eval index --data corpus"),
    (WRONG, "sample flipped --prompt a --tokenizer tok.json"),
    (WRONG, "sample index --prompt a --tokenizer tok.json"),
    (WRONG, "export flipped --output out"),
    (WRONG, "export index --output out"),
    (WRONG, "convert flipped out --to megatron"),
    (WRONG, "convert bad-hf out --to megatron"),
    (WRONG, "average flipped runs/a --output out"),
    (WRONG, "average index runs/a --output out"),
    (WRONG, "run run.yaml --set model.vocab=300 --set log.folder=flipped"),
    (WRONG, "run run.yaml --set model.vocab=300 --set log.folder=gone"),
    (WRONG, "run run.yaml --set model.vocab=300 --set log.folder=index"),
    (FAILED, "inspect-ckpt flipped --deep"),
    (FAILED, "inspect-ckpt cut"),
    (FAILED, "inspect-ckpt index"),
    (FAILED, "inspect-ckpt runs/a/checkpoints/step-00000002 --diff runs/a"),
    (WRONG, "check-run hf --log bad.yaml"),
    (WRONG, "report notes"),
    (WRONG, "compare notes runs/a"),
    (WRONG, "status notes"),
    (WRONG, "wandb notes"),
    (WRONG, "import --hf bad-hf --output out"),
    (WRONG, "eval bad-hf --data corpus"),
    (WRONG, "import --hf hf --output out --reference bad.jsonl"),
    (WRONG, "diagnose notes"),
    (WRONG, "estimate run.yaml --calibrate bad.jsonl"),
];

/// Commands that write files or print, where that is refused.
const WRITING: &[&str] = &[
    "run run.yaml --set log.folder=out --set checkpoint.wait_for_storage_s=0",
    "data build text.txt -t bytes -o out",
    "data train-tokenizer text.txt --vocab 300 -o out",
    "data merge corpus corpus -o out",
    "convert hf out --to megatron",
    "export runs/a --output out",
    "import --hf hf --output out",
    "average runs/a/checkpoints/step-00000002 runs/a --output out",
    "report runs/a -o out.html",
    "man out",
];
const PRINTING: &[&str] = &[
    "job run.yaml",
    "manifest schema",
    "manifest show run.yaml",
    "status runs/a",
    "sample runs/a --prompt a --tokenizer tok.json",
    "eval runs/a --data corpus --limit 1",
    "completions bash",
    "compare runs/a runs/a",
    "inspect-ckpt runs/a",
    "estimate run.yaml",
    "data inspect corpus",
    "data samples corpus --seq-len 16",
];

/// A command's end, after which `out`, `out.html` and `out.yaml` are not there.
fn end(lab: &Lab, line: &str, change: impl Fn(Command) -> Command) -> Done {
    let args: Vec<&str> = line.split_whitespace().collect();
    let done = Done::of(change(lab.command(&args)).output().unwrap());
    for name in ["out", "out.html", "out.yaml"] {
        let _ = fs::remove_dir_all(lab.path(name));
        let _ = fs::remove_file(lab.path(name));
    }
    done
}

fn check(lab: &Lab, code: i32, line: &str, change: impl Fn(Command) -> Command) {
    let done = end(lab, line, change);
    let said = format!("{line}\n{}\n{}", done.out, done.err);
    assert_eq!(done.code, Some(code), "{said}");
    assert!(!done.err.trim().is_empty() && !done.err.contains("panicked"), "{said}");
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copied(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Files of `DAMAGED`.
fn damage(lab: &Lab) {
    let write = |name: &str, text: &[u8]| fs::write(lab.path(name), text).unwrap();
    write("bad.yaml", b"model: [\n");
    write("bad.json", b"{\"model\":");
    write("bad.jsonl", b"nope\n");
    for (name, cut) in [("idx", 40), ("bin", 100)] {
        let whole = fs::read(lab.path(&format!("corpus.{name}"))).unwrap();
        write(&format!("short.{name}"), &whole[..cut]);
    }
    for name in ["flipped", "cut", "gone", "index", "notes"] {
        copied(&lab.path("runs/a"), &lab.path(name));
    }
    let shard = "checkpoints/step-00000004/master-00000.safetensors";
    let mut bytes = fs::read(lab.path("flipped").join(shard)).unwrap();
    let last = bytes.len() - 50;
    bytes[last] ^= 1;
    write(&format!("flipped/{shard}"), &bytes);
    write(&format!("cut/{shard}"), &bytes[..last]);
    fs::remove_file(lab.path("gone").join(shard)).unwrap();
    write("index/checkpoints/step-00000004/index.json", b"{");
    for name in ["metrics.jsonl", "status.json", "manifest.yaml"] {
        write(&format!("notes/{name}"), b"nope\n");
    }
    copied(&lab.path("hf"), &lab.path("bad-hf"));
    write("bad-hf/config.json", b"{");
}

#[test]
fn every_command_ends_with_the_code_of_the_table() {
    let lab = furnished(3000, 800, 2);
    damage(&lab);
    let plain = |command: Command| command;
    for command in COMMANDS {
        check(&lab, WRONG, &format!("{command} --nonsense"), plain);
    }
    MISSING
        .iter()
        .for_each(|line| check(&lab, WRONG, line, plain));
    DAMAGED
        .iter()
        .for_each(|(code, line)| check(&lab, *code, line, plain));
    for line in WRITING {
        check(&lab, FAILED, line, |command| limited(&command, 1000));
    }
    let full = "exec \"$0\" \"$@\" > /dev/full";
    for line in PRINTING {
        check(&lab, FAILED, line, |command| within(&["sh", "-c", full], &command));
    }
}

#[test]
fn help_has_the_table_of_the_pages() {
    let page = fs::read_to_string("docs/runs.md").unwrap();
    let table = page
        .split("\n## Exit codes\n")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    let lab = Lab::new();
    let help = lab
        .gptrain(&["--help"])
        .out
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let mut rows = 0;
    for row in table.lines().skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let meaning = cells[1].replace('`', "");
        let meaning = meaning.split(". ").next().unwrap();
        let words = format!("{} {meaning}", cells[0]);
        assert!(help.contains(&words), "{words:?} is not in the help");
        rows += 1;
    }
    assert_eq!(rows, 8);
}

/// If the program itself fits into `ulimit -v`, a command either works or reports what is missing.
#[test]
fn too_little_address_space_is_a_message_with_a_remedy() {
    let lab = Lab::new();
    let mut told = 0usize;
    for limit in (10_000..400_000).step_by(2_500) {
        let script = format!("ulimit -v {limit}; exec \"$0\" \"$@\"");
        let schema = within(&["sh", "-c", &script], &lab.command(&["manifest", "schema"]));
        let done = Done::of({ schema }.output().unwrap());
        match done.code {
            Some(0) => break,
            // The kernel or the loader of libraries had no room for the program.
            None | Some(126 | 127) => assert_eq!((told, done.out.as_str()), (0, ""), "{limit}"),
            Some(139) => assert_eq!(told, 0, "{limit}"),
            _ => {
                done.expect(1, &["gptrain: ", "ulimit -v", "→ "]);
                // With almost nothing left the allocator speaks first.
                told += usize::from(done.err.contains("a command needs 16.0 MiB"));
            }
        }
    }
    assert!(told >= 3, "{told} limits between too small for the program and enough");
}
