//! Imports a launch script of another trainer: its arguments become a manifest.

use super::Import;
use base::table::{Printout, Rows};
use base::{Problems, shell_word};
use estimate::hardware;
use exchange::script::{self, ArgumentRow, Outcome, ScriptChoices, ScriptRun, Slurm};
use manifest::Loaded;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Choices of a script.
#[derive(clap::Args, Default)]
pub struct ScriptArgs {
    /// Value of a variable that the script does not set, such as SLURM_NNODES; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "args")]
    pub var: Vec<String>,
    /// DeepSpeed's JSON, if it is not the file that the script writes or names
    #[arg(long, value_name = "FILE", requires = "args")]
    pub deepspeed: Option<PathBuf>,
}

impl ScriptArgs {
    /// Reads a script, as a manifest for the folder `folder`.
    pub fn read(&self, from: &str, sets: &[String], folder: &Path) -> anyhow::Result<ScriptRun> {
        let choices = ScriptChoices {
            variables: self.var.clone(),
            deepspeed: self.deepspeed.clone(),
            sets: sets.to_vec(),
            folder: folder.to_path_buf(),
            hardware: Some(machine),
        };
        script::read(from, &choices)
    }

    /// Manifest that a script becomes, for its plan.
    pub fn planned_run(&self, from: &str, sets: &[String]) -> anyhow::Result<Loaded> {
        // Plans of other programs have one level of replicas.
        let sets = [&["topology.shard=all".to_string()], sets].concat();
        Ok(self.read(from, &sets, Path::new("."))?.loaded)
    }
}

/// Row of the hardware table that the job's constraint or GPUs name.
fn machine(slurm: &Slurm) -> Option<String> {
    let constraint = slurm.get("constraint").unwrap_or_default();
    let gres = slurm
        .get("gres")
        .or(slurm.get("gpus-per-node"))
        .unwrap_or_default();
    constraint
        .split(['&', '|', ',', ':'])
        .chain(gres.split([',', ':']))
        .map(|word| word.trim_matches(['[', ']', '(', ')']))
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
        .filter(|word| word.contains(|c: char| c.is_ascii_alphabetic()))
        .find_map(|word| hardware::find(word, "").ok())
        .map(|row| row.name.to_string())
}

impl Import {
    /// Writes the manifest that a script becomes, or prints it.
    pub(super) fn import_script(&self, from: &str) -> anyhow::Result<()> {
        let output = self.output.as_deref();
        if let Some(path) = output {
            base::output::check_is_file_path(path)?;
            if path.is_dir() {
                return Err(Problems::one(
                    path.display().to_string(),
                    "is a folder, and --args writes one file",
                    format!("give its name: --output {}", path.join("manifest.yaml").display()),
                )
                .into());
            }
        }
        let folder = output.and_then(Path::parent).unwrap_or(Path::new("."));
        let run = self.script.read(from, &self.set, folder)?;
        let written = output.filter(|_| !self.dry);
        if let Some(path) = written {
            base::output::write(path, self.overwrite.existing(), run.text.as_bytes())?;
        }
        print(&run, from, written).say(self.json.json);
        Ok(())
    }
}

/// Prints what becomes of the arguments, and the next commands.
fn print(run: &ScriptRun, from: &str, written: Option<&Path>) -> Printout {
    let ScriptRun { program, text, loaded, arguments, notes, job } = run;
    let count = |outcome| {
        arguments
            .iter()
            .filter(|row| row.outcome == outcome)
            .count()
    };
    let counts = [Outcome::Setting, Outcome::NotNeeded, Outcome::NoSetting].map(count);
    let manifest = written.map_or("manifest.yaml".into(), |path| path.display().to_string());
    let job = job.as_ref().map(|options| {
        let words = ["gptrain", "job", manifest.as_str()]
            .map(shell_word)
            .into_iter();
        let words = words.chain(options.iter().map(|word| shell_word(word)));
        words.collect::<Vec<_>>().join(" ")
    });
    let list = |outcome: Outcome| -> Vec<_> {
        let rows = arguments.iter().filter(|row| row.outcome == outcome);
        rows.map(|row| json!({ "argument": row.argument, "value": row.value, "result": row.text }))
            .collect()
    };
    let mut out = Printout::new(json!({
        "program": program, "manifest": written, "text": text,
        "ranks": loaded.manifest.topology.ranks(), "settings": list(Outcome::Setting),
        "not_needed": list(Outcome::NotNeeded), "no_setting": list(Outcome::NoSetting),
        "notes": notes, "job": job,
    }));
    if written.is_none() {
        out.line(text.trim_end());
        out.line("");
    }
    let ranks = loaded.manifest.topology.ranks();
    out.line(format!(
        "{from}: {program}, {ranks} ranks, {} arguments: {} set, {} not needed, {} without a setting",
        arguments.len(),
        counts[0],
        counts[1],
        counts[2]
    ));
    for (title, outcome) in [
        ("no such setting", Outcome::NoSetting),
        ("settings", Outcome::Setting),
        ("not needed", Outcome::NotNeeded),
    ] {
        let rows: Vec<&ArgumentRow> = arguments
            .iter()
            .filter(|row| row.outcome == outcome)
            .collect();
        let table = Rows::new(rows)
            .text("argument", |row| row.argument.clone())
            .text("value", |row| row.value.clone())
            .text("", |row| row.text.clone())
            .titled(title);
        out.table(table);
    }
    out.line("");
    for note in notes {
        out.line(format!("note: {note}"));
    }
    if let Some(path) = written {
        out.line(format!("wrote {}", path.display()));
    }
    out.line(format!(
        "next: check the paths in data, then `gptrain run {}`",
        shell_word(&manifest)
    ));
    if let Some(job) = job {
        out.line(format!("its job: {job}"));
    }
    out
}
