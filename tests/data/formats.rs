//! Containers of text: tables, compressed files, folders, lists of files; and files that are not
//! text.

use super::cli::{bad, data, fixture, folder, good};
use gptrain::data::indexed::Indexed;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// As tests/fixtures/data/tables/make.py has them.
const TEXTS: [&str; 4] =
    ["It is a truth, \"universally\" acknowledged", "two\nlines\tand a tab", "", "日本語 \\ é"];

/// The documents of a dataset of bytes.
fn documents(prefix: &Path) -> Vec<String> {
    let dataset = Indexed::open(prefix).unwrap();
    let text = |document| {
        let mut bytes = Vec::new();
        for sequence in dataset.document(document) {
            let mut tokens = vec![0; dataset.lengths()[sequence] as usize];
            dataset.read(sequence, 0, &mut tokens).unwrap();
            bytes.extend(tokens.iter().map(|token| *token as u8));
        }
        String::from_utf8(bytes).unwrap()
    };
    (0..dataset.documents()).map(text).collect()
}

fn build(folder: &Path, arguments: &str) -> Vec<String> {
    for end in ["bin", "idx"] {
        fs::remove_file(folder.join("out").with_extension(end)).ok();
    }
    good(folder, &format!("build {arguments} -t bytes -o out"));
    documents(&folder.join("out"))
}

/// Copies a fixture under a name.
fn take(folder: &Path, from: &str, to: &str) {
    fs::copy(fixture("tables").join(from), folder.join(to)).unwrap();
}

#[test]
fn tables_give_the_texts_of_a_column() {
    let folder = folder("tables");
    let mut names = vec!["a.csv", "a.tsv"];
    if cfg!(feature = "parquet") {
        names.extend(["none", "snappy", "gzip", "zstd", "lz4"].map(|codec| match codec {
            "none" => "none.parquet",
            "snappy" => "snappy.parquet",
            "gzip" => "gzip.parquet",
            "zstd" => "zstd.parquet",
            _ => "lz4.parquet",
        }));
    }
    for name in &names {
        take(&folder, name, name);
        assert_eq!(build(&folder, &format!("{name} --key body")), TEXTS, "{name}");
        let error = bad(&folder, &format!("build {name} -t bytes -o x"), 2);
        assert!(error.contains("no column \"text\"") && error.contains("body"), "{error}");
    }
    take(&folder, "a.csv", "table");
    assert_eq!(build(&folder, "table --format csv --key body"), TEXTS);
    if cfg!(feature = "parquet") {
        assert_eq!(build(&folder, "snappy.parquet --key meta.text"), TEXTS);
        let error = bad(&folder, "build snappy.parquet --key id -t bytes -o x", 2);
        assert!(error.contains("the column \"id\" holds INT64"), "{error}");
        take(&folder, "null.parquet", "null.parquet");
        let error = bad(&folder, "build null.parquet -t bytes -o x", 2);
        assert!(error.contains("null.parquet:2: invalid type: null"), "{error}");
        assert_eq!(build(&folder, "null.parquet --skip-invalid"), ["a", "b"]);
        // A length in the dictionary, over which the crate panics.
        let mut bytes = fs::read(fixture("tables/lz4.parquet")).unwrap();
        bytes[575] = 0;
        fs::write(folder.join("bad.parquet"), bytes).unwrap();
        let error = bad(&folder, "build bad.parquet --key body -t bytes -o x", 2);
        assert!(error.contains("bad.parquet: cannot be read: "), "{error}");
    }
}

/// A row of other columns is named by its line of the table, or left out and counted.
#[test]
fn a_ragged_row_is_named_or_left_out() {
    let folder = folder("ragged");
    for end in ["\n", "\r\n"] {
        let table = ["id,text", "1,a", "\"2\",\"b", "c\"", "3", "4,d", "5,e,f"].join(end);
        fs::write(folder.join("t.csv"), table).unwrap();
        let error = bad(&folder, "build t.csv -t bytes -o x", 2);
        let says = "t.csv:5: the row has 1 column; the header has 2";
        assert!(error.contains(says) && error.contains("--skip-invalid"), "{error}");
        let said = good(&folder, "build t.csv -t bytes -o x --skip-invalid");
        assert!(said.contains("2 lines could not be read and are left out"), "{said}");
        assert_eq!(documents(&folder.join("x")), ["a", &format!("b{end}c"), "d"]);
        for end in ["bin", "idx"] {
            fs::remove_file(folder.join("x").with_extension(end)).unwrap();
        }
    }
}

