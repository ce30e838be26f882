//! Text output of an inspection.

use super::{Depth, Inspection, Progress, StateRow};
use base::Count;
use base::table::{Cell, Printout, Rows, Table};
use checkpoint::inspect::scientific;
use engine::{MASTER, SECOND};
use serde_json::Value;

impl Inspection {
    /// Facts, settings, findings, and the tensors that were read.
    pub fn printout(&self) -> Printout {
        let mut out = Printout::new(self);
        out.table(self.facts());
        self.settings(&mut out);
        out.table(self.rows().titled("Tensors"));
        out.table(
            self.copies()
                .titled("Drifted copies, compared with tensor rank 0's"),
        );
        out.line("");
        for note in &self.notes {
            out.line(format!("note: {note}"));
        }
        for damage in &self.damage {
            out.line(format!("DAMAGE: {damage}"));
        }
        let findings = self.damage.len();
        out.line(match self.read {
            _ if findings > 0 => {
                let findings = Count(findings as u64).with_noun("finding");
                format!("{findings}: do not continue from this checkpoint")
            }
            Depth::Facts => {
                "no tensor was read: --tensors reads the weights, --deep everything".into()
            }
            Depth::Weights => "sound, as far as it was read".into(),
            Depth::All => "sound: every value was read".into(),
        });
        out
    }

    fn facts(&self) -> Table {
        let o = &self.overview;
        let mut facts = vec![("trainer", o.trainer.clone()), ("format", o.format.to_string())];
        if let Some(progress) = &o.progress {
            progress.add_to(&mut facts);
        }
        facts.push(("weights", format!("{} parameters", Count(o.parameters))));
        let states = match &o.without_states {
            None => "AdamW's states".to_string(),
            Some(why) => format!("no states: {why}"),
        };
        facts.push(("optimizer", states));
        Table::facts(facts).titled(&o.folder)
    }

    /// A line for each section of the settings.
    fn settings(&self, out: &mut Printout) {
        let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
        for (key, value) in &self.overview.settings {
            let (section, name) = key.split_once('.').unwrap_or(("", key));
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let text = format!("{name} {value}");
            match sections.iter_mut().find(|(known, _)| *known == section) {
                Some((_, texts)) => texts.push(text),
                None => sections.push((section, vec![text])),
            }
        }
        sections.sort_by_key(|(section, _)| *section != "model");
        for (section, texts) in sections {
            let title = if section.is_empty() { "settings" } else { section };
            out.line(format!("  {title}: {}", texts.join(", ")));
        }
        if !self.overview.wanted.is_empty() {
            out.line(format!("  not in the files: {}", self.overview.wanted.join(", ")));
        }
    }

    /// A row per tensor, and one for each of its moments that was read.
    fn rows(&self) -> Table {
        let mut rows = Vec::new();
        for tensor in &self.tensors {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let shape = shape.join(" × ");
            let copies = match tensor.copies {
                1 => String::new(),
                copies => format!("{copies} copies"),
            };
            if tensor.states.is_empty() {
                let mut row = ["", "", "", "", "", "", "", "not read"].map(Cell::from);
                row[0] = tensor.name.clone().into();
                row[1] = shape.clone().into();
                rows.push(row);
            }
            let mut names = [tensor.name.clone(), shape, copies];
            for (state, title) in [(MASTER, ""), ("first_moment", "m"), (SECOND, "v")] {
                let Some(StateRow { dtype, stats }) = tensor.states.get(state) else { continue };
                if !title.is_empty() {
                    names = [format!("  {title}"), String::new(), String::new()];
                }
                let [name, shape, copies] = names.clone().map(Cell::from);
                let [min, max, mean, l2] = stats.cells();
                let findings = stats.unsound.findings(state).join(", ");
                let remark = if findings.is_empty() { copies } else { findings.into() };
                rows.push([name, shape, dtype.clone().into(), min, max, mean, l2, remark]);
            }
        }
        Table::from_cells(["tensor", "shape", "type", "min", "max", "mean", "L2", ""], rows)
    }

    fn copies(&self) -> Table {
        Rows::new(&self.copies)
            .text("tensor", |copies| {
                let tied = if copies.tied { " (last stage's copy of the embedding)" } else { "" };
                format!("{}{tied}", copies.name)
            })
            .text("state", |copies| copies.state)
            .text("rank", |copies| copies.rank)
            .text("largest difference", |copies| scientific(copies.largest))
            .table()
    }
}

impl Progress {
    fn add_to(&self, facts: &mut Vec<(&str, String)>) {
        let step = Count(self.step);
        let progress = match (self.consumed_samples, self.consumed_tokens) {
            (Some(samples), Some(tokens)) => {
                format!("{step}: {} samples, {} tokens", Count(samples), Count(tokens))
            }
            _ => format!("{step}: the number of samples is not in the files"),
        };
        facts.push(("step", progress));
        if let Some(updates) = self.updates {
            facts.push(("last update", format!("number {}, lr {:e}", Count(updates), self.lr)));
        }
        facts.extend(
            self.loss_scale
                .map(|scale| ("loss scale", scale.to_string())),
        );
        let Progress { tensor, pipeline, data, .. } = self;
        facts.push(("grid", format!("tensor {tensor} × pipeline {pipeline} × data {data}")));
    }
}
