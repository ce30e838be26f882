//! `gptrain manifest check`: a manifest and its files, as text and as JSON.

use anyhow::Result;
use base::{Count, Problems};
use estimate::gptrain::dry_run;
use estimate::hardware;
use manifest::{self, Loaded, Manifest, Validity};
use serde_json::{Value, json};
use std::path::Path;
use train::file_checks::{self, FileFindings};

/// Manifest without a mistake. Some of its files may be missing.
pub struct CheckedManifest {
    loaded: Loaded,
    files: FileFindings,
}

impl CheckedManifest {
    /// Loads a manifest and checks its files; every mistake is an error.
    pub fn load(path: &Path, sets: &[String]) -> Result<CheckedManifest> {
        // A mistake in the manifest may cause the mistakes in its files: those are left out.
        let more = |m: &Manifest, are_valid: Validity| {
            let mut more = check_hardware(m);
            let files = file_checks::check_files(m).unwrap_or_default();
            more.list.extend(files.missing.list);
            let caused = |place: &str| match place {
                "data.eod.token" => !are_valid(&["data.eod", "data.tokenizer"]),
                "checkpoint.also" => !are_valid(&["checkpoint.also"]),
                _ => !are_valid(&["model.vocab"]), // what is compared with it
            };
            more.list.extend(
                files
                    .wrong
                    .list
                    .into_iter()
                    .filter(|wrong| !caused(&wrong.place)),
            );
            more
        };
        let loaded = manifest::load_with(path, sets, &more)?;
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

    pub fn say(&self) {
        base::say!("{}", summary(&self.loaded));
        for note in &self.files.notes {
            base::say!("  note       {note}");
        }
        for missing in &self.files.missing.list {
            base::say!("  missing    {}: {}", missing.place, missing.what);
        }
    }

    /// Contents of `say` as JSON.
    pub fn object(&self) -> Value {
        let CheckedManifest { loaded, files } = self;
        let m = &loaded.manifest;
        let notes = [&notes(m)[..], &files.notes].concat();
        let cannot_run = m.runnable().err().unwrap_or_default();
        json!({
            "ok": true, "name": m.name, "manifest": loaded.source, "mistakes": [],
            "missing": files.missing.list, "cannot_run": cannot_run.list, "notes": notes,
            "ranks": m.topology.ranks(), "steps": m.batch.ramp().steps(m.train.samples),
            "samples": m.train.samples,
            "tokens": m.train.samples.saturating_mul(m.model.seq_len as u64),
            "parameters": model::parameters(&m.model), "memory_bytes": dry_run::memory(m).0,
            "vocab_padded": m.model.vocab_padded, "run_folder": m.log.folder,
        })
    }
}

/// Error if plan.hardware is not a row of the table.
fn check_hardware(m: &Manifest) -> Problems {
    let found = m
        .plan
        .hardware
        .as_deref()
        .map(|name| hardware::find(name, "plan.hardware"));
    found.and_then(Result::err).unwrap_or_default()
}

fn summary(loaded: &Loaded) -> String {
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
        format!("  size      {}", size(m)),
        format!("  batch     {}", batch(m)),
        format!("  run       {}", length(m)),
    ];
    let topology = &m.topology;
    if topology.ranks() > 1 {
        lines.push(format!(
            "  topology  {} ranks: tensor {} × pipeline {} × data {}, ZeRO-{}",
            topology.ranks(),
            topology.tensor,
            topology.pipeline,
            topology.data,
            topology.zero
        ));
    }
    lines.extend(notes(m).iter().map(|note| format!("  note      {note}")));
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
fn notes(m: &Manifest) -> Vec<String> {
    m.notes().into_iter().chain(m.schedule_note(0, 0)).collect()
}

/// Number of parameters, and memory of the fullest rank.
fn size(m: &Manifest) -> String {
    let parameters = Count(model::parameters(&m.model)).with_noun("parameter");
    let most = if m.topology.ranks() > 1 { " on the fullest rank" } else { "" };
    format!("{parameters}; {} of memory{most}", dry_run::memory(m))
}

fn batch(m: &Manifest) -> String {
    let text = format!("micro {}, global {}", m.batch.micro, m.batch.global);
    match m.batch.ramp_up {
        None => text,
        Some(ramp) => format!(
            "{text}, growing from {} by {} over {}",
            ramp.start,
            ramp.increment,
            Count(ramp.samples).with_noun("sample")
        ),
    }
}

fn length(m: &Manifest) -> String {
    let samples = m.train.samples;
    let tokens = samples.saturating_mul(m.model.seq_len as u64);
    let steps = m.batch.ramp().steps(samples);
    let [steps, samples, tokens] = [(steps, "step"), (samples, "sample"), (tokens, "token")]
        .map(|(count, noun)| Count(count).with_noun(noun));
    format!("{steps}, {samples}, {tokens}")
}
