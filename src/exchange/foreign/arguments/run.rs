//! Megatron's arguments of the run around the model: length, evaluations, checkpoints, logs, and options of
//! which gptrain has one form.

use super::super::settings::{Settings, number};
use super::{Arguments, equals};
use manifest::dialects::{Dialect, Meaning, ROWS};

impl Arguments<'_> {
    /// Length, evaluations, checkpoints, logs and the limit of a wait.
    pub(super) fn run(&self, settings: &mut Settings) -> anyhow::Result<()> {
        if let Some((name, interval)) = self.find("checkpoint.interval") {
            settings.set("checkpoint.interval", interval.count()?.max(1), name);
        }
        // Megatron removes the checkpoints between those that it retains.
        if let Some((name, interval)) = self.find("checkpoint.keep_every") {
            settings.set("checkpoint.keep_last", 1, name);
            settings.set("checkpoint.keep_every", interval.count()?.max(1), name);
        }
        match self.find("train.samples") {
            Some((name, samples)) => settings.set("train.samples", samples.count()?, name),
            None if self.get("train.steps").is_none() && self.get("train.tokens").is_some() => {}
            None => {
                let steps = self.count("train.steps")?;
                let samples = steps.saturating_mul(self.count("batch.global")?);
                let names = ["train.steps", "batch.global"].map(|key| self.name(key));
                settings.set("train.samples", samples, &names.join(" × "));
            }
        }
        self.limit_tokens(settings)?;
        self.set_needed(settings, &["train.seed"])?;
        self.evaluations(settings)?;
        if let Some((name, interval)) = self.find("log.interval") {
            settings.set("log.interval", interval.count()?.max(1), name);
        }
        if let Some((name, minutes)) = self.find("comm.timeout_s") {
            let seconds = minutes.float()? * 60.0;
            if seconds > 0.0 {
                let source = format!("{name} × 60");
                settings.set("comm.timeout_s", number(seconds), &source);
            }
        }
        Ok(())
    }

    /// Shortens the run to its limit of tokens, with which Megatron-DeepSpeed also ends one.
    fn limit_tokens(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let Some((name, tokens)) = self.find("train.tokens") else { return Ok(()) };
        let samples = tokens.count()? / self.count("model.seq_len")?.max(1);
        let known = settings
            .get("train.samples")
            .and_then(|text| text.parse::<u64>().ok());
        if known.is_none_or(|known| samples < known) {
            let from = format!("{name} / {}", self.name("model.seq_len"));
            settings.set("train.samples", samples.max(1), &from);
        }
        Ok(())
    }

    /// Evaluations, if the run has validation sets.
    fn evaluations(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let interval = self.optional_count("train.eval_interval")?;
        let batches = self.optional_count("train.eval_samples")?;
        let second = settings
            .get("data.split")
            .and_then(|split| split.split(',').nth(1));
        let share = second.and_then(|share| share.trim().trim_end_matches('"').parse::<f64>().ok());
        let named = settings
            .0
            .iter()
            .any(|row| row.key.starts_with("data.valid."));
        if !named && share.is_none_or(|share| share <= 0.0) {
            return Ok(());
        }
        if let Some(interval) = interval {
            settings.set("train.eval_interval", interval, self.name("train.eval_interval"));
        }
        if let Some(batches) = batches.filter(|batches| *batches > 0) {
            let samples = batches.saturating_mul(self.count("batch.global")?);
            let names = ["train.eval_samples", "batch.global"].map(|key| self.name(key));
            settings.set("train.eval_samples", samples, &names.join(" × "));
        }
        Ok(())
    }

    /// Notes about options that change the training, of which gptrain has one form.
    pub(super) fn note_options(&self, notes: &mut Vec<String>) {
        for row in ROWS {
            let Meaning::Noted { value: only, why } = row.meaning else { continue };
            for name in row.names(Dialect::Megatron) {
                let Some(value) = self.get(name) else { continue };
                if !equals(&value, only) {
                    notes.push(format!("args.{name} is {value}: {why}"));
                }
            }
        }
        if let Some((name, value)) = self.given("precision: fp8") {
            notes.push(format!(
                "args.{name} is {value}: the manifest has the precision around it; set precision: fp8 for \
                 gptrain's own"
            ));
        }
    }
}

#[cfg(test)]
mod tests;
