//! Datasets named by a file of weights, by a pattern, and weighed by their size.

use crate::GOOD;
use gptrain::data::indexed::{TokenType, Writer};
use gptrain::manifest::{Dataset, Loaded, Sequences, parse};
use std::fs;
use std::path::Path;

fn load(folder: &Path, data: &str) -> Result<Loaded, String> {
    let text = GOOD.replace("  train: corpus/a\n", data);
    parse(&text, "m.yaml", folder, &[]).map_err(|problems| problems.to_string())
}

fn dataset(prefix: &Path, tokens: usize) {
    fs::create_dir_all(prefix.parent().unwrap()).unwrap();
    let mut writer = Writer::create(prefix, TokenType::U16).unwrap();
    writer.sequence(&vec![1; tokens]).unwrap();
    writer.end_document();
    writer.finish().unwrap();
}

/// Prefix below the folder, weight and range.
type Shown = (String, f64, Option<(f64, f64)>);

fn shown(folder: &Path, datasets: &[Dataset]) -> Vec<Shown> {
    let folder = folder.canonicalize().unwrap();
    let shown = datasets.iter().map(|dataset| {
        let prefix = dataset.prefix.strip_prefix(&folder).unwrap();
        let range = match dataset.part {
            Sequences::Range(from, to) => Some((from, to)),
            _ => None,
        };
        (prefix.display().to_string(), dataset.weight, range)
    });
    shown.collect()
}

fn row(prefix: &str, weight: f64, range: (f64, f64)) -> Shown {
    (prefix.to_string(), weight, Some(range))
}

/// The form in which BigScience's runs gave their 46 languages.
const TRAIN: &str = "\"train: 0.25 0:0.949 en/a_text, 0.75 0:0.949 /abs/fr\"\n";
const VALID: &str = "\"valid_en: 1 0.949:0.999 en/a_text\" \"valid all: 1 0:1 x\"\n";

#[test]
fn a_file_of_weights_is_megatrons() {
    let folder = tempfile::tempdir().unwrap();
    let lists = folder.path().join("lists");
    fs::create_dir(&lists).unwrap();
    fs::write(lists.join("train.txt"), TRAIN).unwrap();
    let groups = "\"valid_en: 1 0.949:0.999 en/a_text\" \
                  \"all: 0.5 0.949:0.999 en/a_text, 0.5 0.949:0.999 fr\"\n";
    fs::write(lists.join("valid.txt"), groups).unwrap();
    let data = "  train: {weights_file: lists/train.txt}\n  \
                valid: {\"*\": {weights_file: lists/valid.txt}, own: lists/own}\n";
    let loaded = load(folder.path(), data).unwrap();
    let m = &loaded.manifest.data;
    let train = &m.train;
    assert_eq!(train[1].prefix, Path::new("/abs/fr"));
    assert_eq!(shown(folder.path(), &train[..1]), [row("lists/en/a_text", 0.25, (0.0, 0.949))]);
    let sets: Vec<&str> = m.valid.iter().map(|set| &set.name[..]).collect();
    assert_eq!(sets, ["valid_en", "all", "own"]);
    let all = [row("lists/en/a_text", 0.5, (0.949, 0.999)), row("lists/fr", 0.5, (0.949, 0.999))];
    assert_eq!(shown(folder.path(), &m.valid[1].datasets), all);
    // The run's folder has the datasets, not the file, so that it means the same later.
    let record = loaded.record();
    fs::remove_dir_all(lists).unwrap();
    let again = parse(&record, "manifest.yaml", Path::new("/"), &[]);
    let again = again.unwrap_or_else(|problems| panic!("{problems}\n{record}"));
    assert_eq!(again.manifest.data.train, *train, "{record}");
    assert_eq!(again.manifest.data.valid, m.valid, "{record}");
}

