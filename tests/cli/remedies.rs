//! Remedies of refusals, typed back: each refused line becomes every line that its remedies describe,
//! and each of these does what the refused one could not.

use crate::hints::{typed, well, with_text};
use std::fs;

/// Remedies that are complete, in what the mistakes below print. May not fall.
const REMEDIES: usize = 51;

/// Lines with a mistake.
const MISTAKES: &str = "\
gptrain run small.yaml --set train.stps=4
gptrain run small.yaml --set batch.micro=3
gptrain run small.yaml --set batch.global=5
gptrain run small.yaml --set model.heads=3
gptrain run small.yaml --set topology.tensor=3
gptrain run small.yaml --set topology.pipeline=2
gptrain run small.yaml --set topology.zero=4
gptrain run small.yaml --set topology.pipeline=2 --set topology.chunks=2 --set topology.schedule=interleaved
gptrain run small.yaml --set precision=fp17
gptrain run small.yaml --set lr.decay=cosin
gptrain run small.yaml --set optimizer=adam
gptrain run small.yaml --set model.family=lama
gptrain run small.yaml --set model.dropout=2
gptrain run small.yaml --set model.vocab=100
gptrain run small.yaml --set train.steps=-1
gptrain run small.yaml --set use_distributed_optimizer=true
gptrain run small.yaml --set dataloader.num_workers=4
gptrain run small.yaml --lr 3e-4
gptrain run small.yaml --learning_rate=1e-3
gptrain run small.yaml --max-steps 4
gptrain run small.yaml --set name=old --set train.steps=5
gptrain run small.yaml --set name=old --set model.hidden=64
gptrain run small.yaml --set name=old --set model.layers=3
gptrain estimate small.yaml --set topology.tensor=3
gptrain estimate small.yaml --what-if topology.tensr=2
gptrain estimate small.yaml --set data.split=96,4,0 --set batch.micro=3
gptrain estimate small.yaml --hardwar a100-80g
gptrain data build text.txt --format lines -t bytes -o made
gptrain data build text.txt --format line -t bytes -o out
gptrain data build code -t bytes -o out
gptrain data buld text.txt -t bytes -o out
gptrain data build text.txt -t bytes --output-prefix out
gptrain import --hf folder --outptu out
gptrain sample runs/old --top_p 0.9
gptrain sample runs/old --tokns 4
gptrain sample runs/old --max_new_tokens 4
gptrain run smal.yaml --set name=new
gptrain run runs/od --set train.steps=12
gptrain eval runs/old --dat text
gptrain export runs/old --output folder
gptrain export runs/old --output out --megatron
gptrain export runs/old --hf out --dtype bf17
";

/// The line with `key=value`, in the place of the key's value if it has one.
fn with_setting(line: &str, key: &str, value: &str) -> String {
    let (set, start) = (format!("{key}={value}"), format!("{key}="));
    if line.split(' ').any(|word| word.starts_with(&start)) {
        return replaced(line, |word| word.starts_with(&start).then(|| set.clone()));
    }
    format!("{line} --set '{set}'")
}

fn replaced(line: &str, new: impl Fn(&str) -> Option<String>) -> String {
    let words = line
        .split(' ')
        .map(|word| new(word).unwrap_or(word.to_string()));
    words.collect::<Vec<_>>().join(" ")
}

