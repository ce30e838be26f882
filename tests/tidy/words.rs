//! Names are the field's: words that only this program used do not come back.

use crate::source::{code, files, words};

/// What it was called, and what an engineer would search for.
#[rustfmt::skip]
const WORDS: &[(&str, &str)] = &[
    ("Ahead", "a name of what it is"), ("Attempts", "crash-loop guard"), ("Beside", "NcclWatchdog, comm stream"), ("Bill", "MemoryPlan"),
    ("Crew", "LocalRanks"), ("Culprit", "root cause"), ("Custody", "ParamStore"),
    ("Desk", "Mailbox"), ("Distrust", "AuthError"), ("EachTime", "capture, replay"),
    ("Followed", "PeerExit"), ("Foreign", "HfTokenizer"),
    ("Opener", "MixtureBuilder"), ("Party", "GroupMembers"), ("Seat", "PipelineRank, LocalRank"), ("Slots", "Activations"),
    ("Turn", "data-parallel shard"), ("Verdict", "hang diagnosis"), ("Wish", "OrderSpec, a search's request"), ("Witness", "observer, watchdog"),
    ("befalls", "happens to"), ("bolder", "speed-ups"), ("catch_up", "drain"),
    ("doctor", "shape lint"), ("hub", "coordinator"), ("knock", "connect"), ("leg", "epoch segment"),
    ("legs", "epoch segments"), ("pace", "adam_scalars"), ("see_to", "finish_step"), ("stash", "saved activations"),
    ("stranger", "unauthenticated peer"), ("turn_away", "reject"),
];

/// Whoever reads standard output may leave early; `println!` then ends the program.
#[test]
fn lines_are_printed_by_what_outlives_their_reader() {
    let mut found = Vec::new();
    let printing = ["println!", "print!", "eprintln!", "eprint!"];
    for (file, text) in
        files("src", "rs").into_iter().filter(|(file, _)| !file.ends_with("build.rs"))
    {
        for (number, line) in code(&text).lines().enumerate() {
            found.extend(printing.iter().filter(|word| line.contains(*word)).map(|word| {
                format!("{}:{}: {word}: base::say! or base::warn!", file.display(), number + 1)
            }));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn private_words_do_not_come_back() {
    let mut found = Vec::new();
    for (file, text) in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        for (number, line) in code(&text).lines().enumerate() {
            for (word, field) in WORDS.iter().filter(|(word, _)| words(line).any(|w| w == *word)) {
                found.push(format!("{}:{}: {word}: {field}", file.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "words for others to search for:\n{}", found.join("\n"));
}
