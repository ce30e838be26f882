//! Names are the field's: words that only this program used do not come back.

use crate::source::{Kind, code, files, prose, words};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Former name, and the name that an engineer would search for.
#[rustfmt::skip]
const WORDS: &[(&str, &str)] = &[
    ("Acquainted", "HalvingCounts"), ("Ahead", "a name of what it is"), ("Asked", "ResumeOptions"),
    ("Asks", "Requests"), ("Attempts", "crash-loop guard"), ("befalls", "happens to"),
    ("Beside", "NcclWatchdog, comm stream"), ("Bill", "MemoryPlan"), ("Board", "StatusWriter"),
    ("bolder", "speed-ups"), ("Brought", "ImportedRun"), ("Carrier", "GroupFactory"), ("catch_up", "drain"),
    ("Copies", "CheckpointMirror, replicas"), ("Crew", "LocalRanks"), ("Culprit", "root cause"),
    ("Custody", "ParamStore"), ("Descend", "MuonUpdate"), ("Desk", "Mailbox"), ("discount", "uncount_start"),
    ("Distrust", "AuthError"), ("distrust", "mark_invalid"), ("doctor", "shape lint"),
    ("EachTime", "capture, replay"), ("Exam", "EvalData"), ("Extended", "WithExtraStates"),
    ("Followed", "AlreadyPrinted"), ("Foreign", "HfTokenizer"), ("foresee", "check"),
    ("goes_on_from", "resumes_from"), ("Heard", "LossSink"), ("heed", "set_stop_flag"), ("Held", "StateRange"),
    ("hub", "coordinator"), ("Judge", "StragglerDetector"), ("KeptWeight", "Fp8Weight"), ("knock", "connect"),
    ("Ladder", "Advisor"), ("Laid", "layout, buffers"), ("land", "store_reduced"), ("leg", "epoch segment"),
    ("legs", "epoch segments"), ("Mail", "PipelineComm"), ("Masters", "MasterWindows"), ("Meetings", "Rendezvous"),
    ("Mount", "FolderStore"), ("Novelty", "UnseenDeviation"), ("of_machine", "from_environment"),
    ("of_test", "for_test"), ("OnHost", "OffloadPlan"), ("Opener", "MixtureBuilder"),
    ("OrMessage", "ReportingAllocator"), ("pace", "adam_scalars"), ("Party", "GroupMembers"), ("patience", "timeout"),
    ("patiently", "retry"), ("ready_rayon", "init_rayon"), ("Recipe", "NewManifest"), ("Room", "workspace, scratch"),
    ("Rung", "ChangeKind"), ("Seat", "PipelineRank, LocalRank"), ("see_to", "finish_step"), ("Slots", "Activations"),
    ("stash", "saved activations"), ("stay_away", "exclude"), ("stranger", "unauthenticated peer"),
    ("strangers", "unauthenticated"), ("Stretch", "DigestRange"), ("sums_up", "needs_global_sums"),
    ("Taken", "StepResult"), ("tame", "sanitize"), ("There", "Addresses"), ("Turn", "data-parallel shard"),
    ("turn_away", "reject"), ("Verdict", "hang diagnosis"), ("Way", "Direction, Variant"),
    ("Wish", "OrderSpec, a search's request"), ("Witness", "observer, watchdog"),
];

