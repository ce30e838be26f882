//! Folders as other programs leave them: which of their files are a corpus.

use super::cli::{bad, data, folder, good};
use super::formats::{build, documents};
use std::fs;
use std::path::Path;

/// Writes files, by path and content, below a folder.
fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// Standard error of a build.
fn notes(folder: &Path, arguments: &str) -> String {
    let output = data(folder, &format!("build {arguments} -t bytes -o x --overwrite"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    error
}

/// `hf download --repo-type dataset NAME --local-dir web`, as huggingface_hub 1 lays it out.
const HUB: [(&str, &str); 9] = [
    ("web/.gitattributes", "*.parquet filter=lfs\n"),
    ("web/README.md", "---\nlicense: mit\n---\n# A dataset\n"),
    ("web/dataset_infos.json", "{\n  \"default\": {}\n}\n"),
    ("web/data/train-00000-of-00002.jsonl", "{\"text\": \"a\"}\n"),
    ("web/data/train-00001-of-00002.jsonl", "{\"text\": \"b\"}\n"),
    ("web/.cache/huggingface/.gitignore", "*"),
    ("web/.cache/huggingface/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n"),
    ("web/.cache/huggingface/download/README.md.metadata", "0123\n4567\n1764327600.0\n"),
    ("web/.cache/huggingface/download/data/train-00000-of-00002.jsonl", "{\"text\": \"cache\"}\n"),
];

#[test]
fn a_dataset_of_the_hub_is_its_tables() {
    let folder = folder("hub");
    write(&folder, &HUB);
    assert_eq!(build(&folder, "web"), ["a", "b"]);
    let said = notes(&folder, "web");
    assert!(
        said.contains(
            "note: 3 left out as hidden or as describing other files (name them to read them)"
        ) && said.contains("web/.cache/, web/README.md, web/dataset_infos.json\n"),
        "{said}"
    );
    assert_eq!(build(&folder, "web --format jsonl"), ["a", "b"]);
    good(&folder, "train-tokenizer web --vocab 260 --min-frequency 1 -o t.json");
    // A file that is named itself, or whose extension is asked for, is read.
    let card = HUB[1].1;
    assert_eq!(build(&folder, "web web/README.md"), ["a", "b", card]);
    assert_eq!(build(&folder, "web --ext md"), [card]);
    assert_eq!(build(&folder, "web/.cache"), ["cache"]);
}

#[test]
fn hidden_copies_are_left_out() {
    let folder = folder("copies");
    write(
        &folder,
        &[
            ("in/a.jsonl", "{\"text\": \"a\"}\n"),
            ("in/.ipynb_checkpoints/a-checkpoint.jsonl", "{\"text\": \"a\"}\n"),
            ("in/._a.jsonl", "\0\u{5}\u{16}\u{7}"),
            ("in/__MACOSX/a.txt", "b"),
            ("in/.hidden.txt", "c"),
            ("in/tokenizer.json", "{\n}\n"),
        ],
    );
    assert_eq!(build(&folder, "in"), ["a"]);
    assert!(notes(&folder, "in").contains("note: 5 left out"));
    assert_eq!(build(&folder, "in --ext txt"), ["c"]);
    assert_eq!(build(&folder, "in/__MACOSX in/.hidden.txt"), ["b", "c"]);
    write(&folder, &[("none/config.json", "{}")]);
    let error = bad(&folder, "build none -t bytes -o y", 2);
    assert!(error.contains("the folder holds no") && error.contains("none/config.json"), "{error}");
}

/// A folder of texts may consist of such names alone.
#[test]
fn a_folder_of_cards_is_text() {
    let folder = folder("cards");
    write(&folder, &[("in/one/README.md", "1"), ("in/two/README.md", "2")]);
    assert_eq!(build(&folder, "in"), ["1", "2"]);
    write(&folder, &[("in/two/guide.md", "3")]);
    assert_eq!(build(&folder, "in"), ["3"]);
    assert!(notes(&folder, "in").contains("in/one/README.md, in/two/README.md"));
}

#[test]
fn splits_beside_train_are_said() {
    let folder = folder("splits");
    write(&folder, &HUB);
    assert!(!notes(&folder, "web").contains("splits"));
    write(&folder, &[("web/data/test-00000-of-00001.jsonl", "{\"text\": \"t\"}\n")]);
    write(&folder, &[("web/dev/a.jsonl", "{\"text\": \"v\"}\n")]);
    let said = notes(&folder, "web");
    let says = "web has splits by name: besides 2 of train, 1 of test and 1 of validation \
                (web/data/test-00000-of-00001.jsonl) are read; name only the files of train";
    assert!(said.contains(says), "{said}");
    assert_eq!(documents(&folder.join("x")), ["t", "a", "b", "v"]);
}
