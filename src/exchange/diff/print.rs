//! Text output of a comparison.

use super::{Diff, TensorDiff};
use crate::foreign::AdamState;
use base::Count;
use base::table::Printout;

/// Tensors that differ in the text, at most; JSON has all.
const SHOWN: usize = 8;

impl Diff {
    pub fn printout(&self) -> Printout {
        let mut out = Printout::new(self);
        out.line(format!("A  {}\nB  {}\n", self.a, self.b));
        for change in self.state.iter().chain(&self.settings) {
            out.line(format!("  {}: {} → {}", change.what, change.a, change.b));
        }
        let differing: Vec<&TensorDiff> = self.tensors.iter().filter(|t| !t.equal).collect();
        for tensor in differing.iter().take(SHOWN) {
            let Some(difference) = &tensor.difference else { continue };
            out.line(format!("  {} of {}: {difference}", state_name(tensor.state), tensor.name));
        }
        if differing.len() > SHOWN {
            out.line(format!("  and {} more that differ", Count((differing.len() - SHOWN) as u64)));
        }
        for note in &self.notes {
            out.line(format!("note: {note}"));
        }
        out.line(self.verdict(differing.len()));
        out
    }

    fn verdict(&self, differing: usize) -> String {
        let all = Count(self.tensors.len() as u64);
        if self.tensors.is_empty() {
            return "the two models have other shapes: no tensor was compared".into();
        }
        let states: Vec<&str> = self
            .compared
            .iter()
            .map(|state| state_name(state))
            .collect();
        let states = states.join(", ");
        match (differing, self.settings.is_empty()) {
            (0, true) => format!("equal: {all} tensors ({states})"),
            (0, false) => format!("all {all} tensors are equal, the model's settings are not"),
            _ => format!("{} of {all} tensors differ ({states})", Count(differing as u64)),
        }
    }
}

/// Name of a state in text.
fn state_name(saved: &str) -> &'static str {
    let states = AdamState::ALL.into_iter();
    let mut named = states.filter(|state| state.saved_name() == saved);
    named.next().map_or("", AdamState::name)
}
