//! Comments, doc comments, strings and docs are plain technical English.
//!
//! Rules: a doc comment begins with the noun that the item is or the verb of what it does; no
//! stand-in subjects; no stage verbs for machines; "is not a" instead of "is no". The tables have
//! the plain word beside each. C++, CUDA, scripts and settings have no doc comments of their own, so all
//! their comments obey the rule of doc comments.

use crate::source::{Kind, Prose, files, prose, text_of_markdown, text_of_script};
use std::path::Path;

/// First words that a doc comment must not have, and how to begin instead.
const BEGINNINGS: &[(&str, &str)] = &[
    ("what", "the noun that the item is, or the verb of what it does"),
    ("of", "the noun itself: \"Digest of …\""),
    ("whose", "the noun: \"Owner of …\""),
    ("how", "the noun: \"Number of …\", \"Poll interval\""),
    ("where", "the noun: \"Address of …\", \"Buffer for …\""),
    ("who", "the noun: \"Rank that …\""),
    ("for how long", "the noun: \"Time limit of …\""),
];

/// Words for persons or things that no sentence names.
const STAND_INS: &[(&str, &str)] = &[
    ("nobody", "name it: no rank, no other thread"),
    ("somebody", "name it: another process, the caller"),
    ("anybody", "name it"),
    ("everybody", "name it: every rank"),
    ("whoever", "name it: the caller, the rank that …"),
    ("one who", "name it"),
    ("the asker", "the caller"),
    ("what is left", "the remaining rows, the rest"),
    ("is left of", "remains of"),
    ("what there is", "name it"),
];

/// Verbs of a stage, for machines.
const STAGE_VERBS: &[(&str, &str)] = &[
    ("goes on", "continues, resumes"),
    ("go on", "continue, resume"),
    ("going on", "continuing"),
    ("went on", "continued, resumed"),
    ("comes to", "joins, connects to, becomes"),
    ("come to", "join, connect to, become"),
    ("came to", "joined, connected to"),
    ("did not come", "did not connect"),
    ("stands", "is stored, means"),
    ("lies", "is stored, is placed"),
    ("stays", "remains"),
    ("is told", "receives"),
    ("are told", "receive"),
    ("tells", "reports, shows, returns"),
    ("is heard", "is received"),
    ("hears", "receives"),
    ("knows", "has, receives"),
    ("forgets", "drops, clears"),
    ("befalls", "happens to"),
    ("befallen", "new faults"),
    ("on its way", "in flight"),
    ("on their way", "in flight"),
    ("under way", "in flight, running, pending"),
    ("waits for what", "name what it waits for"),
    ("anew", "again"),
];

/// "is no table" is "is not a table"; "there is no table" is plain.
const NEGATIONS: &[&str] = &["is no", "are no", "was no", "were no"];

/// Folders, and the extensions of their files.
const FOLDERS: &[(&str, &[&str])] = &[
    ("src", &["rs", "toml", "yaml", "py"]),
    ("tests", &["rs"]),
    ("tests/softgpu", &["cpp", "h", "sh"]),
    ("tests/tracer", &["cpp"]),
    ("benches", &["rs", "py", "sh", "md"]),
    ("kernels", &["cu", "cuh", "py", "sh"]),
    ("docs", &["md"]),
    ("manifests", &["yaml"]),
    ("datasets", &["md", "py"]),
    ("fuzz/fuzz_targets", &["rs"]),
    ("packaging", &["py"]),
];

/// Files of the top folder.
const FILES: &[&str] = &[
    ".ci/run",
    ".config/nextest.toml",
    "Cargo.toml",
    "Makefile",
    "README.md",
    "build.rs",
    "clippy.toml",
    "deny.toml",
    "fuzz/Cargo.toml",
];

/// Files with the tables of these words.
const TABLES: &[&str] = &["tests/tidy/prose.rs", "tests/tidy/words.rs"];

/// Extensions of C++ and CUDA files.
const CPP: &[&str] = &["cu", "cuh", "cpp", "h"];

/// Whether `text`, which is in lower case, contains a phrase as whole words. Returns its place.
fn find(text: &str, phrase: &str) -> Option<usize> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(phrase).map(|(at, _)| at).find(|at| {
        let before = text[..*at].chars().next_back().is_none_or(|c| !in_word(c));
        before
            && text[at + phrase.len()..]
                .chars()
                .next()
                .is_none_or(|c| !in_word(c))
    })
}

/// Findings about one comment, string or paragraph: the phrase, and the plain words.
fn check(prose: &Prose) -> Vec<String> {
    let text = prose.text.to_lowercase();
    let mut found = Vec::new();
    let doc = matches!(prose.kind, Kind::Doc);
    for (word, plain) in BEGINNINGS.iter().filter(|_| doc) {
        if find(&text, word) == Some(0) {
            found.push(format!("a doc comment begins with \"{word}\": write {plain}"));
        }
    }
    for (phrase, plain) in STAND_INS.iter().chain(STAGE_VERBS) {
        let physical = *phrase == "lies" && text.contains("lies at address");
        if find(&text, phrase).is_some() && !physical {
            found.push(format!("\"{phrase}\": write {plain}"));
        }
    }
    for phrase in NEGATIONS {
        if let Some(at) = find(&text, phrase) {
            let exists = text[..at].trim_end().ends_with("there");
            let longer = text[at + phrase.len()..].trim_start();
            if !exists && !longer.starts_with("longer") && !longer.starts_with("more") {
                found.push(format!("\"{phrase}\": write is not a, does not"));
            }
        }
    }
    found
}

