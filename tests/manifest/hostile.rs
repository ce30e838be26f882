//! Broken text, bombs, strange files, and thousands of mutated manifests: an error, never a panic.

use crate::{GOOD, check_added, check_set, check_whole, complaints};
use gptrain::base::{Problems, rng};
use gptrain::manifest::{load, parse};
use std::path::{Path, PathBuf};

#[test]
fn broken_yaml_is_named_with_its_line() {
    check_whole("", "m.yaml: the manifest is empty → it needs model, data, batch, lr, train");
    check_whole(
        "a manifest",
        "m.yaml: a manifest is keys with values, such as `name: my-run` → see \
         the files in manifests/",
    );
    check_whole(
        "name: a\nmodel: [1",
        "m.yaml:2: not YAML: unclosed bracket '[' (column 8) → check \
         indentation, colons and quotes at and above this line",
    );
    check_whole(
        "model:\n\tlayers: 1",
        "m.yaml:2: not YAML: tabs disallowed within this context \
         (block indentation) (column 2) → check indentation, colons and quotes at and above this line",
    );
    check_added(
        "name: b",
        "m.yaml:17: key `name` is given twice; the first is at m.yaml:1 → remove \
         one of them",
    );
    check_added(
        "---\nname: b",
        "m.yaml:17: a second document begins (`---`) → keep one experiment \
         per file",
    );
    check_added("log: !!map {}", "m.yaml:17: YAML tags (`!…`) are not used here → remove the tag");
    check_added(
        "<<: {name: b}",
        "m.yaml:17: merge keys (`<<`) are not used here → repeat the keys",
    );
    check_added("? [a]\n: b", "m.yaml:17: a key that is not a word → keys are plain words");
    check_added(
        "log: *x",
        "m.yaml:17: not YAML: while parsing node, found unknown anchor (column 6) \
         → check indentation, colons and quotes at and above this line",
    );
    check_set(
        "lr",
        "--set lr: there is no `=` → write --set KEY=VALUE, such as --set lr.peak=3e-4",
    );
    check_set(
        "lr.=3",
        "--set lr.=3: `lr.` is not a key → write --set KEY=VALUE, such as --set \
         lr.peak=3e-4",
    );
    check_set(
        "lr.decay=[",
        "--set lr.decay: not YAML: unclosed bracket '[' → the value is YAML: \
         quote it, as in --set 'a.b=[1, 2]'",
    );
    check_set(
        "data.train.0.weight=2",
        "--set data.train.0.weight: there is no `0` in the value \
         \"corpus/a\": set that value as a whole → give the path of one key",
    );
}

#[test]
fn bombs_are_small_errors() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_string();
    for i in 1..20 {
        let before = format!("*a{}", i - 1);
        laughs += &format!("a{i}: &a{i} [{}]\n", vec![before; 9].join(", "));
    }
    check_whole(
        &laughs,
        "m.yaml:6: more than 100000 values, counting what aliases (`*name`) repeat \
         → write out what is meant",
    );
    let deep = "[".repeat(100_000);
    assert!(complaints(&deep, &[]).starts_with("m.yaml:1: "), "{}", complaints(&deep, &[]));
    let deep = format!("a: {}{}", "[".repeat(60), "]".repeat(60));
    check_whole(
        &deep,
        "m.yaml:1: nested more than 32 levels deep → a manifest has at most 6 levels",
    );
    let long = format!("name: {}", "x".repeat(100 << 20));
    check_whole(
        &long,
        "m.yaml: the file has 100 MiB; a manifest has at most 4 MiB → give the path \
         of a manifest",
    );
    let long = format!("name: {}", "x".repeat(3 << 20));
    assert!(complaints(&long, &[]).len() < 5000);
    assert!(complaints(&long.replace("name", "data: {split"), &[]).len() < 5000);
    // Codes that a terminal would obey are shown, not sent.
    check_set(
        r#"name="\e[31mred\a""#,
        "--set name: name \"\u{fffd}[31mred\u{fffd}\" cannot name a folder → use letters, digits, \
         `-`, `_` and `.`",
    );
    let many: String = (0..40_000).map(|i| format!("key{i}: 1\n")).collect();
    assert_eq!(complaints(&many, &[]).lines().count(), 100);
}