#[test]
fn damaged_files_of_weights_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let complain = |data: &str, says: &[&str]| {
        let problems = load(folder.path(), data).unwrap_err();
        for says in says {
            assert!(problems.contains(says), "{says}: {problems}");
        }
    };
    let train = "  train: {weights_file: w.txt}\n";
    complain(train, &["m.yaml:9: data.train.weights_file: cannot read", "w.txt"]);
    for (text, says) in [
        ("", "w.txt has no group of datasets"),
        ("0.5 0:1 a\n", "group 1: `0.5 0:1 a` does not begin with a name and a colon"),
        ("\"t: 0.5 0:1\"", "group 1: `0.5 0:1` is not a weight, a range and a prefix"),
        ("\"t: x 0:1 a\"", "`x 0:1 a` has no number as its weight or range"),
        ("\"t: 1 0.5:2 a\"", "the range 0.5:2 is not within 0:1"),
        ("\"t: 1 0:1 a\" \"u: 1 0:1 b\"", "w.txt has 2 groups (t, u), and a blend is one"),
    ] {
        fs::write(folder.path().join("w.txt"), text).unwrap();
        complain(train, &[says, "→"]);
    }
    fs::write(folder.path().join("w.txt"), VALID).unwrap();
    let valid = "  train: corpus/a\n  valid: {\"*\": {weights_file: w.txt}}\n";
    complain(valid, &["group 2: `valid all: 1 0:1 x` does not begin with a name"]);
    complain(
        "  train: {weights_file: w.txt, weight: 2}\n",
        &["data.train has a weights_file and a weight", "keep one of them"],
    );
    complain(
        "  train: corpus/a\n  valid: {\"*\": corpus/b}\n",
        &["the set `*` names neither a pattern nor a weights_file"],
    );
    complain(
        "  train: \"corpus/*\"\n",
        &["data.train: no dataset matches", "corpus/*", "* matches a part of a name"],
    );
}

#[test]
fn patterns_name_datasets_and_sets() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t/de_text", "t/en_text", "t/en_code", "u/en_text", "t/.hidden_text"] {
        dataset(&folder.path().join(name), 300);
    }
    fs::write(folder.path().join("t/zz_text.bin"), "").unwrap();
    let data = "  train: [\"t/*_text\", {prefix: u/en_tex?, weight: 3}]\n  \
                valid: {\"*\": {prefix: \"?/e*_*\", range: 0.5..1}}\n";
    let m = load(folder.path(), data).unwrap().manifest.data;
    let train = shown(folder.path(), &m.train);
    let whole = (0.0, 1.0);
    assert_eq!(
        train,
        [row("t/de_text", 1.0, whole), row("t/en_text", 1.0, whole), row("u/en_text", 3.0, whole)]
    );
    let sets: Vec<_> = m
        .valid
        .iter()
        .map(|set| (&set.name[..], shown(folder.path(), &set.datasets).remove(0)))
        .collect();
    let half = (0.5, 1.0);
    let expected = [
        ("t_n_code", row("t/en_code", 1.0, half)),
        ("t_n_text", row("t/en_text", 1.0, half)),
        ("u_n_text", row("u/en_text", 1.0, half)),
    ];
    assert_eq!(sets, expected);
    let twice = "  train: t/de_text\n  valid: {\"*\": \"t/*_text\", en: u/en_text}\n";
    let problems = load(folder.path(), twice).unwrap_err();
    assert!(problems.contains("data.valid: two sets have the name en"), "{problems}");
}

/// p ∝ n^α, where n counts the part of the dataset that is read.
#[test]
fn weights_by_size_are_a_power_of_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    dataset(&folder.path().join("small"), 1000);
    dataset(&folder.path().join("large"), 16_000);
    let weights = |more: &str| {
        let data = format!("  train: [small, {{prefix: large, range: 0.5..1}}]\n{more}");
        let loaded = load(folder.path(), &data)?;
        let own: Vec<f64> = loaded
            .manifest
            .data
            .train
            .iter()
            .map(|d| d.weight)
            .collect();
        Ok::<_, String>(own)
    };
    for (exponent, ratio) in [("0", 1.0), ("0.5", 8f64.sqrt()), ("1", 8.0)] {
        let data = format!("  split: 1,0,0\n  size_exponent: {exponent}\n");
        let [small, large] = weights(&data).unwrap()[..] else { panic!("two datasets") };
        assert!((large / small - ratio).abs() < 1e-12 && (small + large - 1.0).abs() < 1e-12);
    }
    let problems = |data: &str| load(folder.path(), data).unwrap_err();
    let given = problems("  train: [{prefix: small, weight: 2}, large]\n  size_exponent: 0.3\n");
    assert!(
        given.contains("data.train.0 has a weight, and data.size_exponent computes"),
        "{given}"
    );
    let missing = problems("  train: [small, none]\n  size_exponent: 0.3\n");
    assert!(missing.contains("data.train.1: cannot count the tokens of"), "{missing}");
    let above = problems("  train: small\n  size_exponent: 1.5\n");
    assert!(above.contains("data.size_exponent is 1.5"), "{above}");
}
