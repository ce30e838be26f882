//! The README and `docs/` are true where a test can tell.

use crate::source::{files, floors};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_dependency_has_its_reason() {
    let page = fs::read_to_string("docs/development.md").unwrap();
    let cargo = fs::read_to_string("Cargo.toml").unwrap();
    let section = cargo.split("[workspace.dependencies]").nth(1).unwrap();
    let section = section.split("# For tests only.").next().unwrap();
    let others = section.lines().filter(|line| !line.contains("path = "));
    let names = others.filter_map(|line| Some(line.split_once(" = ")?.0));
    for name in names.filter(|name| !name.starts_with('#')) {
        assert!(
            page.contains(&format!("| {name} |")),
            "docs/development.md has no reason for {name}"
        );
    }
}

/// Paths in backticks and in links, of this repository.
#[test]
fn every_file_that_the_docs_name_exists() {
    const FOLDERS: [&str; 9] =
        ["src", "tests", "kernels", "manifests", "benches", "docs", "datasets", "fuzz", ".ci"];
    let mut named = 0;
    for (file, text) in pages() {
        let quoted = text
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|word| (word, PathBuf::from(word)));
        let linked = text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        let linked = linked.filter(|link| !link.contains("://") && !link.starts_with('#'));
        let linked = linked.map(|link| link.split('#').next().unwrap());
        let linked = linked.map(|link| (link, file.parent().unwrap().join(link)));
        for (word, path) in quoted.chain(linked.filter(|(link, _)| !link.is_empty())) {
            let ours = path
                .components()
                .next()
                .and_then(|part| part.as_os_str().to_str());
            let ours = ours.is_some_and(|part| FOLDERS.contains(&part) && word.contains('/'));
            if ours && !word.contains([' ', '{', '*']) && !word.contains("::")
                || path.extension().is_some_and(|e| e == "md")
            {
                assert!(path.exists(), "{}: there is no {word}", file.display());
                named += 1;
            }
        }
    }
    assert!(named > 20, "{named} paths were found");
}

/// `tests/FILE.rs::name`: a function of that file.
#[test]
fn every_test_that_the_docs_name_exists() {
    let mut named = 0;
    for (page, text) in pages() {
        for word in text.split('`').skip(1).step_by(2) {
            let Some((file, name)) = word.split_once(".rs::") else { continue };
            if !file.starts_with("tests/") && !file.starts_with("src/") {
                continue;
            }
            let source = fs::read_to_string(format!("{file}.rs"))
                .unwrap_or_else(|error| panic!("{}: {file}.rs: {error}", page.display()));
            // A macro has a test's name as its first word.
            let forms = [format!("fn {name}("), format!("!({name}:")];
            let found = forms.iter().any(|form| source.contains(form));
            assert!(found, "{}: {file}.rs has no test {name}", page.display());
            named += 1;
        }
    }
    assert!(named > 100, "{named} tests were found");
}

/// `page.md#heading`, and `#heading` of the same page.
#[test]
fn every_heading_that_the_docs_link_to_exists() {
    let anchor = |heading: &str| {
        let heading = heading
            .trim_start_matches('#')
            .trim()
            .to_lowercase()
            .replace(' ', "-");
        heading
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_".contains(*c))
            .collect::<String>()
    };
    for (file, text) in pages() {
        let links = text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.contains("://")) {
            let Some((page, wanted)) = link.split_once('#') else { continue };
            let of = if page.is_empty() { file.clone() } else { file.parent().unwrap().join(page) };
            let there = fs::read_to_string(&of).unwrap_or_else(|_| panic!("there is no {page}"));
            let found = there
                .lines()
                .any(|line| line.starts_with('#') && anchor(line) == wanted);
            assert!(found, "{}: {link} leads nowhere", file.display());
        }
    }
}

#[test]
fn the_readme_is_one_page() {
    let lines = fs::read_to_string("README.md").unwrap().lines().count();
    assert!(lines <= 150, "{lines} lines: details belong in docs/");
}

#[test]
fn the_readme_names_every_floor() {
    let readme = fs::read_to_string("README.md").unwrap();
    let shown = readme
        .split("## The floors")
        .nth(1)
        .unwrap()
        .split("```")
        .nth(1)
        .unwrap();
    let named: Vec<&str> = shown.split_whitespace().collect();
    for floor in floors() {
        assert!(named.contains(&floor.as_str()), "README.md, The floors: {floor}");
    }
}

/// A quotation begins with `// FILE`; `// …` separates parts of one file.
#[test]
fn every_quotation_is_in_the_source() {
    let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let mut quoted = 0;
    for (page, text) in pages() {
        for block in text.split("```rust\n").skip(1) {
            let block = block.split("\n```").next().unwrap();
            let (file, code) = block.split_once('\n').expect("a file and its lines");
            let file = file.trim_start_matches("// ");
            let source = fs::read_to_string(file)
                .unwrap_or_else(|error| panic!("{}: {file}: {error}", page.display()));
            let source = format!("\n{}\n", trimmed(&source));
            for part in code.split("// …") {
                let part = trimmed(part.trim_matches('\n'));
                assert!(
                    source.contains(&format!("\n{part}\n")),
                    "{}: not in {file}:\n{part}",
                    page.display()
                );
                quoted += 1;
            }
        }
    }
    assert!(quoted > 10, "{quoted} quotations");
}

#[test]
fn lines_wrap_at_120() {
    let mut long = Vec::new();
    for (file, text) in pages().into_iter().chain(files("benches", "md")) {
        let mut fenced = false;
        for (number, line) in text.lines().enumerate() {
            fenced ^= line.starts_with("```");
            let prose = !fenced && !line.starts_with(['|', '#']) && !line.starts_with("    ");
            if prose && line.chars().count() > 120 {
                long.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "longer than 120 characters: {long:?}");
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = files("docs", "md");
    let readme = Path::new("README.md");
    pages.push((readme.into(), fs::read_to_string(readme).unwrap()));
    pages
}

/// docs/ is a book (`mdbook serve`): a page that its summary leaves out is not in it.
#[test]
fn the_book_has_every_page_and_the_list_every_manifest() {
    let summary = fs::read_to_string("docs/SUMMARY.md").unwrap();
    for (page, _) in files("docs", "md") {
        let name = page.file_name().unwrap().to_str().unwrap();
        let listed = summary.contains(&format!("({name})"));
        assert!(listed || name == "SUMMARY.md", "docs/SUMMARY.md leaves out {name}");
    }
    let list = fs::read_to_string("docs/manifests.md").unwrap();
    for (manifest, _) in files("manifests", "yaml") {
        let name = manifest.file_name().unwrap().to_str().unwrap();
        assert!(list.contains(&format!("`{name}`")), "docs/manifests.md leaves out {name}");
    }
}
