//! Text output of an inspection and of a diff.

use super::{Diff, Inspection, Stats};
use base::table::{Cell, Printout, Rows, Table};
use base::{Bytes, Count};
use engine::{ERROR, MASTER, Q, SECOND};
use std::collections::BTreeSet;

impl Inspection {
    /// Overview and findings, with a row per tensor on request.
    pub fn printout(&self, with_tensors: bool) -> Printout {
        let mut out = Printout::new(self);
        out.table(self.facts());
        if with_tensors {
            out.table(self.tensors().titled("Tensors"));
            out.line("");
        }
        for note in &self.notes {
            out.line(format!("note: {note}"));
        }
        for damage in &self.damage {
            out.line(format!("DAMAGE: {damage}"));
        }
        out.line(match (self.damage.len(), self.deep) {
            (0, true) => "sound: every digest verified".to_string(),
            (0, false) => "sound, as far as it was read".to_string(),
            (n, _) => {
                format!(
                    "{}: do not resume from this checkpoint",
                    Count(n as u64).with_noun("finding")
                )
            }
        });
        out
    }

    fn facts(&self) -> Table {
        let o = &self.overview;
        let mut facts = vec![("run", format!("{} (gptrain {})", o.run, o.gptrain))];
        facts.extend(o.imported.clone().map(|imported| ("imported", imported)));
        let samples = Count(o.consumed_samples);
        let tokens = Count(o.consumed_tokens);
        facts.push(("step", format!("{}: {samples} samples, {tokens} tokens", Count(o.step))));
        let next = format!("batch of {}, sample {}", o.next_batch, o.consumed_samples);
        facts.push(("next", next));
        if let Some(last) = o.last {
            let norm = last.grad_norm;
            let step = format!("loss {}, gradient norm {norm}, lr {:e}", last.loss, o.lr);
            facts.push(("last step", step));
        }
        if let Some(s) = o.loss_scale {
            let updates = Count(s.updates_in_a_row);
            let scale = format!(
                "{}, {updates} updates since it doubled or a step overflowed, {} steps skipped",
                s.scale,
                Count(s.skipped)
            );
            facts.push(("loss scale", scale));
        }
        let weights = format!("{} parameters, trained in {}", Count(o.parameters), o.live_dtype);
        facts.push(("weights", weights));
        let of = if o.weights_only { " of the weights only" } else { "" };
        facts.push(("files", format!("{} shards, {}{of}", o.shards, Bytes(o.bytes))));
        facts.push(("seeds", format!("weights and dropout {}, data {}", o.seed, o.data_seed)));
        for id in &o.data {
            let bytes = Bytes(id.token_bytes);
            let data = format!("{} (.idx {}, .bin {bytes})", id.prefix, id.index_digest);
            facts.push(("data", data));
        }
        facts.push(("optimizer", o.optimizer.to_string()));
        for group in &o.optimizer.groups {
            let n = group.tensors.len();
            let decay = group.weight_decay;
            let step = group.step;
            facts.push(("", format!("{n} tensors with weight decay {decay}, {step} updates")));
        }
        Table::facts(facts).titled(&o.folder)
    }

    /// A row per tensor, and one for each of its states that was read.
    fn tensors(&self) -> Table {
        let mut rows = Vec::new();
        for row in &self.tensors {
            let shape: Vec<String> = row.shape.iter().map(usize::to_string).collect();
            let decay = if row.decay { "yes" } else { "no" };
            let remark = if row.as_initialised { "as initialised" } else { "" };
            let [min, max, mean, l2, remark] = numbers(row.master(), remark);
            let name = row.name.clone().into();
            rows.push([name, shape.join(" × ").into(), decay.into(), min, max, mean, l2, remark]);
            for (state, stats) in row.states.iter().filter(|(state, _)| *state != MASTER) {
                let coded = if row.is_coded(state) { "of 8 bits" } else { "" };
                if stats.is_some() {
                    let [min, max, mean, l2, remark] = numbers(stats.as_ref(), "");
                    let name = format!("  {}", title(state)).into();
                    rows.push([name, coded.into(), "".into(), min, max, mean, l2, remark]);
                }
            }
        }
        Table::from_cells(["tensor", "shape", "decay", "min", "max", "mean", "L2", ""], rows)
    }
}

/// Cells of a state's numbers, and a remark about them.
fn numbers(stats: Option<&Stats>, remark: &str) -> [Cell; 5] {
    let Some(s) = stats else { return ["", "", "", "", "cannot be read"].map(Cell::from) };
    let mut remarks = s.unsound.findings(MASTER);
    remarks.extend(Some(remark.to_string()).filter(|remark| !remark.is_empty()));
    let [min, max, mean, l2] = s.cells();
    [min, max, mean, l2, remarks.join(", ").into()]
}

impl Stats {
    /// Cells of the smallest, largest and mean value and the norm.
    pub fn cells(&self) -> [Cell; 4] {
        [self.min, self.max, self.mean, self.l2].map(scientific)
    }
}

pub fn scientific(number: f64) -> Cell {
    Cell::new(number, format!("{number:.4e}"))
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

impl Diff {
    pub fn printout(&self) -> Printout {
        let mut out = Printout::new(self);
        out.line(format!("A  {}\nB  {}\n", self.a, self.b));
        for change in &self.state {
            out.line(format!("  {}: {} → {}", change.what, change.a, change.b));
        }
        for (names, which) in [(&self.only_in_a, "A"), (&self.only_in_b, "B")] {
            for name in names {
                out.line(format!("  {name}: only in {which}"));
            }
        }
        out.table(self.tensors().titled("‖B−A‖/‖A‖"));
        let equal = self.tensors.iter().filter(|t| t.equal).count();
        out.line(format!("{equal} of {} tensors are equal, bit for bit", self.tensors.len()));
        out
    }

    /// A row per tensor: the change of each state, the weights' first, and the largest of a weight.
    fn tensors(&self) -> Table {
        let states: BTreeSet<&String> = self.tensors.iter().flat_map(|t| t.states.keys()).collect();
        let mut states: Vec<&String> = states.into_iter().collect();
        states.sort_by_key(|state| *state != MASTER);
        let mut table = Rows::new(&self.tensors).text("tensor", |t| t.name.clone());
        for (number, state) in states.iter().enumerate() {
            table = table.text(title(state), |t| match t.states.get(*state) {
                _ if t.equal => Cell::without_value(if number == 0 { "equal" } else { "" }),
                Some(change) if change.is_finite() => scientific(*change),
                Some(_) => Cell::without_value("–"),
                None => Cell::default(),
            });
        }
        table
            .text("largest", |t| if t.equal { Cell::default() } else { scientific(t.largest) })
            .table()
    }
}
