//! Text output of an inspection and of a diff.

use super::{Diff, Inspection, Stats};
use base::{Bytes, Count};
use engine::{ERROR, MASTER, Q, SECOND};
use std::collections::BTreeSet;
use std::fmt;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.overview;
        writeln!(f, "{}", o.folder)?;
        writeln!(f, "  run        {} (gptrain {})", o.run, o.gptrain)?;
        if let Some(imported) = &o.imported {
            writeln!(f, "  imported   {imported}")?;
        }
        let samples = Count(o.consumed_samples);
        let tokens = Count(o.consumed_tokens);
        writeln!(f, "  step       {}: {samples} samples, {tokens} tokens", Count(o.step))?;
        writeln!(f, "  next       batch of {}, sample {}", o.next_batch, o.consumed_samples)?;
        if let Some(last) = o.last {
            let loss = last.loss;
            let norm = last.grad_norm;
            writeln!(f, "  last step  loss {loss}, gradient norm {norm}, lr {:e}", o.lr)?;
        }
        if let Some(s) = o.loss_scale {
            writeln!(
                f,
                "  loss scale {}, {} updates since it doubled or a step overflowed, {} steps skipped",
                s.scale,
                Count(s.updates_in_a_row),
                Count(s.skipped)
            )?;
        }
        let parameters = Count(o.parameters);
        let bytes = Bytes(o.bytes);
        writeln!(f, "  weights    {parameters} parameters, trained in {}", o.live_dtype)?;
        writeln!(f, "  files      {} shards, {bytes}", o.shards)?;
        writeln!(f, "  seeds      weights and dropout {}, data {}", o.seed, o.data_seed)?;
        for id in &o.data {
            writeln!(
                f,
                "  data       {} (.idx {}, .bin {})",
                id.prefix,
                id.index_digest,
                Bytes(id.token_bytes)
            )?;
        }
        let rule = &o.optimizer;
        writeln!(f, "  optimizer  {rule}")?;
        for group in &rule.groups {
            let n = group.tensors.len();
            let decay = group.weight_decay;
            let step = group.step;
            writeln!(f, "             {n} tensors with weight decay {decay}, {step} updates")?;
        }
        if f.alternate() {
            self.table(f)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for damage in &self.damage {
            writeln!(f, "DAMAGE: {damage}")?;
        }
        match (self.damage.len(), self.deep) {
            (0, true) => write!(f, "sound: every digest verified"),
            (0, false) => write!(f, "sound, as far as it was read"),
            (n, _) => write!(f, "{n} findings: do not resume from this checkpoint"),
        }
    }
}

impl Inspection {
    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .tensors
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(6)
            .clamp(6, 80);
        writeln!(
            f,
            "\n  {:width$}  {:>14}  decay {:>11} {:>11} {:>11} {:>11}",
            "tensor", "shape", "min", "max", "mean", "L2"
        )?;
        for row in &self.tensors {
            let shape: Vec<_> = row.shape.iter().map(|n| n.to_string()).collect();
            let decay = if row.decay { "yes" } else { "no" };
            write!(f, "  {:width$}  {:>14}  {decay:5}", row.name, shape.join(" × "))?;
            numbers(f, row.master())?;
            writeln!(f, "{}", if row.as_initialised { "  as initialised" } else { "" })?;
            for (state, stats) in row.states.iter().filter(|(state, _)| *state != MASTER) {
                let of = if row.is_coded(state) { "of 8 bits" } else { "" };
                if let Some(stats) = stats {
                    write!(f, "  {:>width$}  {:>14}       ", title(state), of)?;
                    numbers(f, Some(stats))?;
                    writeln!(f)?;
                }
            }
        }
        writeln!(f)
    }
}

/// Title of a state in a table.
fn title(state: &str) -> &str {
    match state {
        MASTER => "weight",
        "first_moment" => "m",
        SECOND => "v",
        "first_scales" => "m scales",
        "second_scales" => "√v scales",
        "row_mean" => "v by row",
        "col_mean" => "v by column",
        ERROR => "PowerSGD error",
        Q => "PowerSGD Q",
        other => other,
    }
}

fn numbers(f: &mut fmt::Formatter<'_>, stats: Option<&Stats>) -> fmt::Result {
    let Some(s) = stats else { return write!(f, " cannot be read") };
    write!(f, " {:>11.4e} {:>11.4e} {:>11.4e} {:>11.4e}", s.min, s.max, s.mean, s.l2)?;
    let findings = s.unsound.findings(MASTER);
    if findings.is_empty() { Ok(()) } else { write!(f, "  {}", findings.join(", ")) }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A  {}\nB  {}\n", self.a, self.b)?;
        for change in &self.state {
            writeln!(f, "  {}: {} → {}", change.what, change.a, change.b)?;
        }
        for (names, which) in [(&self.only_in_a, "A"), (&self.only_in_b, "B")] {
            names
                .iter()
                .try_for_each(|name| writeln!(f, "  {name}: only in {which}"))?;
        }
        let width = self
            .tensors
            .iter()
            .map(|t| t.name.len())
            .max()
            .unwrap_or(6)
            .max(6);
        let states: BTreeSet<&str> = self
            .tensors
            .iter()
            .flat_map(|t| t.states.keys())
            .map(String::as_str)
            .collect();
        let mut states: Vec<&str> = states.into_iter().collect();
        states.sort_by_key(|state| *state != MASTER);
        write!(f, "\n  {:width$} ", "‖B−A‖/‖A‖")?;
        states
            .iter()
            .try_for_each(|state| write!(f, " {:>11}", title(state)))?;
        writeln!(f, " {:>11}", "largest")?;
        for t in &self.tensors {
            if t.equal {
                writeln!(f, "  {:width$}  {:>11}", t.name, "equal")?;
            } else {
                write!(f, "  {:width$} ", t.name)?;
                for state in &states {
                    match t.states.get(*state) {
                        Some(change) if change.is_finite() => write!(f, " {change:>11.4e}")?,
                        Some(_) => write!(f, " {:>11}", "–")?,
                        None => write!(f, " {:>11}", "")?,
                    }
                }
                writeln!(f, " {:>11.4e}", t.largest)?;
            }
        }
        let equal = self.tensors.iter().filter(|t| t.equal).count();
        write!(f, "{equal} of {} tensors are equal, bit for bit", self.tensors.len())
    }
}