/// The reader of standard output may close it early; `println!` then ends the program.
#[test]
fn lines_are_printed_by_what_outlives_their_reader() {
    let mut found = Vec::new();
    let printing = ["println!", "print!", "eprintln!", "eprint!"];
    for (file, text) in files("src", "rs")
        .into_iter()
        .filter(|(file, _)| !file.ends_with("build.rs"))
    {
        for (number, line) in code(&text).lines().enumerate() {
            found.extend(
                printing
                    .iter()
                    .filter(|word| line.contains(*word))
                    .map(|word| {
                        format!(
                            "{}:{}: {word}: base::say! or base::warn!",
                            file.display(),
                            number + 1
                        )
                    }),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// `thread::spawn`, `Scope::spawn` and rayon's own pool end the program where the system gives no more
/// threads; `base::threads` returns an error.
#[test]
fn threads_are_started_by_what_outlives_their_lack() {
    let mut found = Vec::new();
    let tests = |file: &Path| file.ends_with("tests.rs") || file.iter().any(|part| part == "tests");
    for (file, text) in files("src", "rs")
        .into_iter()
        .filter(|(file, _)| !tests(file))
    {
        if file == Path::new("src/base/threads.rs") {
            continue;
        }
        let text = code(text.split("#[cfg(test)]\nmod tests {").next().unwrap());
        for (number, line) in text.lines().enumerate() {
            let bare = ["thread::spawn(", "scope.spawn(", "thread::Builder"];
            if bare
                .iter()
                .any(|word| line.contains(word) && !line.contains("threads::spawn("))
            {
                found.push(format!("{}:{}: base::threads", file.display(), number + 1));
            }
        }
        let pool = words(&text).any(|word| word.contains("par_iter"));
        if pool && !file.starts_with("src/device") && !text.contains("init_rayon()") {
            found.push(format!("{}: base::threads::init_rayon before rayon", file.display()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn private_words_do_not_come_back() {
    let mut found = Vec::new();
    for (file, text) in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        for (number, line) in code(&text).lines().enumerate() {
            for (word, field) in WORDS
                .iter()
                .filter(|(word, _)| words(line).any(|w| w == *word))
            {
                found.push(format!("{}:{}: {word}: {field}", file.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "words for others to search for:\n{}", found.join("\n"));
}

/// Constants that are always written with their module: `metrics::NAME`.
const WITH_MODULE: &[&str] = &["NAME", "FOLDER"];

/// Names of a crate's public constants, from the first lines of their declarations.
fn constants(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .filter_map(|rest| rest.split_once(':'))
        .map(|(name, _)| name)
}

/// Two constants of one name in two crates mean two things.
#[test]
fn a_public_constant_has_its_name_alone() {
    let mut owners = BTreeMap::<String, BTreeSet<String>>::new();
    for (file, text) in files("src", "rs") {
        let owner = file.iter().nth(1).unwrap().to_string_lossy();
        for name in constants(&text).filter(|name| !WITH_MODULE.contains(name)) {
            owners
                .entry(name.into())
                .or_default()
                .insert(owner.to_string());
        }
    }
    assert!(owners.len() > 100, "{}", owners.len());
    owners.retain(|_, crates| crates.len() > 1);
    assert!(owners.is_empty(), "{owners:?}");
}

/// The name of an algorithm, which is also that of types.
const ALGORITHMS: &[&str] = &["AdamW"];

/// Names of types in two or more words: `StepOrder`.
fn types(code: &str) -> Vec<String> {
    let words: Vec<&str> = words(code).collect();
    words
        .windows(2)
        .filter(|pair| ["struct", "enum", "trait", "type"].contains(&pair[0]))
        .map(|pair| pair[1].to_string())
        .filter(|name| name.chars().filter(|c| c.is_uppercase()).count() > 1)
        .filter(|name| name.contains(char::is_lowercase))
        .collect()
}

/// A type's name without backticks is a word that a script has replaced.
fn bare_types(text: &str, types: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for doc in prose(text).iter().filter(|one| one.kind == Kind::Doc) {
        let bare = words(&doc.text).filter(|word| types.contains(*word));
        found.extend(bare.map(|name| format!("{}: {name} without backticks", doc.line)));
    }
    found
}

#[test]
fn types_have_backticks_in_doc_comments() {
    let all = files("src", "rs");
    let mut names: BTreeSet<String> = all
        .iter()
        .flat_map(|(_, text)| types(&code(text)))
        .collect();
    assert!(names.len() > 300, "{}", names.len());
    names.retain(|name| !ALGORITHMS.contains(&name.as_str()));
    let planted = "/// WeightCopy of a weight, see `WeightCopy`.\nstruct WeightCopy;\n";
    assert_eq!(bare_types(planted, &types(planted).into_iter().collect()).len(), 1);
    let mut found = Vec::new();
    for (file, text) in &all {
        for what in bare_types(text, &names) {
            found.push(format!("{}:{what}", file.display()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
