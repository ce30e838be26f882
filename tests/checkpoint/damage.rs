//! Any damage to a checkpoint's files is detected: by `inspect-ckpt --deep`, and by a run that resumes
//! from it.

use crate::common::binary::Lab;
use crate::common::saved::copy;
use gptrain::base::rng;
use gptrain::checkpoint::inspect::inspect;
use gptrain::checkpoint::safetensors::Reader;
use gptrain::checkpoint::{Checkpoint, Index, Piece};
use gptrain::engine::MASTER;
use std::fs;
use std::path::{Path, PathBuf};

const SHARDS: [&str; 3] = [
    "master-00000.safetensors",
    "first_moment-00000.safetensors",
    "second_moment-00000.safetensors",
];

/// A lab whose run `runs/a` has saved steps 5, 10 and 12.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.run(&["precision=bf16"]).expect(0, &[]);
    lab
}

fn step(lab: &Lab, step: u64) -> PathBuf {
    lab.path(&format!("runs/a/checkpoints/step-{step:08}"))
}

/// Error of a start: opens and reads everything.
fn read_all(folder: &Path) -> Result<(), String> {
    let read = || -> anyhow::Result<()> {
        let checkpoint = Checkpoint::open(folder)?;
        for tensor in &checkpoint.index.tensors {
            for (state, _) in tensor.saved() {
                checkpoint.whole(tensor, state)?;
            }
        }
        Ok(())
    };
    read().map_err(|error| format!("{error:#}"))
}