/// Findings of a file's text, each with its line.
fn findings(file: &Path, text: &str) -> Vec<String> {
    let extension = file
        .extension()
        .and_then(|ext| ext.to_str())
        .unwrap_or_default();
    let mut all = match extension {
        "md" => text_of_markdown(text),
        "rs" | "cu" | "cuh" | "cpp" | "h" => prose(text),
        _ => text_of_script(text),
    };
    if CPP.contains(&extension) {
        all.iter_mut()
            .filter(|one| one.kind == Kind::Comment)
            .for_each(|one| one.kind = Kind::Doc);
    }
    let one = |prose: &Prose| {
        let place = format!("{}:{}", file.display(), prose.line);
        check(prose)
            .into_iter()
            .map(move |what| format!("{place}: {what}"))
            .collect::<Vec<_>>()
    };
    all.iter().flat_map(one).collect()
}

#[test]
fn every_text_is_plain() {
    let kinds = FOLDERS
        .iter()
        .flat_map(|(folder, all)| all.iter().map(move |ext| (folder, ext)));
    let mut all: Vec<_> = kinds.flat_map(|(folder, ext)| files(folder, ext)).collect();
    all.extend(
        FILES
            .iter()
            .map(|file| (file.into(), std::fs::read_to_string(file).unwrap())),
    );
    all.retain(|(file, _)| !TABLES.iter().any(|table| file == Path::new(table)));
    let found: Vec<String> = all
        .iter()
        .flat_map(|(file, text)| findings(file, text))
        .collect();
    assert!(found.is_empty(), "{} sentences are not plain:\n{}", found.len(), found.join("\n"));
}

/// Every rule finds a planted sentence in every kind of text, and passes the plain one.
#[test]
fn each_rule_finds_a_planted_sentence() {
    let rust = |text: &str| findings(Path::new("planted.rs"), text);
    let begins = |text: &str| text.contains("a doc comment begins with");
    let planted = ["What", "Of", "Whose", "How", "Where", "Who", "For how long"];
    for word in planted {
        let found = rust(&format!("/// {word} a rank does.\nfn a() {{}}\n"));
        assert!(found.len() == 1 && begins(&found[0]), "{word}: {found:?}");
        assert!(found[0].starts_with("planted.rs:1: "), "{found:?}");
        let found = rust(&format!("//! {word} a rank does.\n"));
        assert!(found.len() == 1 && begins(&found[0]), "{word}: {found:?}");
        assert_eq!(rust(&format!("// {word} a rank does.\n")), Vec::<String>::new());
        for file in CPP.iter().map(|ext| format!("planted.{ext}")) {
            let behind = format!("int a; // {word} a rank does.\n");
            let found = findings(Path::new(&file), &behind);
            assert!(found.len() == 1 && begins(&found[0]), "{word}: {found:?}");
        }
    }
    for (file, text) in [
        ("planted.sh", "#!/bin/sh\n# Runs it.\nrun\n    # What a rank does.\n"),
        ("planted.py", "def run():\n\n    \"\"\"Whose a rank is.\"\"\"\n"),
        ("planted.py", "\n\"\"\"Runs it\non a rank.\n\nnobody\n\"\"\"\n"),
        ("planted.py", "\"\"\"Runs it.\"\"\"\n\nx = 1\n# nobody\n"),
        ("planted.yaml", "key: \"a # b\" # Of a rank.\n"),
        ("Makefile", "run: build # Nobody runs it.\n"),
    ] {
        let found = findings(Path::new(file), text);
        assert!(found.len() == 1, "{text:?}: {found:?}");
    }
    let phrases = STAND_INS
        .iter()
        .chain(STAGE_VERBS)
        .map(|(phrase, _)| *phrase);
    for phrase in phrases.chain(["is no table"]) {
        let kinds = [
            format!("/// The rank {phrase} here.\nfn a() {{}}\n"),
            format!("fn a() {{}} // the rank {phrase} here\n"),
            format!("fn a() {{ bail!(\"the rank {phrase} here\") }}\n"),
            format!("fn a() {{ bail!(r#\"the rank {phrase} here\"#) }}\n"),
            format!("// the rank {}\n// here\n", phrase.replace(' ', "\n// ")),
        ];
        for text in kinds {
            assert!(!rust(&text).is_empty(), "{phrase} in {text:?}");
        }
        let page = format!("# A page\n\nThe rank {phrase} here.\n");
        let found = findings(Path::new("planted.md"), &page);
        assert!(found.iter().all(|line| line.starts_with("planted.md:3: ")), "{found:?}");
        assert!(!found.is_empty(), "{phrase} in {page:?}");
    }
}

#[test]
fn plain_sentences_pass() {
    let text = "\
/// Poll interval. There is no limit, and it is no longer read. See `what_is_left` and `lies`.
const POLL: &str = \"the tensor lies at address 4096\"; // Whereas this one is a remark
/// Whether a rank waits.
fn goes_on(c: char) -> bool { c == '\"' || c == 'x' }
";
    assert_eq!(findings(Path::new("plain.rs"), text), Vec::<String>::new());
    let page = "The stand-in answers.\n\n```sh\nnobody goes on\n```\n\n    whoever | lies\n";
    assert_eq!(findings(Path::new("plain.md"), page), Vec::<String>::new());
}
