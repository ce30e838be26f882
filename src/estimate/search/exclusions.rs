//! Settings that exclude every cut, so that no cut has to be evaluated.

use super::{Planner, Search};
use crate::setup::Setup;
use manifest::{Batch, Manifest, Model};

/// Multiple of heads and widths that every tensor parallelism of a node divides.
const DIVISIBLE: usize = 128;

/// Setting that may exclude cuts, and the manifest with a value that does not.
struct Limit {
    name: String,
    without: fn(&Manifest, usize) -> Manifest,
}

impl Search<'_> {
    /// Settings of which each excludes every cut over exactly `devices`, or which do so together. None if
    /// there is a cut.
    pub fn exclusion(&self, devices: usize) -> Option<String> {
        if !self.cuts(devices).is_empty() {
            return None;
        }
        let m = self.planner.manifest;
        let m = &Manifest { model: self.setup.model.clone(), ..m.clone() };
        let limits = limits(m);
        let alone: Vec<&str> = limits
            .iter()
            .filter(|limit| self.has_cuts(&(limit.without)(m, devices), devices))
            .map(|limit| &*limit.name)
            .collect();
        let names = |names: &[&str], word: &str| names.join(word);
        Some(match &alone[..] {
            [] => {
                let all: Vec<&str> = limits.iter().map(|limit| &*limit.name).collect();
                format!("{} together exclude every topology", names(&all, ", "))
            }
            [one] => format!("{one} excludes every topology"),
            several => format!("{} exclude every topology: change one", names(several, " and ")),
        })
    }

    /// Whether the manifest has a cut over `devices` of the same machines.
    fn has_cuts(&self, m: &Manifest, devices: usize) -> bool {
        let setup = &Setup { micro: 1, ..self.setup.for_manifest(m) };
        let planner = Planner { manifest: m, ..self.planner };
        let ramp = m.batch.ramp();
        !Search { planner, setup, ramp, ..self.clone() }
            .cuts(devices)
            .is_empty()
    }
}

/// Settings that limit tensor parallelism, pipelines and replicas.
fn limits(m: &Manifest) -> Vec<Limit> {
    let Model { heads, ffn_hidden, layers, .. } = m.model;
    let kv = m.model.heads().kv;
    let mut limits = vec![
        Limit {
            name: if kv == heads {
                format!("model.heads {heads}")
            } else {
                format!("model.kv_heads {kv}")
            },
            without: |m, _| {
                let old = m.model.heads();
                let kv = old.kv.next_multiple_of(DIVISIBLE);
                let model = Model {
                    heads: m.model.heads / old.kv * kv,
                    kv_heads: Some(kv),
                    head_dim: Some(old.dim),
                    ..m.model.clone()
                };
                Manifest { model, ..m.clone() }
            },
        },
        Limit {
            name: format!("model.ffn_hidden {ffn_hidden}"),
            without: |m, _| {
                let ffn_hidden = m.model.ffn_hidden.next_multiple_of(DIVISIBLE);
                Manifest { model: Model { ffn_hidden, ..m.model.clone() }, ..m.clone() }
            },
        },
        Limit {
            name: format!("model.layers {layers}"),
            without: |m, devices| {
                let layers = m.model.layers.next_multiple_of(devices);
                Manifest { model: Model { layers, ..m.model.clone() }, ..m.clone() }
            },
        },
    ];
    limits.push(match m.batch.ramp_up {
        Some(ramp) => Limit {
            name: format!(
                "batch.ramp_up {} to {} by {}",
                ramp.start, m.batch.global, ramp.increment
            ),
            without: |m, _| Manifest {
                batch: Batch { ramp_up: None, ..m.batch.clone() },
                ..m.clone()
            },
        },
        None => Limit {
            name: format!("batch.global {}", m.batch.global),
            without: |m, devices| {
                let global = m.batch.global * devices;
                Manifest { batch: Batch { global, ..m.batch.clone() }, ..m.clone() }
            },
        },
    });
    limits
}