#[test]
fn one_flipped_bit_anywhere_is_found_and_placed() {
    let lab = lab();
    let whole = step(&lab, 12);
    read_all(&whole).unwrap();
    let copied = copy(&whole, &lab.path("copy"));
    let mut names = SHARDS.to_vec();
    names.push("index.json");
    for (i, name) in names.iter().enumerate() {
        let path = copied.join(name);
        let bytes = fs::read(&path).unwrap();
        let header = if *name == "index.json" { bytes.len() } else { 4096 };
        let draw = |k: u64, n: usize| rng::below(i as u64, k, n as u64) as usize;
        // The first and last bytes, the header's structure, and many places at random.
        let mut places = vec![0, 1, 7, 8, 9, 20, header - 1, bytes.len() - 1, bytes.len() - 3];
        places.extend((0..125).map(|k| draw(2 * k, header)));
        places.extend((0..125).map(|k| draw(2 * k + 1, bytes.len())));
        for place in places {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << draw(1000 + place as u64, 8);
            fs::write(&path, &damaged).unwrap();
            let told = read_all(&copied).expect_err(&format!("{name}, byte {place}"));
            assert!(told.contains(name), "{name}, byte {place}: {told}");
            if *name != "index.json" {
                let range = told
                    .split("bytes ")
                    .nth(1)
                    .unwrap_or_else(|| panic!("{told}"));
                let range = range.split([' ', ':']).next().unwrap();
                let (from, to) = range.split_once("..").unwrap();
                let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                assert!((from..to).contains(&place), "{place} is not in {range}: {told}");
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
    read_all(&copied).unwrap();
}

#[test]
fn deep_inspection_names_the_tensor_and_reads_on() {
    let lab = lab();
    let folder = step(&lab, 12);
    let path = folder.join(SHARDS[2]);
    let reader = Reader::open(&path).unwrap();
    let start = reader.entries["block.1.mlp.fc1.weight"].data_offsets[0] as usize;
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096 + start + 17] ^= 4;
    fs::write(&path, &bytes).unwrap();
    lab.gptrain(&["inspect-ckpt", "runs/a"]).expect(0, &[]); // it looked at the weights only
    let done = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
    done.expect(1, &["damaged: 1 finding"]);
    for word in ["DAMAGE", SHARDS[2], "second_moment of block.1.mlp.fc1.weight", "lnf.scale"] {
        assert!(done.out.contains(word), "{word} in {}", done.out);
    }
    let done = lab.run(&["precision=bf16", "train.steps=14"]);
    done.expect(
        2,
        &["cannot continue from step 12", "--resume-from step-00000010", "block.1.mlp.fc1"],
    );
    assert_eq!(lab.metrics("runs/a").len(), 12, "nothing was trained");
    let older = ["run", "run.yaml", "--set", "precision=bf16", "--resume-from", "step-00000010"];
    let done = lab.gptrain(&older);
    done.expect(0, &[]);
    assert!(
        done.out
            .contains("newer checkpoint is now called aside-step-00000012"),
        "{}",
        done.out
    );
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
        .expect(0, &[]);
}

#[test]
fn cut_missing_swapped_stray_and_longer_files() {
    let lab = lab();
    let (whole, older) = (step(&lab, 12), step(&lab, 10));
    let fails = |what: &str, change: &dyn Fn(&Path), words: &[&str]| {
        let copied = copy(&whole, &lab.path("copy"));
        change(&copied);
        let told = read_all(&copied).expect_err(what);
        for word in words {
            assert!(told.contains(word), "{what}: {word:?} is not in: {told}");
        }
        assert!(inspect(&copied, true).is_err(), "{what}");
    };
    let cut = |name: &'static str, len: u64| {
        move |folder: &Path| {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(folder.join(name))
                .unwrap();
            file.set_len(len).unwrap();
        }
    };
    for name in SHARDS {
        let len = fs::metadata(whole.join(name)).unwrap().len();
        for at in [0, 4, 8, 100, 4095, 4096, 4097, len / 2, len - 1] {
            fails("cut short", &cut(name, at), &[name, "cut short", &format!("bytes {at}..{len}")]);
        }
        fails("longer", &cut(name, len + 1), &[name, "after its end"]);
        fails("missing", &|f| fs::remove_file(f.join(name)).unwrap(), &[name, "cannot open"]);
        let other = older.join(name);
        let from_older = |f: &Path| {
            fs::copy(&other, f.join(name)).unwrap();
        };
        fails("of another step", &from_older, &[name, "step 10 of run"]);
    }
    let index = fs::metadata(whole.join("index.json")).unwrap().len();
    for at in [0, 1, 100, index / 2, index - 40, index - 1] {
        fails("cut short", &cut("index.json", at), &["index.json", "damaged"]);
    }
    let swap = |f: &Path| {
        fs::rename(f.join(SHARDS[1]), f.join("x")).unwrap();
        fs::rename(f.join(SHARDS[2]), f.join(SHARDS[1])).unwrap();
        fs::rename(f.join("x"), f.join(SHARDS[2])).unwrap();
    };
    fails("swapped", &swap, &[SHARDS[1], "header"]);
    let stray = "master-00001.safetensors";
    let add = |f: &Path| {
        fs::copy(f.join(SHARDS[0]), f.join(stray)).unwrap();
    };
    fails("stray", &add, &[stray, "not in its index"]);
    let rename = |f: &Path| fs::remove_file(f.join("index.json")).unwrap();
    fails("no index", &rename, &["is not a checkpoint"]);
    let index_of_older = |f: &Path| {
        fs::copy(older.join("index.json"), f.join("index.json")).unwrap();
    };
    fails("index of another step", &index_of_older, &["step 10"]);
}

#[test]
fn a_hint_that_lies_is_told_and_not_believed() {
    let lab = lab();
    let latest = lab.path("runs/a/checkpoints/latest");
    let lies = ["", "garbage\0\u{fffd}", "step-00000099", "../../../etc/passwd", "step-00000005\n"];
    for (step, lie) in (12..).zip(lies) {
        fs::write(&latest, lie).unwrap();
        let done = lab.run(&["precision=bf16", &format!("train.steps={}", step + 1)]);
        done.expect(0, &[]);
        assert!(done.out.contains("latest names"), "{lie}: {}", done.out);
        assert!(done.out.contains(&format!("(step {step},")), "{lie}: {}", done.out);
    }
    fs::remove_file(&latest).unwrap();
    lab.run(&["precision=bf16", "train.steps=17"])
        .expect(0, &[]);
}

#[test]
fn what_may_change_on_resume_and_what_not() {
    let lab = Lab::new();
    lab.run(&[]).expect(0, &[]);
    for (change, row) in [
        ("model.layers=3", "model"),
        ("precision=bf16", "precision"),
        ("data.eod={token: 0, reset_positions: true}", "data"),
        ("batch.global=8", "batch"),
        ("batch.ramp_up=2 2 8", "batch"),
    ] {
        let done = lab.run(&[change]);
        done.expect(2, &[&format!("another `{row}`"), "--set log.folder=DIR"]);
    }
    for (change, key) in [
        ("lr.peak=1e-3", "lr.peak was 0.003, is 0.001"),
        ("optimizer.adamw.weight_decay=0.2", "optimizer.adamw.weight_decay was 0.1"),
        ("model.dropout=0.1", "model.dropout"),
        ("batch.micro=1", "batch.micro was 2, is 1"),
        ("train.steps=13", "train.samples was 48, is 52"),
    ] {
        let done = lab.run(&[change]);
        done.expect(0, &[]);
        assert!(done.out.contains(key), "{change}: {}", done.out);
        fs::remove_dir_all(lab.path("runs")).unwrap();
        lab.run(&[]).expect(0, &[]);
    }
    for change in [
        "train.threads=2",
        "topology.recompute=full",
        "log.interval=3",
        "name=other",
        "checkpoint.keep_last=9",
        "train.eval_interval=4",
        "train.eval_samples=5",
    ] {
        let done = lab.run(&[change, "log.folder=runs/a"]);
        done.expect(0, &[]);
        assert!(!done.out.contains("note:"), "{change}: {}", done.out);
    }
}

#[test]
fn data_that_moved_goes_on_and_data_that_changed_does_not() {
    let lab = Lab::new();
    lab.run(&[]).expect(0, &[]);
    for end in ["idx", "bin"] {
        fs::copy(lab.path(&format!("corpus.{end}")), lab.path(&format!("moved.{end}"))).unwrap();
    }
    lab.run(&["data.train=moved"]).expect(0, &[]);
    let other = Lab::with_documents(41);
    for end in ["idx", "bin"] {
        let name = format!("corpus.{end}");
        fs::copy(other.path(&name), lab.path(&name)).unwrap();
    }
    lab.run(&["train.steps=13"])
        .expect(2, &["corpus", "is not the dataset", "log.folder"]);
}

#[test]
fn header_bombs_are_refused_at_once() {
    let lab = Lab::new();
    let path = lab.path("bomb.safetensors");
    let file = |len: u64, header: &str, data: usize| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        fs::write(&path, bytes).unwrap();
        Reader::open(&path).err().map(|error| format!("{error:#}"))
    };
    let fails = |header: &str, data: usize, word: &str| {
        let told = file(header.len() as u64, header, data).expect(header);
        assert!(told.contains(word), "{header}: {told}");
    };
    for len in [1 << 63, u64::MAX, 100_000_001, 3] {
        assert!(file(len, "{}", 0).is_some(), "{len}");
    }
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}")
    };
    let one = |shape: &str, from, to| format!("{{{}}}", entry("a", shape, from, to));
    assert_eq!(file(one("[2]", 0, 8).len() as u64, &one("[2]", 0, 8), 8), None);
    fails(&one("[3]", 0, 8), 8, "does not fit");
    fails(&one("[2]", 8, 0), 8, "does not fit");
    fails(&one("[2]", 4, 12), 12, "expected 0");
    fails(&one("[4294967296,4294967296,4]", 0, 8), 8, "does not fit");
    fails(&one("[0,18446744073709551615]", 0, 8), 8, "does not fit");
    fails(&one("[2]", 0, 8), 9, "need 8");
    fails(&one("[-2]", 0, 8), 8, "damaged");
    fails(&one("[2.0]", 0, 8), 8, "damaged");
    let (a, b) = (entry("a", "[2]", 0, 8), entry("b", "[2]", 4, 12));
    fails(&format!("{{{a},{b}}}"), 12, "expected 8");
    fails(&format!("{{{a},{a}}}"), 8, "two tensors");
    // A type that is not known is refused where the tensor is needed.
    let unknown = one("[2]", 0, 8).replace("F32", "F33");
    assert_eq!(file(unknown.len() as u64, &unknown, 8), None);
    assert!(Reader::open(&path).unwrap().floats("a").is_err());
    fails("[1,2]", 0, "damaged");
    fails("{\"a\":", 0, "damaged");
    fails(&"[".repeat(100_000), 0, "damaged");
    let mut bytes = 4u64.to_le_bytes().to_vec();
    bytes.extend([b'{', b'"', 0xff, b'}']);
    fs::write(&path, bytes).unwrap();
    assert!(Reader::open(&path).is_err(), "not UTF-8");
}