/// A file of this test alone, gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let folder = std::env::temp_dir().join(format!("gptrain-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        std::fs::write(folder.join("m.yaml"), bytes).expect("a temporary file");
        Scratch(folder)
    }

    /// Error of `load`, without the folder.
    fn complaint(&self, file: &str) -> String {
        let path = self.0.join(file);
        let error = load(&path, &[]).expect_err("a mistake");
        let problems = error.downcast::<Problems>().expect("the user's mistake");
        assert_eq!(problems.list.len(), 1);
        problems
            .to_string()
            .replace(&*self.0.to_string_lossy(), "DIR")
            .replace("\n    →", " →")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_are_no_manifest_are_told_apart() {
    let scratch = Scratch::new("files", b"name: a\n\xff\xfe");
    assert_eq!(
        scratch.complaint("m.yaml"),
        "DIR/m.yaml:2: not UTF-8 text from here on → save the file as UTF-8"
    );
    assert_eq!(
        scratch.complaint(""),
        "DIR/: this is a folder → give the path of a manifest, such as FOLDER/run.yaml"
    );
    assert_eq!(
        scratch.complaint("n.yaml"),
        "DIR/n.yaml: there is no such file → did you mean DIR/m.yaml?"
    );
    // Sparse: the length alone decides, nothing is read.
    let file = std::fs::File::create(scratch.0.join("big.yaml")).expect("a file");
    file.set_len(100 << 30).expect("a sparse file");
    assert_eq!(
        scratch.complaint("big.yaml"),
        "DIR/big.yaml: the file has 102400 MiB; a manifest has at most 4 MiB → give the path of a \
         manifest"
    );
}

/// Seeded mutations of real manifests: bytes changed, lines lost, doubled, moved, indented.
#[test]
fn mutated_manifests_never_panic_and_what_is_accepted_means_the_same_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let real = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a manifest");
    let seeds = [GOOD.to_string(), real("tr11-176b-bloom.yaml"), real("gpt2-124m.yaml")];
    let (mut accepted, key) = (0, rng::key(1, "mutations"));
    for round in 0..3000u64 {
        let mut draw = Draw { key, next: round * 64 };
        let text = mutate(&seeds[draw.below(seeds.len())], &mut draw);
        if let Ok(loaded) = parse(&text, "m.yaml", Path::new("/"), &[]) {
            accepted += 1;
            let again = parse(&loaded.effective, "e.yaml", Path::new("/"), &[]);
            let again = again.unwrap_or_else(|e| panic!("{e}\n{text}\n{}", loaded.effective));
            assert_eq!(again.manifest, loaded.manifest, "{text}");
            let kept = parse(&loaded.record(), "e.yaml", Path::new("/"), &[]);
            let kept = kept.unwrap_or_else(|e| panic!("{e}\n{text}\n{}", loaded.record()));
            assert_eq!(kept.manifest, loaded.manifest, "{text}");
        }
    }
    assert!((200..2800).contains(&accepted), "{accepted} of 3000 accepted: not a fair mix");
}

struct Draw {
    key: u64,
    next: u64,
}

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        rng::below(self.key, self.next, n as u64) as usize
    }
}

fn mutate(text: &str, draw: &mut Draw) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    const WORDS: &[&str] = &[
        "0",
        "-1",
        "1e309",
        "~",
        "no",
        "[]",
        "{}",
        "'",
        "\"",
        "&a ",
        "*a",
        ": ",
        "- ",
        "#",
        "\t",
        "16",
        "18446744073709551615",
        "é",
        "\u{0}",
        "|",
        ">",
        "%",
        "null",
        "1.5",
        "constant",
        "---",
        "1_0",
    ];
    for _ in 0..1 + draw.below(3) {
        let at = draw.below(lines.len());
        let other = draw.below(lines.len());
        match draw.below(8) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(other, lines[at].clone()),
            2 => lines.swap(at, other),
            3 => lines[at].insert_str(0, ["", " ", "  ", "   "][draw.below(4)]),
            kind => {
                let chars: Vec<char> = lines[at].chars().collect();
                let from = draw.below(chars.len() + 1);
                let to = from
                    + draw
                        .below(chars.len() - from + 1)
                        .min(if kind == 4 { 99 } else { 3 });
                let word = WORDS[draw.below(WORDS.len())];
                let (head, tail) = (&chars[..from], &chars[to..]);
                lines[at] = head.iter().collect::<String>() + word + &String::from_iter(tail);
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}