/// Rows are held in memory: a header of commas would take 16 bytes for each.
#[test]
fn a_row_without_end_is_refused() {
    let folder = folder("endless row");
    for (name, row) in
        [("header.csv", ",".repeat(2 << 20)), ("row.csv", format!("text\n{}", ",".repeat(2 << 20)))]
    {
        fs::write(folder.join(name), row).unwrap();
        let error = bad(&folder, &format!("build {name} -t bytes -o x --skip-invalid"), 2);
        let says = format!("{name}: has a row of more than 1,048,576 columns");
        assert!(error.contains(&says) && error.contains("→ close a quote"), "{error}");
    }
}

#[test]
fn xz_and_bz2_are_unpacked() {
    let folder = folder("compressed");
    let lines = [format!("{}\n{}", TEXTS[0], TEXTS[3])];
    for name in ["lines.txt.xz", "lines.txt.bz2"] {
        take(&folder, name, name);
        assert_eq!(build(&folder, name), lines, "{name}");
        let whole = fs::read(folder.join(name)).unwrap();
        fs::write(folder.join(name), &whole[..whole.len() / 2]).unwrap();
        bad(&folder, &format!("build {name} -t bytes -o x"), 1);
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let folder = folder("refused");
    take(&folder, "snappy.parquet", "named.txt");
    fs::write(folder.join("a.py"), "print()").unwrap();
    fs::write(folder.join("array.json"), " [{\"text\": \"a\"}]").unwrap();
    fs::write(folder.join("other.jsonl"), "{\"content\": \"a\", \"id\": 1}").unwrap();
    let mut tar = vec![0; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    fs::write(folder.join("a.tar"), tar).unwrap();
    for (arguments, says) in [
        ("a.py", "its name does not say what it holds\n    → say --format"),
        ("a.tar --format txt", "is a tar archive"),
        ("named.txt --skip-invalid", "is a Parquet file"),
        ("array.json", "is a JSON array"),
        ("other.jsonl", "no field \"text\"; it has \"content\", \"id\"\n    → name the field"),
        ("--ext rs .", "the folder holds no files that end in .rs"),
    ] {
        let error = bad(&folder, &format!("build {arguments} -t bytes -o x"), 2);
        assert!(error.contains(says), "{arguments}: {error}");
        assert!(!folder.join("x.bin").exists() && !folder.join("x.bin.partial").exists());
    }
    assert_eq!(build(&folder, "a.py --format txt"), ["print()"]);
    assert_eq!(build(&folder, "other.jsonl --key content"), ["a"]);
    fs::write(folder.join("deep.jsonl"), "{\"a\": {\"b\": \"deep\"}, \"a.c\": \"flat\"}").unwrap();
    assert_eq!(build(&folder, "deep.jsonl --key a.b"), ["deep"]);
}

#[test]
fn folders_by_ending_and_lists_of_files() {
    let folder = folder("endings");
    fs::create_dir(folder.join("code")).unwrap();
    for (name, text) in [("a.py", "a"), ("b.rs", "b"), ("c.md", "c"), ("d.PY", "d")] {
        fs::write(folder.join("code").join(name), text).unwrap();
    }
    assert_eq!(build(&folder, "code --ext py,.rs"), ["a", "b", "d"]);
    assert_eq!(build(&folder, "code"), ["c"]);
    fs::write(folder.join("list"), "code/b.rs\n\ncode/a.py\n").unwrap();
    assert_eq!(build(&folder, "--files-from list --format txt"), ["b", "a"]);
    fs::remove_file(folder.join("out.bin")).unwrap();
    fs::remove_file(folder.join("out.idx")).unwrap();
    let mut command = data(&folder, "build --files-from - --format txt -t bytes -o out");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"code/a.py\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(documents(&folder.join("out")), ["a"]);
    let error = bad(&folder, "build --files-from nowhere -t bytes -o x", 2);
    assert!(error.contains("nowhere: does not exist"), "{error}");
}

#[test]
fn documents_are_shuffled_by_a_seed() {
    let folder = folder("shuffled");
    let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
    fs::write(folder.join("a.txt"), lines.join("\n")).unwrap();
    let shuffled = |seed| build(&folder, &format!("a.txt --format lines --shuffle {seed}"));
    let (one, again, two) = (shuffled(1), shuffled(1), shuffled(2));
    assert!(one == again && one != two && one != lines);
    let mut sorted = one;
    sorted.sort_by_key(|line| line[5..].parse::<u32>().unwrap());
    assert_eq!(sorted, lines);
    assert!(!folder.join("out.unshuffled").exists());
}
