//! Records of sick nodes as text.

use base::{Seconds, escape_control};
use launch::sick_nodes::{Reason, SickNode};

/// Record of a node, at the time `now`.
pub fn line(node: &SickNode, now: f64) -> String {
    let [ago, left] = [now - node.at, node.expires - now].map(|time| Seconds(time.max(0.0)));
    let times = if node.times == 1 { "once".to_string() } else { format!("{} times", node.times) };
    let host = escape_control(&node.host);
    let evidence = escape_control(&node.evidence);
    let not_yet = match (node.is_excluded(false), node.reason) {
        (true, _) => {
            return format!("{host}: excluded for {left}; seen {times}, {ago} ago: {evidence}");
        }
        (false, Reason::Straggles) => "excluded if slurm.exclude_stragglers is true",
        (false, _) => "excluded from the second time",
    };
    format!("{host}: seen {times}, {ago} ago ({not_yet}); expires in {left}: {evidence}")
}