/// The index re-sealed after a change: what the digest cannot catch, the checks must.
#[test]
fn an_index_that_does_not_fit_together_is_refused() {
    let lab = lab();
    let index = Index::read(&step(&lab, 12)).unwrap();
    let fails = |what: &str, change: &dyn Fn(&mut Index), word: &str| {
        let mut changed = index.clone();
        change(&mut changed);
        let told = Index::parse(&changed.text().unwrap()).expect_err(what);
        let told = format!("{told:#}");
        assert!(told.contains(word), "{what}: {told}");
    };
    Index::parse(&index.text().unwrap()).unwrap();
    fails("format", &|i| i.format = 3, "format 3");
    fails("format", &|i| i.format = 0, "format 0");
    fails("name twice", &|i| i.tensors[1].name = i.tensors[0].name.clone(), "twice");
    fails("shape", &|i| i.tensors[0].shape = vec![1, 2, 3], "shape");
    fails("shape", &|i| i.tensors[0].shape = vec![usize::MAX, 16], "shape");
    fails("hole", &|i| i.tensors[0].shape[0] += 1, "values are present");
    fails("outside", &|i| i.tensors[0].shape[0] -= 1, "not inside");
    fails("no pieces", &|i| pieces(i, 3, "first_moment").clear(), "0 of");
    let twice = |i: &mut Index| {
        let pieces = pieces(i, 0, MASTER);
        pieces.push(pieces[0].clone());
    };
    fails("over another", &twice, "overlaps another");
    fails("no shard", &|i| pieces(i, 0, MASTER)[0].shard = 9, "no shard");
    fails("past the end", &|i| pieces(i, 0, MASTER)[0].byte = u64::MAX, "not inside");
    fails("in the header", &|i| pieces(i, 0, MASTER)[0].byte = 0, "not inside");
    fails("chunks", &|i| pieces(i, 0, MASTER)[0].chunks.clear(), "chunks");
    fails("at", &|i| pieces(i, 0, MASTER)[0].slice.at = [usize::MAX, 1], "not inside");
    fails("path", &|i| i.shards[0].file = "../x.safetensors".into(), "shard's name");
    fails("file twice", &|i| i.shards[1].file = i.shards[0].file.clone(), "twice");
    fails("header", &|i| i.shards[0].header_bytes = u64::MAX, "no room");
}

