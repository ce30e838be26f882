//! The house rules, as tests. They read the source as text.
//!
//! | module | tests |
//! |---|---|
//! | `main` | floors name only floors below; files and functions fit; `unsafe`, clocks and a GPU's vendor in few places; lints |
//! | `circles` | no files import each other in a circle |
//! | `words` | private words that do not come back |
//! | `prose` | comments, strings and docs are plain English |
//! | `fresh` | a build without a change does nothing |
//! | `gpu_hour` | the script of a GPU's first hour, with stand-ins for its programs |
//! | `testing` | helpers of tests are in no other build |
//! | `dialects` | names of other programs are in one table |
//! | `docs` | README and `docs/`: dependencies, files that are named, length |

mod circles;
mod dialects;
mod docs;
mod fresh;
mod gpu_hour;
mod prose;
mod source;
mod testing;
mod words;

use source::{code, files, floors};
use std::fs;
use std::path::{Path, PathBuf};

/// Places that may access raw memory: devices, groups of ranks, and the one file that maps
/// datasets.
const UNSAFE: &[&str] = &["src/device/", "src/comm/", "src/data/indexed/map.rs"];

/// The compiler keeps a crate from using one that it does not name: here the list of floors is that
/// of their names, ground floor first.
#[test]
fn floors_name_only_floors_below() {
    let floors = floors();
    assert!(floors.len() > 10, "{floors:?}");
    for (at, floor) in floors.iter().enumerate() {
        let manifest = fs::read_to_string(format!("src/{floor}/Cargo.toml")).unwrap();
        let names = manifest
            .lines()
            .filter_map(|line| line.strip_suffix(".workspace = true"));
        for name in names {
            let below = floors
                .iter()
                .position(|floor| *floor == name)
                .is_none_or(|of| of < at);
            assert!(below, "{floor} names {name}, which Cargo.toml lists after it");
        }
    }
    let lib = fs::read_to_string("src/lib.rs").unwrap();
    let told: Vec<&str> = lib
        .lines()
        .filter_map(|l| l.strip_prefix("pub use ::"))
        .collect();
    let told: Vec<&str> = told.iter().map(|l| l.trim_end_matches(';')).collect();
    assert_eq!(told, floors);
}

#[test]
fn every_file_says_what_it_is() {
    for (file, text) in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        let entry = file == Path::new("src/main.rs") || file.ends_with("tests.rs");
        let said = text.lines().take(3).any(|line| line.starts_with("//!"));
        assert!(entry || said, "{} begins without `//!`", file.display());
    }
}

#[test]
fn files_and_functions_fit() {
    for (file, text) in files("src", "rs") {
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() <= 600, "{}: {} lines", file.display(), lines.len());
        for (number, line) in lines.iter().enumerate() {
            let place = format!("{}:{}", file.display(), number + 1);
            let table = line.trim_start().starts_with("//") || line.contains("rustfmt::skip");
            assert!(table || line.chars().count() <= 110, "{place}: {} columns", line.len());
        }
        for (first, length) in functions(&lines) {
            assert!(length <= 100, "{}:{}: {length} lines", file.display(), first + 1);
        }
    }
}

#[test]
fn raw_memory_is_touched_in_few_places() {
    for (file, text) in files("src", "rs") {
        if UNSAFE.iter().any(|place| file.starts_with(place)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            let place = format!("{}:{}", file.display(), number + 1);
            assert!(!code.contains("unsafe "), "{place}: unsafe outside {UNSAFE:?}");
        }
    }
}

/// A second vendor of GPUs is a second folder: only the backend of one, NCCL's groups, and the files that
/// choose between vendors name its modules. Its handles and calls do not leave the two folders.
#[test]
fn a_vendor_is_named_in_few_places() {
    const FOLDERS: [&str; 2] = ["src/device/cuda", "src/comm/nccl"];
    const CHOICES: [&str; 4] =
        ["src/device/mod.rs", "src/device/gpu.rs", "src/device/dry.rs", "src/comm/host_staged.rs"];
    const HANDLES: [&str; 4] = ["cudarc", "CUstream", "CUevent", "call!("];
    for (file, text) in files("src", "rs") {
        if FOLDERS.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        let code = code(&text);
        let place = file.display();
        let handle = HANDLES.iter().find(|handle| code.contains(**handle));
        assert_eq!(handle, None, "{place} names a handle of {FOLDERS:?}");
        let is_choice = CHOICES.iter().any(|choice| file == Path::new(choice));
        let named = ["cuda::", "nvml"]
            .iter()
            .find(|module| code.contains(**module));
        assert!(is_choice || named.is_none(), "{place} names {named:?}: device::Gpu does that");
    }
}

/// Cargo applies the workspace's lints only to the crates that ask for them: clippy then denies an
/// `unsafe` block without a `// SAFETY:` comment.
#[test]
fn every_crate_has_the_lints() {
    let folders = fs::read_dir("src")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut manifests: Vec<PathBuf> = folders.map(|folder| folder.join("Cargo.toml")).collect();
    manifests.retain(|manifest| manifest.exists());
    assert!(manifests.len() > 10, "{manifests:?}");
    for manifest in manifests.into_iter().chain([PathBuf::from("Cargo.toml")]) {
        let text = fs::read_to_string(&manifest).unwrap();
        let inherits = text.contains("\n[lints]\nworkspace = true\n");
        assert!(inherits, "{}: add [lints], workspace = true", manifest.display());
    }
    let workspace = fs::read_to_string("Cargo.toml").unwrap();
    assert!(workspace.contains("\nundocumented_unsafe_blocks = \"deny\"\n"));
}

/// A clock that jumps, by an administrator or NTP, changes no limit and no order: only stamps and
/// names read the time of day.
#[test]
fn nothing_waits_by_the_time_of_day() {
    const STAMPS: [&str; 1] = ["src/base/stamp.rs"];
    let reads = |(_, text): &(PathBuf, String)| text.contains("SystemTime");
    let mut found: Vec<PathBuf> = files("src", "rs")
        .into_iter()
        .filter(reads)
        .map(|f| f.0)
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(found, STAMPS.map(PathBuf::from));
}

/// A process that is stopped, as by a scheduler that suspends its job, must not count the time: limits
/// and durations of ranks are measured by `base::Moment`.
#[test]
fn ranks_count_only_the_time_in_which_they_run() {
    const RANKS: [&str; 4] = ["src/comm", "src/launch", "src/engine", "src/train"];
    let is_test = |file: &Path| {
        file.iter()
            .any(|part| part == "tests.rs" || part == "testing")
    };
    for (file, text) in RANKS.iter().flat_map(|folder| files(folder, "rs")) {
        let reads = code(&text).contains("Instant");
        assert!(!reads || is_test(&file), "{}: use base::Moment", file.display());
    }
}

/// First line and length of each function.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (number, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let head = line
            .trim_start()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        let head = head
            .trim_start_matches("unsafe ")
            .trim_start_matches("const ");
        if open.is_none() && head.starts_with("fn ") && !line.ends_with([';', '}']) {
            open = Some((number, indent));
        }
        if let Some((first, depth)) = open
            && line.trim_end() == format!("{}}}", " ".repeat(depth))
        {
            found.push((first, number - first + 1));
            open = None;
        }
    }
    found
}
