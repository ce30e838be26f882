//! `gptrain manifest check`: a manifest and its files, as text and as JSON.

use super::Source;
use crate::options::Json;
use anyhow::Result;
use base::{Count, Problems};
use estimate::gptrain::dry_run;
use estimate::machine;
use manifest::{self, Loaded, Manifest, Ranks, Validity};
use serde_json::{Value, json};
use std::path::Path;
use train::file_checks::{self, FileFindings};

#[derive(clap::Args, Debug)]
pub struct Check {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    json: Json,
}

impl Check {
    pub fn run(self) -> Result<()> {
        let checked = CheckedManifest::load(&self.source.manifest, &self.source.sets);
        if let Err(error) = &checked
            && let Some(mistakes) = error.downcast_ref::<Problems>()
        {
            self.json
                .object(json!({ "ok": false, "mistakes": mistakes.list }));
        }
        let checked = checked?;
        self.json.say(|| checked.say(), checked.object());
        Ok(())
    }
}

/// Manifest without a mistake. Some of its files may be missing.
struct CheckedManifest {
    loaded: Loaded,
    files: FileFindings,
}

impl CheckedManifest {
    /// Loads a manifest and checks its files; every mistake is an error.
    fn load(path: &Path, sets: &[String]) -> Result<CheckedManifest> {
        let loaded = manifest::load_with(path, sets, Ranks::OneReplica, &find_mistakes)?;
        check_hardware(&loaded.manifest).or(())?;
        let mut files = file_checks::check_files(&loaded.manifest)?;
        if files.wrong.list.is_empty() && files.missing.list.is_empty() {
            files = FileFindings {
                notes: files.notes,
                ..file_checks::check_samples(&loaded.manifest)?
            };
        }
        let wrong = std::mem::take(&mut files.wrong);
        wrong.or(())?;
        Ok(CheckedManifest { loaded, files })
    }

    fn say(&self) {
        base::say!("{}", summarize(&self.loaded));
        for note in &self.files.notes {
            base::say!("  note       {note}");
        }
        for missing in &self.files.missing.list {
            base::say!("  missing    {}: {}", missing.place, missing.what);
        }
    }

    /// Contents of `say` as JSON.
    fn object(&self) -> Value {
        let CheckedManifest { loaded, files } = self;
        let m = &loaded.manifest;
        let notes = [&list_notes(m)[..], &files.notes].concat();
        let cannot_run = m.runnable().err().unwrap_or_default();
        json!({
            "ok": true, "name": m.name, "manifest": loaded.source, "mistakes": [],
            "missing": files.missing.list, "cannot_run": cannot_run.list, "notes": notes,
            "ranks": m.topology.ranks(), "steps": m.batch.ramp().steps(m.train.samples),
            "samples": m.train.samples,
            "tokens": m.schedule().tokens(m.train.samples),
            "parameters": model::parameters(&m.model), "memory_bytes": dry_run::memory(m).0,
            "vocab_padded": m.model.vocab_padded, "run_folder": m.log.folder,
        })
    }
}

/// Mistakes in the files of a manifest with mistakes, without those that it causes.
fn find_mistakes(m: &Manifest, are_valid: Validity) -> Problems {
    let mut found = check_hardware(m);
    let files = file_checks::check_files(m).unwrap_or_default();
    found.list.extend(files.missing.list);
    for wrong in files.wrong.list {
        let causes: &[&str] = match &*wrong.place {
            "data.eod.token" => &["data.eod", "data.tokenizer"],
            "checkpoint.also" => &["checkpoint.also"],
            _ => &["model.vocab"], // it is compared with this
        };
        if are_valid(causes) {
            found.list.push(wrong);
        }
    }
    found
}

/// Error if plan.hardware is not a row of the table.
fn check_hardware(m: &Manifest) -> Problems {
    let found = m
        .plan
        .hardware
        .as_deref()
        .map(|name| machine::find(name, "plan.hardware"));
    found.and_then(Result::err).unwrap_or_default()
}

fn summarize(loaded: &Loaded) -> String {
    let m = &loaded.manifest;
    let model = &m.model;
    let mut lines = vec![
        format!("{}: ok", loaded.source.display()),
        format!(
            "  model     {}, hidden {}, {}, vocab {} (padded {}), seq_len {}",
            Count(model.layers as u64).with_noun("layer"),
            model.hidden,
            Count(model.heads as u64).with_noun("head"),
            Count(model.vocab as u64),
            Count(model.vocab_padded as u64),
            model.seq_len
        ),
        format!("  size      {}", describe_size(m)),
        format!("  batch     {}", describe_batch(m)),
        format!("  run       {}", describe_length(m)),
    ];
    let topology = &m.topology;
    if loaded.replicas_are_auto {
        lines.push(format!(
            "  topology  data auto, checked with 1: a replica is tensor {} × pipeline {}{}, ZeRO-{}",
            topology.tensor,
            topology.pipeline,
            topology.schedule_words(),
            topology.zero
        ));
    } else if topology.ranks() > 1 {
        lines.push(format!(
            "  topology  {} ranks: tensor {} × pipeline {} × data {}{}, ZeRO-{}",
            topology.ranks(),
            topology.tensor,
            topology.pipeline,
            topology.data,
            topology.schedule_words(),
            topology.zero
        ));
    }
    lines.extend(
        list_notes(m)
            .iter()
            .map(|note| format!("  note      {note}")),
    );
    if let Err(problems) = m.runnable() {
        lines.push("  This version can plan this run, but not execute it:".to_string());
        lines.extend(
            problems
                .list
                .iter()
                .map(|problem| format!("  - {}", problem.what)),
        );
    }
    lines.join("\n")
}

/// Valid settings that are seldom intended.
fn list_notes(m: &Manifest) -> Vec<String> {
    let size = model::named_size_note(&m.name, &m.model);
    m.notes()
        .into_iter()
        .chain(size)
        .chain(m.schedule_note(0, 0))
        .collect()
}

/// Number of parameters, and memory of the fullest rank.
fn describe_size(m: &Manifest) -> String {
    let parameters = Count(model::parameters(&m.model)).with_noun("parameter");
    let most = if m.topology.ranks() > 1 { " on the fullest rank" } else { "" };
    format!("{parameters}; {} of memory{most}", dry_run::memory(m))
}

fn describe_batch(m: &Manifest) -> String {
    let mut text = format!("micro {}", m.batch.micro);
    for stage in &m.batch.micro_stages {
        text += &format!(" (from {}: {})", stage.from_global, stage.micro);
    }
    text += &format!(", global {}", m.batch.global);
    let grows = |(start, increment, samples)| {
        let samples = Count(samples).with_noun("sample");
        format!(", growing from {start} by {increment} over {samples}")
    };
    if let Some(ramp) = m.batch.ramp_up {
        text += &grows((ramp.start, ramp.increment, ramp.samples));
    }
    if let Some(ramp) = m.batch.length_ramp_up {
        let grows = grows((ramp.start, ramp.increment, ramp.samples));
        text += &format!("; tokens of a sample{}", grows.trim_start_matches(','));
    }
    text
}

fn describe_length(m: &Manifest) -> String {
    let samples = m.train.samples;
    let tokens = m.schedule().tokens(samples);
    let steps = m.batch.ramp().steps(samples);
    let [steps, samples, tokens] = [(steps, "step"), (samples, "sample"), (tokens, "token")]
        .map(|(count, noun)| Count(count).with_noun(noun));
    format!("{steps}, {samples}, {tokens}")
}
