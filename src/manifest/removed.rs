//! Settings of earlier versions that no longer exist. A manifest that a run saved keeps loading
//! without them; in one that a user writes they are a mistake with a remedy.

use super::overrides::remove;
use super::tree::{Node, Value, show};
use base::Problems;

struct Removed {
    /// Paths, each with the former default, which a copy of an effective manifest contains.
    settings: &'static [(&'static str, &'static str)],
    what: &'static str,
    remedy: &'static str,
}

const REMOVED: &[Removed] = &[
    Removed {
        settings: &[("topology.offload.delay", "0"), ("topology.offload.delay_after", "40")],
        what: "updates cannot be delayed, because stale gradients raised the loss",
        remedy: "remove it: the losses are then those without offload",
    },
    Removed {
        settings: &[("log.update_norm", "10")],
        what: "the norm of updates is not recorded",
        remedy: "remove it; grad_norm is recorded at every step",
    },
    Removed {
        settings: &[("divergence.update_rise", "2.0")],
        what: "the norm of updates is not recorded",
        remedy: "remove it; loss_rise and norm_rise detect spikes",
    },
    Removed {
        settings: &[("log.metrics_port", "none"), ("log.metrics_host", "127.0.0.1")],
        what: "the run serves no page for Prometheus",
        remedy: "remove it; log.prometheus names the folder of node_exporter's textfile collector",
    },
];

/// Removes the settings that no longer exist from a manifest that a run saved.
pub fn strip(root: &mut Node) {
    for (path, _) in REMOVED.iter().flat_map(|removed| removed.settings) {
        remove(root, path);
    }
}

/// Removes those with the former default, and reports the others.
pub fn check(root: &mut Node, name: &str) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let settings = REMOVED
        .iter()
        .flat_map(|removed| removed.settings.iter().map(move |one| (removed, one)));
    for (Removed { what, remedy, .. }, (path, default)) in settings {
        let Some(node) = root.at(path) else { continue };
        let is_default = match &node.value {
            Value::Null => true,
            Value::Scalar { text, .. } => text == default,
            Value::List(_) | Value::Map(_) => false,
        };
        if !is_default {
            let place = show(&node.place, name);
            problems.add(place, format!("there is no {path} any more: {what}"), *remedy);
        }
        remove(root, path);
    }
    problems.or(())
}
