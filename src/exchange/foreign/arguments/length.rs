//! Warm-up of the samples' length: a flag of Megatron-DeepSpeed's arguments, whose schedule is a block of
//! DeepSpeed's configuration. That is part of DeepSpeed's own checkpoints.

use super::super::settings::Settings;
use super::{Arguments, Value, whole};
use manifest::dialects::Dialect;
use plan::ramp::Ramp;

const KEY: &str = "batch.length_ramp_up";

impl Arguments<'_> {
    /// Sets the warm-up by DeepSpeed's `config`, if the run has one.
    pub fn length_ramp_up(
        &self,
        config: Option<Value>,
        settings: &mut Settings,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let Some((name, _)) = self.given(KEY) else { return Ok(()) };
        let theirs = Dialect::HuggingFace.name(KEY);
        let Some(block) = config.and_then(|config| config.some(theirs)) else {
            notes.push(format!(
                "{name} was set, and its schedule is in DeepSpeed's configuration, which is not here: \
                 set {KEY}: START INCREMENT SAMPLES (min_difficulty, difficulty_step, \
                 total_curriculum_step × {})",
                self.name("batch.global")
            ));
            return Ok(());
        };
        for (key, known) in [("curriculum_type", "seqlen"), ("schedule_type", "fixed_linear")] {
            let word = block.need(key)?;
            let word = word.str()?;
            if word != known {
                return self.refuse_option(format!(
                    "{theirs}.{key} is {word}: gptrain has {known}, {KEY}"
                ));
            }
        }
        let schedule = block.need("schedule_config")?;
        let increment = schedule.need("difficulty_step")?.count()?.max(1);
        // DeepSpeed rounds every length down to a multiple of the step.
        let start = block.need("min_difficulty")?.count()?;
        let start = (start - start % increment).max(increment);
        let steps = schedule.need("total_curriculum_step")?.count()?;
        let samples = self.batch_ramp()?.samples_after(steps);
        settings.set(KEY, format!("{start} {increment} {samples}"), theirs);
        let full = self.count("model.seq_len")?;
        let most = block.need("max_difficulty")?.count()?;
        if most != full {
            self.refuse_option(format!(
                "{theirs}.max_difficulty is {most}: gptrain's samples grow to {} {full}",
                self.name("model.seq_len")
            ))?;
        }
        if self.get("batch.ramp_up").is_some() {
            notes.push(format!(
                "the length of samples grows with the samples, and did with the steps: it is the same at \
                 the start and from sample {samples} on"
            ));
        }
        Ok(())
    }

    /// Global batch over the run.
    fn batch_ramp(&self) -> anyhow::Result<Ramp> {
        let global = self.count("batch.global")? as usize;
        let Some(ramp) = self.get("batch.ramp_up") else { return Ok(Ramp::constant(global)) };
        let numbers = ramp
            .items()?
            .iter()
            .map(whole)
            .collect::<anyhow::Result<Vec<_>>>()?;
        match numbers[..] {
            [start, increment, samples]
                if start > 0
                    && increment > 0
                    && start <= global as u64
                    && (global as u64 - start).is_multiple_of(increment) =>
            {
                Ok(Ramp::growing(start as usize, increment as usize, samples, global))
            }
            _ => Ok(Ramp::constant(global)),
        }
    }
}

#[cfg(test)]
mod tests;
