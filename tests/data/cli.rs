//! `gptrain data …` as a user runs it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const CORPUS: [&str; 4] = [
    r#"{"id": 1, "text": "It is a truth universally acknowledged,\nthat a single man"}"#,
    r#"{"text": ""}"#,
    r#"{"text": "caf\u00e9 \ud83d\ude00 <|endoftext|> literal", "meta": {"text": "not this"}}"#,
    r#"{"text": "日本語 العربية"}"#,
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data")
        .join(name)
}

/// An empty folder of this test's own, with the small corpus in it.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("corpus.jsonl"), CORPUS.join("\n") + "\n").unwrap();
    folder
}

/// Command `gptrain data` in a folder, with TOKENIZER replaced by the bundled tokenizer.
pub fn data(folder: &Path, arguments: &str) -> Command {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen/tokenizer.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
    command.arg("data").current_dir(folder);
    for argument in arguments.split_whitespace() {
        match argument {
            "TOKENIZER" => command.arg(&tokenizer),
            argument => command.arg(argument),
        };
    }
    command
}

pub fn good(folder: &Path, arguments: &str) -> String {
    let output = data(folder, arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that must fail with this exit code.
pub fn bad(folder: &Path, arguments: &str, code: i32) -> String {
    failed(data(folder, arguments).output().unwrap(), code)
}

fn failed(output: Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    error
}

fn bytes(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn samples_are_those_megatron_reads() {
    let expect =
        std::fs::read_to_string(fixture("megatron/expect/gpt_dataset_cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&expect).unwrap();
    let folder = fixture("megatron/datasets");
    for case in cases.iter().filter(|case| case["name"] != "i32_big_2048") {
        let samples: Vec<String> = case["num_samples_requested"]
            .as_array()
            .unwrap()
            .iter()
            .map(Value::to_string)
            .collect();
        for (which, want) in case["splits"].as_object().unwrap() {
            if want.is_null() {
                continue;
            }
            let printed = good(
                &folder,
                &format!(
                    "samples {} --split {} --which {which} --seed {} --seq-len {} --samples {} \
                     --json",
                    case["dataset"].as_str().unwrap(),
                    case["split"].as_str().unwrap(),
                    case["seed"],
                    case["seq_length"],
                    samples.join(",")
                ),
            );
            let rows: Vec<Value> = printed
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(rows.len() as u64, want["len"].as_u64().unwrap());
            let head = want["samples"]
                .as_array()
                .or(want["samples_head"].as_array())
                .unwrap();
            for (row, tokens) in rows.iter().zip(head) {
                assert_eq!(&row["tokens"], tokens, "{} {which} {}", case["name"], row["index"]);
            }
            assert!(
                rows.iter()
                    .enumerate()
                    .all(|(k, row)| row["index"] == k as u64)
            );
        }
    }
}

#[test]
fn weighted_samples_are_those_megatron_reads() {
    let expect =
        std::fs::read_to_string(fixture("megatron/expect/blended_dataset_cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&expect).unwrap();
    let printed = good(
        &fixture("megatron/datasets"),
        "samples u16_a u16_b --weights 0.3,0.7 --split 1,0,0 --seq-len 32 --samples 200 --json \
         --range 0..11",
    );
    for (line, want) in printed.lines().zip(
        cases[0]["splits"]["train"]["samples_head"]
            .as_array()
            .unwrap(),
    ) {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!(&row["tokens"], want);
    }
    assert_eq!(printed.lines().count(), 12);
}

#[test]
fn samples_take_fractions_and_refuse_nonsense() {
    let folder = fixture("megatron/datasets");
    // The last 24 of 40 sequences; 5 at the end would be range 0.875..1.0.
    let printed =
        good(&folder, "samples i32_bloom --range 0.9..1.0 --seq-len 8 --samples 3 --json");
    assert!(printed.lines().count() >= 3);
    let error = bad(&folder, "samples u16_a --weights 0.5,0.5 --samples 4,4 --range 3..1", 2);
    assert!(error.contains("neither samples A..B nor fractions"), "{error}");
    let error = bad(&folder, "samples u16_a --weights 0.5,0.5 --samples 4,4", 2);
    assert!(error.contains("2 weights for 1 datasets") && error.contains("--samples"), "{error}");
    let error = bad(&folder, "samples u16_a --split 1,0,0 --which valid --samples 4", 2);
    assert!(error.contains("0 sequences with 0 tokens in all"), "{error}");
    let error = bad(&folder, "samples u16_a --split a,b", 2);
    assert!(error.contains("the weights sum to 0"), "{error}");
    let error = bad(&folder, "samples u16_a --seed 5000000000", 2);
    assert!(error.contains("is not below 2^32"), "{error}");
}

#[test]
fn every_form_of_a_corpus_gives_the_same_dataset() {
    let folder = folder("forms");
    let build = "--tokenizer TOKENIZER --append-eod --output";
    good(&folder, &format!("build corpus.jsonl {build} plain --threads 1"));
    let text = bytes(&folder, "corpus.jsonl");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gz.write_all(&text).unwrap();
    std::fs::write(folder.join("a.jsonl.gz"), gz.finish().unwrap()).unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    // Two frames one after the other, cut in the middle of a line.
    let frames =
        [&text[..50], &text[50..]].map(|half| ruzstd::encoding::compress_to_vec(half, level));
    std::fs::write(folder.join("b.zst"), frames.concat()).unwrap();
    std::fs::create_dir_all(folder.join("many/sub")).unwrap();
    for (i, line) in CORPUS.iter().enumerate() {
        let name = if i < 3 { format!("many/{i}.jsonl") } else { format!("many/sub/{i}.jsonl") };
        std::fs::write(folder.join(name), line).unwrap();
    }
    std::fs::write(folder.join("many/notes.pdf"), "not text").unwrap();
    for (input, output) in [("a.jsonl.gz", "gz"), ("b.zst --format jsonl", "zst"), ("many", "many")]
    {
        good(&folder, &format!("build {input} {build} {output} --threads 3"));
        for ending in ["bin", "idx"] {
            let same = bytes(&folder, &format!("{output}.{ending}"))
                == bytes(&folder, &format!("plain.{ending}"));
            assert!(same, "{output}.{ending}");
        }
    }
    let mut command = data(&folder, &format!("build - {build} stdin"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(bytes(&folder, "stdin.bin"), bytes(&folder, "plain.bin"));
}

#[test]
fn an_empty_document_is_a_document_without_sequences() {
    let folder = folder("empty");
    good(&folder, "build corpus.jsonl -t TOKENIZER --append-eod -o d");
    let report: Value = serde_json::from_str(&good(&folder, "inspect d --json")).unwrap();
    assert_eq!((&report["documents"], &report["sequences"]), (&4.into(), &3.into()));
    assert_eq!(report["empty_documents"], 1);
    let shown = good(&folder, "inspect d -n 4 -t TOKENIZER");
    assert!(shown.contains("It is a truth universally acknowledged,"), "{shown}");
    assert!(shown.contains("café 😀 <|endoftext|> literal<|endoftext|>"), "{shown}");
    assert!(good(&folder, "check d -t TOKENIZER").contains("d: sound. 4 documents"));
    assert!(bad(&folder, "check d --vocab 300", 2).contains("the vocabulary has 300 ids"));
}

#[test]
fn merged_datasets_are_one_after_the_other() {
    let folder = folder("merge");
    let two = std::fs::read_to_string(folder.join("corpus.jsonl"))
        .unwrap()
        .repeat(2);
    std::fs::write(folder.join("two.jsonl"), two).unwrap();
    good(&folder, "build corpus.jsonl -t TOKENIZER -o one");
    good(&folder, "build two.jsonl -t TOKENIZER -o two");
    good(&folder, "merge one one.idx -o merged");
    assert_eq!(bytes(&folder, "merged.bin"), bytes(&folder, "two.bin"));
    assert_eq!(bytes(&folder, "merged.idx"), bytes(&folder, "two.idx"));
    good(&folder, "build corpus.jsonl -t TOKENIZER --dtype int32 -o wide");
    let error = bad(&folder, "merge one wide -o other", 2);
    assert!(error.contains("wide: holds int32, one holds uint16"), "{error}");
}

#[test]
fn lines_that_cannot_be_read_are_named_or_counted() {
    let folder = folder("lines");
    let lines: [(&[u8], &str); 6] = [
        (b"{\"text\": \"a\"", "EOF while parsing an object, at column 12"),
        (b"{\"text\": \"\xff\"}", "the line is not UTF-8"),
        (b"{\"txt\": \"a\"}", "the object has no field \"text\"; it has \"txt\""),
        (b"{\"text\": 7}", "invalid type: integer `7`, expected a string, at column 10"),
        (b"[1]", "expected a JSON object"),
        (b"{\"text\": \"\\ud800\"}", "unexpected end of hex escape, at column 17"),
    ];
    for (line, says) in lines {
        let text = [b"{\"text\": \"good\"}\n\n", line, b"\n{\"text\": \"more\"}"].concat();
        std::fs::write(folder.join("bad.jsonl"), text).unwrap();
        let error = bad(&folder, "build bad.jsonl -t TOKENIZER -o d", 2);
        assert!(error.contains("bad.jsonl:3: ") && error.contains(says), "{error}");
        assert!(error.contains("--skip-invalid"), "{error}");
        assert_eq!(files(&folder), ["bad.jsonl", "corpus.jsonl"], "something was left");
        let said = good(&folder, "build bad.jsonl -t TOKENIZER -o d --skip-invalid");
        assert!(
            said.contains("2 documents") && said.contains("1 line could not be read"),
            "{said}"
        );
        for name in ["d.bin", "d.idx", "d.tokenizer"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    }
}

#[test]
fn a_line_without_end_is_refused_in_bounded_memory() {
    let folder = folder("endless");
    let gptrain = data(&folder, "build - -t bytes -o d --threads 1");
    let mut command = Command::new("prlimit");
    command
        .arg("--as=2000000000")
        .arg(gptrain.get_program())
        .args(gptrain.get_args());
    command
        .current_dir(&folder)
        .stdin(std::fs::File::open("/dev/zero").unwrap());
    let error = failed(command.output().unwrap(), 2);
    assert!(error.contains("standard input:1: a line of more than 256"), "{error}");
    assert_eq!(files(&folder), ["corpus.jsonl"]);
}

#[test]
fn two_builders_of_one_output_do_not_meet() {
    let folder = folder("builders");
    let start = || {
        let mut command = data(&folder, "build - -t TOKENIZER -o d");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // Both wait for text; the second one gives up.
    let (mut one, mut other) = (start(), start());
    while other.try_wait().unwrap().is_none() {
        std::mem::swap(&mut one, &mut other);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let error = failed(other.wait_with_output().unwrap(), 2);
    assert!(error.contains("another process is writing it"), "{error}");
    one.stdin
        .take()
        .unwrap()
        .write_all(&bytes(&folder, "corpus.jsonl"))
        .unwrap();
    assert!(one.wait().unwrap().success());
    assert_eq!(files(&folder), ["corpus.jsonl", "d.bin", "d.idx", "d.tokenizer"]);
    good(&folder, "check d");
}

#[test]
fn an_output_is_never_overwritten_or_shared_or_left_half() {
    let folder = folder("output");
    good(&folder, "build corpus.jsonl -t TOKENIZER -o d");
    let before = bytes(&folder, "d.bin");
    let error = bad(&folder, "build corpus.jsonl -t TOKENIZER -o d", 2);
    assert!(error.contains("d.bin exists") && bytes(&folder, "d.bin") == before, "{error}");

    // Another process holds the output.
    let held = std::fs::File::create(folder.join("e.bin.partial")).unwrap();
    held.lock().unwrap();
    let error = bad(&folder, "build corpus.jsonl -t TOKENIZER -o e", 2);
    assert!(error.contains("another process is writing it"), "{error}");
    assert!(folder.join("e.bin.partial").exists(), "the other's work was removed");
    drop(held); // it was killed: what it left is taken over
    std::fs::write(folder.join("e.bin.partial"), [7; 10_000]).unwrap();
    good(&folder, "build corpus.jsonl -t TOKENIZER -o e");
    assert_eq!(bytes(&folder, "e.bin"), before);

    // A full disk: no file may have a byte.
    let gptrain = data(&folder, "build corpus.jsonl -t TOKENIZER -o f");
    let mut full = Command::new("sh");
    full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    full.arg(gptrain.get_program())
        .args(gptrain.get_args())
        .current_dir(&folder);
    let error = failed(full.output().unwrap(), 1);
    assert!(error.contains("File too large") && error.contains("nothing of it is kept"), "{error}");
    let datasets =
        ["d", "e"].map(|name| ["bin", "idx", "tokenizer"].map(|end| format!("{name}.{end}")));
    let left = [&["corpus.jsonl".to_string()][..], datasets.as_flattened()].concat();
    assert_eq!(files(&folder), left);
    let error = bad(&folder, "build corpus.jsonl -t TOKENIZER -o nowhere/g", 1);
    assert!(error.contains("nowhere/g.bin.partial"), "{error}");
}

#[test]
fn an_interrupted_build_leaves_nothing() {
    let folder = folder("interrupted");
    let mut command = data(&folder, "build - -t bytes -o d --threads 1");
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let line = format!("{{\"text\": \"{}\"}}\n", "x".repeat(1000)).repeat(3000);
    input.write_all(line.as_bytes()).unwrap();
    while !folder.join("d.bin.partial").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    input.write_all(line.as_bytes()).ok(); // it may have ended by now
    drop(input);
    let ended = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(2), "{error}");
    assert!(error.contains("interrupted; nothing of the output is kept"), "{error}");
    assert_eq!(files(&folder), ["corpus.jsonl"]);
}

#[test]
fn wrong_inputs_are_named_together() {
    let folder = folder("inputs");
    std::fs::create_dir(folder.join("nothing")).unwrap();
    let error = bad(&folder, "build missing.jsonl nothing -t TOKENIZER -o d", 2);
    assert!(error.contains("missing.jsonl: does not exist"), "{error}");
    assert!(error.contains("nothing: the folder holds no .jsonl, .txt, .csv"), "{error}");
    std::fs::write(folder.join("blank.jsonl"), "\n \n").unwrap();
    let error = bad(&folder, "build blank.jsonl -t TOKENIZER -o d", 2);
    assert!(error.contains("the corpus holds no documents"), "{error}");
    std::fs::write(folder.join("cut.jsonl.gz"), [0x1f, 0x8b, 8, 0, 0, 0]).unwrap();
    let error = bad(&folder, "build cut.jsonl.gz -t TOKENIZER -o d", 1);
    assert!(error.contains("cannot read cut.jsonl.gz"), "{error}");
    let error = bad(&folder, "build corpus.jsonl -t TOKENIZER -o d --eod <stop>", 2);
    assert!(error.contains("\"<stop>\" is not one token of") && error.contains("<|endoftext|>"));
    let error = bad(&folder, "build corpus.jsonl -t TOKENIZER -o d --dtype uint8", 2);
    assert!(error.contains("uint8 cannot hold a vocabulary of 4,096"), "{error}");
    let error = bad(&folder, "train-tokenizer corpus.jsonl --vocab 100 -o t.json", 2);
    assert!(error.contains("ask for at least 257"), "{error}");
    let error = bad(&folder, "inspect nothing", 2);
    assert!(error.contains("nothing.idx does not exist"), "{error}");
}

#[test]
fn lines_of_plain_text_can_be_documents() {
    let folder = folder("plain");
    std::fs::write(folder.join("poem.txt"), "one line\r\n\nanother\nlast").unwrap();
    good(&folder, "build poem.txt --format lines -t bytes -o d --append-eod");
    let shown = good(&folder, "inspect d -t bytes -n 3");
    for line in ["one line<|endoftext|>", "another<|endoftext|>", "last<|endoftext|>"] {
        assert!(shown.contains(&format!("  {line}\n")), "{shown}");
    }
    good(&folder, "build poem.txt -t bytes -o whole");
    assert!(good(&folder, "inspect whole -n 0").contains("documents  1"));
}