/// The line without an option and its value, which may be behind a `=` or the next word.
fn without_option(line: &str, option: &str) -> String {
    let mut words = line.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == option {
            words.next();
        } else if !word.starts_with(&format!("{option}=")) {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// Whether a user types it as it is printed: no `N`, no `DIR`, no words.
fn is_value(text: &str) -> bool {
    !text.contains(' ')
        && !["less", "more"].contains(&text)
        && text.chars().any(|c| !c.is_ascii_uppercase())
}

/// Settings in "set model.hidden to 30 or 33, or model.heads to 2".
fn settings(remedy: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for clause in remedy.split(", ") {
        let clause = clause.trim_start_matches("or ").trim_start_matches("set ");
        let Some((key, values)) = clause.split_once(" to ") else { continue };
        if is_value(key) && key.contains('.') {
            found.extend(
                values
                    .split(" or ")
                    .filter(|value| is_value(value))
                    .map(|value| (key, value)),
            );
        }
    }
    found
}

/// The lines that a remedy describes, for a problem `what` at `place`.
fn remedied(line: &str, place: &str, what: &str, remedy: &str) -> Vec<String> {
    let key = place.strip_prefix("--set ").unwrap_or(place);
    if let Some(at) = remedy.find("gptrain run ") {
        return vec![remedy[at..].split([',', '`']).next().unwrap().to_string()];
    }
    if what.starts_with("is not an option")
        && let Some((_, set)) = remedy.split_once("`--set ")
    {
        let (key, value) = set.trim_end_matches('`').split_once('=').unwrap();
        return vec![with_setting(&without_option(line, place), key, value)];
    }
    if let Some((_, meant)) = remedy.split_once("did you mean ") {
        let meant = meant.split('?').next().unwrap().trim_matches('`');
        if what.starts_with("is not an option") {
            let takes_value = meant.contains(' ') && !meant.starts_with("--to ");
            let bare =
                if takes_value { without_option(line, place) } else { line.replace(place, "") };
            return vec![format!("{bare} {meant}")];
        }
        if what.starts_with("there is no such file") {
            return vec![line.replace(place, meant)];
        }
        if !what.starts_with("unknown key") {
            return vec![with_setting(line, key, meant)];
        }
        let new = |word: &str| {
            let (_, value) = word.split_once('=').filter(|(old, _)| *old == key)?;
            let (key, value) = meant.split_once(": ").unwrap_or((meant, value));
            Some(format!("{key}={value}"))
        };
        return vec![replaced(line, new)];
    }
    if let Some((_, range)) = remedy.split_once("give a number from ") {
        return vec![with_setting(line, key, range.split(' ').next().unwrap())];
    }
    if remedy.starts_with("remove it: ") {
        return vec![line.replace(" --set dataloader.num_workers=4", "")];
    }
    let flags = ["--overwrite", "--ext py", "--resume-from step-00000005"];
    let flags = flags.into_iter().filter(|flag| remedy.contains(flag));
    let flags = flags.map(|flag| format!("{line} {flag}"));
    let sets = settings(remedy)
        .into_iter()
        .map(|(key, value)| with_setting(line, key, value));
    flags.chain(sets).collect()
}

/// The lines that a refusal describes.
fn remedies(line: &str, refusal: &str) -> Vec<String> {
    let (mut place, mut what, mut all) = ("", "", Vec::new());
    for said in refusal.lines() {
        if let Some(remedy) = said.strip_prefix("    → ") {
            all.extend(remedied(line, place, what, remedy));
        } else if let Some((_, right)) = said.split_once(" exists: '") {
            // The parser's own: "error: unexpected argument '--outptu' found", "a similar argument exists: …".
            let wrong = refusal.split('\'').nth(1).unwrap();
            let right = right.trim_end_matches('\'');
            all.push(replaced(line, |word| (word == wrong).then(|| right.to_string())));
        } else if let Some((first, rest)) = said.split_once(": ") {
            (place, what) = (first, rest);
        }
    }
    all
}

#[test]
fn remedies_of_refused_lines_do_what_these_could_not() {
    let lab = with_text();
    well(&lab, "gptrain run small.yaml --set name=old && mv runs kept");
    well(&lab, "gptrain export kept/old --output folder");
    well(&lab, "gptrain data build text.txt --format lines -t bytes -o made");
    fs::create_dir(lab.path("code")).unwrap();
    fs::write(lab.path("code/a.py"), "print(1)\n").unwrap();
    let fresh = |line: &str| typed(&lab, &format!("rm -rf runs out*; cp -r kept runs; {line}"));
    let mut count = 0;
    for line in MISTAKES.lines() {
        let refused = fresh(line);
        refused.expect(2, &[]);
        let lines = remedies(line, &refused.err);
        assert!(!lines.is_empty(), "{line}: no remedy to type in\n{}", refused.err);
        for remedied in &lines {
            let done = fresh(remedied);
            let said = format!("{line}\n{}{remedied}\n{}", refused.err, done.err);
            assert!(remedied != line && done.code == Some(0), "{said}");
        }
        count += lines.len();
    }
    assert!(count >= REMEDIES, "only {count} remedies are complete");
}
