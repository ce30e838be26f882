//! Functions that gptrain loads from NVIDIA's libraries, beside what the libraries export.
//!
//! The stand-in exports whatever name gptrain asks for; the lists in tests/fixtures/nvidia are of the real
//! libraries (`nm -D`): driver 535, cuBLASLt 13.1 and NCCL 2.19.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LIBRARIES: [(&str, &str); 4] =
    [("cu", "libcuda"), ("nvml", "libnvidia-ml"), ("cublasLt", "libcublasLt"), ("nccl", "libnccl")];

/// Functions of later drivers, without which gptrain runs.
const OPTIONAL: [&str; 1] = ["cuFuncGetParamInfo"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// Names in the source's tables (`table! { pub struct Api { NAMES } }`) and in `symbol("NAME")`.
fn loaded(source: &str) -> Vec<&str> {
    let tables = source.split("\ntable! {").skip(1);
    let tables = tables.map(|table| {
        let (_, names) = table
            .split_once(" struct ")
            .unwrap()
            .1
            .split_once('{')
            .unwrap();
        names.split_once('}').unwrap().0
    });
    let single = source.split("symbol(\"").skip(1);
    let single = single.map(|rest| rest.split_once('"').unwrap().0);
    tables
        .flat_map(str::split_whitespace)
        .chain(single)
        .collect()
}

#[test]
fn every_function_that_is_loaded_is_exported_by_its_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src/device", "src/comm"] {
        sources(&root.join(folder), &mut files);
    }
    let texts: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let names: BTreeSet<&str> = texts.iter().flat_map(|text| loaded(text)).collect();
    let mut checked = BTreeSet::new();
    for (prefix, library) in LIBRARIES {
        let list = root.join(format!("tests/fixtures/nvidia/{library}.txt"));
        let list = std::fs::read_to_string(list).unwrap();
        let exported: BTreeSet<&str> = list.lines().skip(1).collect();
        let own = |name: &&str| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        };
        let own: BTreeSet<&str> = names.iter().copied().filter(own).collect();
        let missing: Vec<_> = own
            .difference(&exported)
            .filter(|name| !OPTIONAL.contains(name))
            .collect();
        assert!(missing.is_empty(), "{library} does not export {missing:?}");
        assert!(own.len() >= 10, "{library}: {own:?}");
        checked.extend(own);
    }
    assert_eq!(
        names.difference(&checked).collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "of no library"
    );
}
