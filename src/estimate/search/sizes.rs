//! Search for the largest model of a setup's proportions that fits on some devices.

use super::{Answer, Candidate, Progress, Search};
use crate::setup::Setup;
use crate::verdict::OFFERED;
use manifest::Model;
use model::parameters;

impl Search<'_> {
    /// The widest model of the setup's proportions that fits: layers, head dimension, heads a key-value
    /// head, and feed-forward width by hidden width. Layers are rounded to what a pipeline on these
    /// devices divides.
    pub fn largest(&self, devices: usize) -> Option<Answer> {
        let size = |found: &Candidate| parameters(&found.setup.model);
        let mut found = self
            .with_doubts()
            .filter_map(|search| search.largest_as_permitted(devices));
        let best = found.next()?;
        if self.planner.is_own() || best.verdict.share_beyond() > 0.0 {
            return Some(Answer::without_doubt(best));
        }
        let larger = self.with_doubt(OFFERED[1]).largest_as_permitted(devices);
        let in_doubt = larger.filter(|larger| size(larger) > size(&best));
        Some(Answer { best, in_doubt })
    }

    fn largest_as_permitted(&self, devices: usize) -> Option<Candidate> {
        let units: Vec<usize> = (1..=24)
            .rev()
            .filter(|unit| devices.is_multiple_of(*unit))
            .collect();
        let mut found = None;
        let mut misses = 0;
        for width in 1..=512 {
            // Models of one width share the dry runs of their layers.
            let search = self.with_new_bounds();
            let mut models = units
                .iter()
                .map(|unit| scale_model(self.setup, width, *unit));
            match models.find(|setup| search.for_model(setup).any_fits(devices)) {
                Some(setup) => {
                    self.report(Progress::Fits(parameters(&setup.model)));
                    (found, misses) = (Some(setup), 0);
                }
                // Small models may be too few layers for many devices; large ones need too much.
                None => {
                    let widest = scale_model(self.setup, width, units[0]);
                    self.report(Progress::FitsNot(parameters(&widest.model)));
                    misses += usize::from(found.is_some());
                }
            }
            if misses == 4 {
                break;
            }
        }
        let setup = found?;
        self.with_new_bounds().for_model(&setup).first(devices)
    }
}

/// A model of the setup's proportions with 8 heads for each `width`, or as many more as whole groups
/// take, and a multiple of `unit` layers.
fn scale_model(setup: &Setup, width: usize, unit: usize) -> Setup {
    let m = &setup.model;
    let group = m.heads / m.heads().kv;
    let heads = (8 * width).next_multiple_of(group);
    let hidden = match m.head_dim {
        Some(_) => (heads * m.hidden / m.heads).next_multiple_of(64),
        None => heads * m.heads().dim.next_multiple_of(8),
    };
    // Widths that are not a multiple of the hidden width are rounded as Llama's.
    let ffn_hidden = if m.ffn_hidden.is_multiple_of(m.hidden) {
        m.ffn_hidden / m.hidden * hidden
    } else {
        (m.ffn_hidden * hidden / m.hidden).next_multiple_of(256)
    };
    let ratio = m.hidden as f64 / m.layers as f64;
    let layers = ((hidden as f64 / ratio).round() as usize).next_multiple_of(unit);
    let kv_heads = m.kv_heads.map(|_| heads / group);
    let model = Model { heads, kv_heads, hidden, ffn_hidden, layers, ..m.clone() };
    Setup { model, ..setup.clone() }.with_topology(|_| ())
}
