//! Result of a check as lines, tables and JSON.

use super::log::RunLog;
use super::search::Tested;
use super::trainer::Trainer;
use super::verdict::{Compared, Departure, Pair};
use base::Count;
use base::table::{Cell, Printout, Rows, Table};
use serde_json::json;

/// Forms of errors that are listed when none explains the log.
const NEAREST: usize = 5;

/// Result of a check.
pub struct CheckReport<'a> {
    pub log: &'a RunLog,
    pub trainer: &'a Trainer,
    pub compared: Vec<Compared>,
    pub departed: Option<Departure>,
    pub tested: Vec<Tested>,
    /// Notes from reading the checkpoint.
    pub remarks: Vec<String>,
}

impl CheckReport<'_> {
    fn explanations(&self) -> Vec<&Tested> {
        self.tested.iter().filter(|row| row.explains).collect()
    }

    /// Notes from reading the checkpoint; if the log differs, also those about its settings.
    fn notes(&self) -> Vec<&String> {
        let settings = self.departed.iter().flat_map(|_| &self.trainer.found.notes);
        self.remarks.iter().chain(settings).collect()
    }

    pub fn printout(&self) -> Printout {
        let found = &self.trainer.found;
        let precision = self.trainer.manifest.precision.name();
        let table = steps_table(&self.compared);
        let explained = tested_table(self.explanations());
        let mut out = Printout::new(json!({
            "checkpoint": found.folder, "trainer": found.trainer, "step": found.step,
            "log": self.log.trainer, "precision": precision,
            "agrees": self.departed.is_none(), "steps": table.json(),
            "departure": self.departed.map(|departed| json!({
                "step": departed.step, "quantity": departed.quantity.name(),
            })),
            "explanations": explained.json(),
            "tested": self.tested.len(), "notes": self.notes(),
        }));
        out.line(format!("{}: {}, step {}", found.folder, found.trainer, found.step));
        out.line(format!("log of {}; computed in {precision} on this CPU", self.log.trainer));
        for note in self.notes() {
            out.line(format!("note: {note}"));
        }
        out.table(table.titled("next steps"));
        out.line("");
        match &self.departed {
            None => out.line("the log agrees with the steps computed here"),
            Some(departed) => self.explain(departed, &mut out),
        }
        out
    }

    /// Lines about the first number that differs, and the known errors.
    fn explain(&self, departed: &Departure, out: &mut Printout) {
        let Departure { step, quantity, cause } = departed;
        out.line(format!("the {} of step {step} differs first", quantity.name()));
        if let Some(cause) = cause {
            out.line(cause.evidence());
        }
        let tested = Count(self.tested.len() as u64).with_noun("form");
        let explanations = self.explanations();
        let Some(first) = explanations.first() else {
            out.line(format!("none of {tested} of known errors explains the log"));
            let mut nearest: Vec<&Tested> = self.tested.iter().collect();
            nearest.sort_by(|a, b| b.agreeing.cmp(&a.agreeing).then(a.off.total_cmp(&b.off)));
            nearest.truncate(NEAREST);
            out.table(tested_table(nearest).titled("the nearest"));
            return;
        };
        out.line(format!("explained by: {}: {}", first.name, first.detail));
        if explanations.len() > 1 {
            let others = explanations[1..].iter();
            let others: Vec<String> = others
                .map(|row| format!("{}: {}", row.name, row.detail))
                .collect();
            out.line(format!(
                "explained as well, and not told apart by these steps: {}",
                others.join("; ")
            ));
        }
        out.line(format!("{tested} of known errors were tried"));
    }
}

fn tested_table(tested: Vec<&Tested>) -> Table {
    Rows::new(tested)
        .column("error", "error", |row: &Tested| row.name.to_string())
        .column("form", "form", |row: &Tested| row.detail.clone())
        .column("lines that agree", "agreeing", |row: &Tested| row.agreeing)
        .column("largest difference / tolerance", "off", |row: &Tested| match &row.failed {
            None => Cell::fixed(row.off, 1),
            Some(why) => Cell::without_value(why.clone()),
        })
        .table()
}

fn steps_table(compared: &[Compared]) -> Table {
    let norms = compared.iter().any(|row| row.grad_norm.is_some());
    let averages = compared.iter().any(|row| row.averaged > 1);
    let mut rows = Rows::new(compared).column("step", "step", |row: &Compared| row.step);
    if averages {
        rows = rows.column("mean of", "averaged", |row: &Compared| row.averaged);
    }
    rows = pair_columns(
        rows,
        ["loss", "ours", "difference"],
        ["loss", "our_loss", "loss_difference"],
        |row| Some(row.loss),
    );
    if norms {
        rows = pair_columns(
            rows,
            ["norm", "ours", "difference"],
            ["grad_norm", "our_grad_norm", "grad_norm_difference"],
            |row| row.grad_norm,
        );
    }
    rows.column("verdict", "agrees", |row: &Compared| {
        Cell::new(row.agrees(), if row.agrees() { "agrees" } else { "differs" })
    })
    .table()
}

/// Columns of a quantity: theirs, ours, the difference.
fn pair_columns<'r>(
    rows: Rows<'r, Compared>,
    titles: [&str; 3],
    keys: [&str; 3],
    pair: fn(&Compared) -> Option<Pair>,
) -> Rows<'r, Compared> {
    let cell = move |row: &Compared, value: fn(&Pair) -> f64| match pair(row) {
        None => Cell::without_value("-"),
        Some(pair) => {
            let digits = (1.0 - pair.theirs.unit.log10()).clamp(1.0, 9.0) as usize;
            Cell::fixed(value(&pair), digits)
        }
    };
    rows.column(titles[0], keys[0], move |row| cell(row, |pair| pair.theirs.value))
        .column(titles[1], keys[1], move |row| cell(row, |pair| pair.ours))
        .column(titles[2], keys[2], move |row| cell(row, Pair::difference))
}
