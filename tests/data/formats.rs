//! Containers of text: tables, JSON lines, lists of files; and files that are not text.

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
pub fn documents(prefix: &Path) -> Vec<String> {
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

pub fn build(folder: &Path, arguments: &str) -> Vec<String> {
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
    let mut names = vec!["a.csv"];
    if cfg!(feature = "parquet") {
        names.extend(["none.parquet", "snappy.parquet", "gzip.parquet", "zstd.parquet"]);
        names.extend(["lz4.parquet", "brotli.parquet"]);
    }
    for name in &names {
        take(&folder, name, name);
        assert_eq!(build(&folder, &format!("{name} --key body")), TEXTS, "{name}");
        let error = bad(&folder, &format!("build {name} -t bytes -o x"), 2);
        assert!(error.contains("no column \"text\"") && error.contains("body"), "{error}");
    }
    take(&folder, "a.csv", "table");
    assert_eq!(build(&folder, "table --format csv --key body"), TEXTS);
    take(&folder, "a.tsv", "a.tsv");
    assert_eq!(build(&folder, "a.tsv --format quoted-tsv --key body"), TEXTS);
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

/// As Python's csv with `strict` and pandas: rows do not run into each other, and no quote is lost.
#[test]
fn a_quote_that_is_not_closed_is_named_by_its_line() {
    let folder = folder("quotes");
    let rows = [
        "1,fine",
        "2,\"open",
        "3,third",
        "4,\"a \"\"b\"\"\nc\"",
        "5,it is 5\" long",
        "6,\"back\\\" slash\"",
        "7,\"\"",
        "8,\"x\nlast",
        "9,y",
    ];
    for end in ["\n", "\r\n"] {
        let table = format!("id,text\n{}", rows.join("\n")).replace('\n', end);
        fs::write(folder.join("t.csv"), table).unwrap();
        let error = bad(&folder, "build t.csv -t bytes -o x", 2);
        let says = "t.csv:3: the quote that opens column 2 is closed before the field's end";
        assert!(error.contains(says), "{error}");
        let texts = build(&folder, "t.csv --skip-invalid");
        let two = format!("a \"b\"{end}c");
        let wanted = ["fine", "third", &two, "it is 5\" long", "", "y"];
        assert_eq!(texts, wanted.map(str::to_string), "{end:?}");
    }
    fs::write(folder.join("t.csv"), "id,text\n1,a\n\n2,\"b\nc\n3,d\n").unwrap();
    let error = bad(&folder, "build t.csv -t bytes -o x", 2);
    assert!(error.contains("t.csv:4: the quote that opens column 2 is not closed"), "{error}");
    assert_eq!(build(&folder, "t.csv --skip-invalid"), ["a", "d"]);
    fs::write(folder.join("t.csv"), "id,\"text\n1,a\n").unwrap();
    let error = bad(&folder, "build t.csv -t bytes -o x", 2);
    assert!(error.contains("t.csv:1: the quote that opens column 2 is not closed"), "{error}");
}

/// Random tables, written with and without quotes, against their texts; with rows inserted whose quote
/// is not closed, which alone are skipped.
#[test]
fn random_tables_give_their_texts() {
    let folder = folder("random tables");
    let mut drawn = 0u128;
    let mut below = |n: u64| {
        drawn += 1;
        base::rng::philox(11, drawn)[0] as usize % n as usize
    };
    let letters = ["a", "b ", "\"", "\"\"", ",", "\n", "\r\n", "é", "'", "\t", "\\"];
    for table in 0..30 {
        let end = ["\n", "\r\n"][table % 2];
        let (mut text, mut wanted, mut skipped) = (format!("id,text,more{end}"), Vec::new(), 0);
        for _ in 0..below(20) {
            let field: String = (0..below(6)).map(|_| letters[below(11)]).collect();
            // A field that begins with a comma would close a quote that is open in the row before.
            let field = if field.is_empty() { field } else { format!("x{field}") };
            let special = field.contains(['"', ',', '\n', '\r']);
            let quoted = format!("\"{}\"", field.replace('"', "\"\""));
            let written = if special || below(2) == 0 { &quoted } else { &field };
            text += &format!("1,{written},\"last\"{end}");
            wanted.push(field);
            if below(5) == 0 {
                text += &format!("1,\"open,last{end}");
                skipped += 1;
            }
        }
        wanted.push("end".into());
        text += "2,end,\"closed\"";
        fs::write(folder.join("t.csv"), &text).unwrap();
        fs::remove_file(folder.join("x.idx")).ok();
        let said = good(&folder, "build t.csv -t bytes -o x --skip-invalid --overwrite");
        assert_eq!(documents(&folder.join("x")), wanted, "{text}");
        let says = [String::new(), "1 line could not".into(), format!("{skipped} lines could not")];
        assert!(said.contains(&says[skipped.min(2)]), "{said}\n{text}");
    }
}

/// Writers of TSV know no quotes: web text has them at any place.
#[test]
fn quotes_in_tsv_are_letters() {
    let folder = folder("tsv");
    let table = "id\ttext\n1\t\"open\n2\tsecond\"\r\n3\t\"said\"\n4\ta\rb\n";
    fs::write(folder.join("t.tsv"), table).unwrap();
    assert_eq!(build(&folder, "t.tsv"), ["\"open", "second\"", "\"said\"", "a\rb"]);
    let error = bad(&folder, "build t.tsv --format quoted-tsv -t bytes -o x", 2);
    assert!(error.contains("t.tsv:6: the row has 1 column; the header has 2"), "{error}");
    fs::write(folder.join("t.tsv"), "id\ttext\n1\t\"a \"\"b\"\"\"\n").unwrap();
    let output = data(&folder, "build t.tsv -t bytes -o x").output().unwrap();
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && note.contains("--format quoted-tsv"), "{note}");
    assert_eq!(documents(&folder.join("x")), ["\"a \"\"b\"\"\""]);
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

/// Python's json writes NaN and infinities, and JSON of other programs spans lines.
#[test]
fn fields_that_are_not_asked_for_may_hold_what_python_writes() {
    let folder = folder("python json");
    let lines = [
        "\u{feff}{\"text\": \"one\", \"score\": NaN}",
        "{\"score\": -Infinity, \"text\": \"two NaN\"}",
        "{\"meta\": {\"p\": [1.5, Infinity, {\"q\": NaN}]}, \"text\": \"three\\u00e9\"}",
        "{\"cut\": \"\\ud83d\", \"n\": 1e999, \"text\": \"four\"}",
    ];
    fs::write(folder.join("a.jsonl"), lines.join("\n")).unwrap();
    let texts = ["one", "two NaN", "threeé", "four"];
    assert_eq!(build(&folder, "a.jsonl"), texts);
    assert_eq!(build(&folder, "a.jsonl --skip-invalid"), texts);
    fs::write(folder.join("b.jsonl"), "{\"a\": NaN, \"text\": NaN}").unwrap();
    let error = bad(&folder, "build b.jsonl -t bytes -o x", 2);
    assert!(error.contains("b.jsonl:1: invalid type: null or NaN, expected"), "{error}");
    fs::write(folder.join("b.jsonl"), "{\"a\": NaN, \"b\": nan}").unwrap();
    let error = bad(&folder, "build b.jsonl -t bytes -o x", 2);
    assert!(error.contains("b.jsonl:1: expected ident, at column 18"), "{error}");
}

#[test]
fn an_object_over_several_lines_is_named() {
    let folder = folder("pretty");
    for text in
        ["{\n  \"text\": \"a\"\n}\n", "{\"text\": \"a\"}\n{\"text\": \"b\",\n\"score\": NaN}"]
    {
        fs::write(folder.join("p.json"), text).unwrap();
        let error = bad(&folder, "build p.json -t bytes -o x", 2);
        assert!(error.contains("an object over several lines, and not JSON lines"), "{error}");
        assert!(error.contains("jq -c . FILE"), "{error}");
    }
    for (line, says) in [
        ("{\"text\": \"a\"} {\"text\": \"b\"}", "trailing characters, at column 15"),
        ("\"context\"", "expected a JSON object"),
        ("[\"text\", \"b\"]", "expected a JSON object"),
        ("42", "expected a JSON object"),
        ("{\"text\": \"cut", "EOF while parsing a string"),
    ] {
        fs::write(folder.join("p.json"), format!("{{\"text\": \"fine\"}}\n{line}\n")).unwrap();
        let error = bad(&folder, "build p.json -t bytes -o x", 2);
        assert!(error.contains("p.json:2: ") && error.contains(says), "{line}: {error}");
        assert!(!error.contains("jq"), "{error}");
    }
}

#[test]
fn other_encodings_are_named_with_the_command_that_converts_them() {
    let folder = folder("encodings");
    let utf_16 = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    };
    let marked = utf_16("\u{feff}one é", u16::to_le_bytes);
    let big = utf_16("\u{feff}one", u16::to_be_bytes);
    let (le, be) = (utf_16("plain", u16::to_le_bytes), utf_16("plain", u16::to_be_bytes));
    let utf_32: Vec<u8> = "\u{feff}one"
        .chars()
        .flat_map(|c| (c as u32).to_le_bytes())
        .collect();
    for (bytes, says) in [
        (marked, "is UTF-16 text\n    → convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
        (big, "iconv -f UTF-16 "),
        (le, "iconv -f UTF-16LE "),
        (be, "iconv -f UTF-16BE "),
        (utf_32, "iconv -f UTF-32 "),
        (b"caf\xe9".to_vec(), "byte 0xe9\n    → convert it from its encoding: iconv -f LATIN1 "),
        (b"\x93caf\xe9\x94".to_vec(), "iconv -f WINDOWS-1252 "),
        ("né".bytes().chain(*b"\xff").collect(), "→ repair the file"),
    ] {
        for name in ["a.txt", "a.jsonl"] {
            fs::write(folder.join(name), &bytes).unwrap();
            let error = bad(&folder, &format!("build {name} -t bytes -o x"), 2);
            assert!(error.contains(says), "{says} {name}: {error}");
        }
    }
    fs::write(folder.join("b.txt"), "\u{feff}marked").unwrap();
    assert_eq!(build(&folder, "b.txt"), ["marked"]);
}

#[test]
fn paragraphs_are_documents() {
    let folder = folder("paragraphs");
    let text = "\n\none\ntwo\r\n \t\nthree\n\n\n\nfour";
    fs::write(folder.join("a.txt"), text).unwrap();
    let documents = build(&folder, "a.txt --format paragraphs");
    assert_eq!(documents, ["one\ntwo", "three", "four"]);
    // Over chunks of a megabyte.
    let long: Vec<String> = (0..4000)
        .map(|i| format!("{i} {}\n{i}", "word ".repeat(200)))
        .collect();
    fs::write(folder.join("b.txt"), long.join("\n\n")).unwrap();
    assert_eq!(build(&folder, "b.txt --format paragraphs"), long);
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
        ("a.py", "its name does not say what it holds\n    → pass --format"),
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
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"code/a.py\n")
        .unwrap();
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