/// Pieces of a tensor's state, for changes.
fn pieces<'i>(index: &'i mut Index, tensor: usize, state: &str) -> &'i mut Vec<Piece> {
    let state = index.tensors[tensor].states.get_mut(state).unwrap();
    state.pieces.as_mut().unwrap()
}

/// Random bytes, cut and spliced files: an error each time, never a panic, never a wrong value.
#[test]
fn fuzz_of_the_readers() {
    let lab = lab();
    let whole = step(&lab, 5);
    let index = fs::read_to_string(whole.join("index.json")).unwrap();
    let shard = fs::read(whole.join(SHARDS[0])).unwrap();
    let path = lab.path("fuzz.safetensors");
    for case in 0..2000u64 {
        let draw = |k: u64, n: usize| rng::below(case, k, n.max(1) as u64) as usize;
        let mutate = |bytes: &[u8], header: usize| {
            let mut bytes = bytes.to_vec();
            for k in 0..1 + draw(0, 4) as u64 {
                let at = draw(10 * k + 1, header.min(bytes.len()));
                match draw(10 * k + 2, 5) {
                    0 => bytes[at] ^= 1 << draw(10 * k + 3, 8),
                    1 => bytes[at] = draw(10 * k + 3, 256) as u8,
                    2 => bytes.truncate(at),
                    3 => drop(bytes.splice(at..at, b"9\"[]{},:0-e".iter().copied())),
                    _ => drop(bytes.drain(at..(at + draw(10 * k + 4, 40)).min(bytes.len()))),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            bytes
        };
        let text = String::from_utf8_lossy(&mutate(index.as_bytes(), index.len())).into_owned();
        assert!(text == index || Index::parse(&text).is_err(), "case {case}");
        // Past the digest: the parser and the checks alone. An index that passes them can be read.
        let body = text
            .rsplit_once(",\n  \"digest\"")
            .map_or(text.as_str(), |(body, _)| body);
        let sealed = format!("{body},\n  \"digest\": \"");
        let digest = xxhash_rust::xxh3::xxh3_128(sealed.as_bytes());
        let _ = Index::parse(&format!("{sealed}{digest:032x}\"\n}}\n"));
        fs::write(&path, mutate(&shard, 4200)).unwrap();
        if let Ok(reader) = Reader::open(&path) {
            for name in reader.entries.keys() {
                let _ = reader.floats(name);
            }
        }
    }
}
