//! Lint of a model's shape: sizes that GPUs handle badly.

use super::cost::wasted_share;
use estimate::setup::Setup;

/// All findings, in words.
pub fn lint(s: &Setup) -> Vec<String> {
    let m = &s.model;
    let t = &s.topology;
    let mut found = Vec::new();
    let mut note = |is: bool, what: String| {
        if is {
            found.push(what);
        }
    };
    let head_dim = m.heads().dim;
    note(
        s.has_odd_heads(),
        format!(
            "head_dim {head_dim} is not a multiple of 8: attention runs at a tenth of its speed"
        ),
    );
    for (name, size) in [
        ("hidden", m.hidden),
        ("hidden / TP", m.hidden / t.tensor),
        ("ffn_hidden / TP", m.ffn_hidden / t.tensor),
        ("padded vocabulary / TP", m.vocab_padded / t.tensor),
    ] {
        note(
            !size.is_multiple_of(64),
            format!("{name} = {size} is not a multiple of 64: half-filled tiles"),
        );
    }
    let lost = wasted_share(s);
    note(
        lost > 0.05,
        format!("{:.0} % of the products' time is half-empty tiles and waves", 100.0 * lost),
    );
    let cuts = s.stages();
    let sizes: Vec<usize> = cuts.iter().map(|cut| cut.len()).collect();
    let most = sizes.iter().max().unwrap_or(&0);
    let least = sizes.iter().min().unwrap_or(&0);
    let ends = s.topology.layer_split == manifest::LayerSplit::TransformerAndEmbedding;
    note(
        most - least > usize::from(ends) || (!ends && most != least),
        format!("stages hold {least} to {most} layers: the others wait for the longest"),
    );
    let fused = m.heads / t.tensor * s.micro;
    note(
        !fused.is_multiple_of(4),
        format!(
            "heads / TP × micro-batch = {fused} is not a multiple of 4, as fused softmax needs"
        ),
    );
    note(
        s.micros() < t.pipeline,
        format!("{} micro-batches do not fill {} stages", s.micros(), t.pipeline),
    );
    let domain = s.link_domain();
    let joined = if domain > s.per_node { "link domains" } else { "nodes" };
    note(
        !s.has_fast_links(t.tensor, s.ranks()),
        format!("TP {} reaches over {joined} of {domain}: its sums cross the network", t.tensor),
    );
    found
}
