//! Helpers of tests are in no build but that of tests: the feature `testing` guards them, and only
//! dev-dependencies switch it on.

use crate::source::files;
use std::path::Path;

/// Lines that declare helpers.
const HELPERS: &[&str] = &["pub mod testing;", "pub fn for_test<"];

fn is_helper(file: &Path) -> bool {
    file.components()
        .any(|part| part.as_os_str().to_string_lossy().starts_with("testing"))
}

#[test]
fn variables_of_tests_are_read_by_guarded_files_only() {
    let mut guarded = 0;
    for (file, text) in files("src", "rs") {
        let place = file.display();
        assert!(is_helper(&file) || !text.contains("GPTRAIN_TEST_"), "{place}: GPTRAIN_TEST_");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let of_testing = |line: &&str| HELPERS.iter().any(|helper| line.starts_with(helper));
        for (at, _) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| of_testing(line))
        {
            let guard = lines[at.saturating_sub(1)];
            let all = ["#[cfg(feature = \"testing\")]", "#[cfg(any(test, feature = \"testing\"))]"];
            assert!(all.contains(&guard), "{place}:{}: {guard}", at + 1);
            guarded += 1;
        }
    }
    assert_eq!(guarded, 5, "base, manifest, comm and its nccl, train");
}

#[test]
fn only_tests_switch_their_helpers_on() {
    let mut on = 0;
    for (file, text) in files("src", "toml").into_iter().chain([root()]) {
        let mut section = "";
        for line in text.lines() {
            match line.strip_prefix('[') {
                Some(name) => section = name.trim_end_matches(']'),
                None if line == "testing = []" => assert_eq!(section, "features"),
                None if line.contains("\"testing\"") || line.contains("/testing") => {
                    assert_eq!(section, "dev-dependencies", "{}: {line}", file.display());
                    on += 1;
                }
                None => (),
            }
        }
    }
    assert!(on >= 9, "{on}");
}

fn root() -> (std::path::PathBuf, String) {
    let file = std::path::PathBuf::from("Cargo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    (file, text)
}
