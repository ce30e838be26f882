//! Degrees of context and expert parallelism, which are settings of a plan only.

/// Settings of a plan of another program; a manifest has none of them.
pub const KEYS: [&str; 2] = ["topology.context", "topology.expert"];

/// Program of a plan with experts, if the user names none.
pub const USUAL: &str = "megatron-bridge";

/// Degrees that gptrain itself does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Ranks among which the rows of a sample are cut.
    pub context: usize,
    /// Ranks among which the experts of a layer are dealt. They lie along tensor, context and data.
    pub expert: usize,
}

impl Default for Degrees {
    fn default() -> Degrees {
        Degrees { context: 1, expert: 1 }
    }
}

/// Whether a setting, "topology.context=2", is one of a plan only.
pub fn is_setting(set: &str) -> bool {
    let key = set.split('=').next().unwrap_or_default().trim();
    KEYS.contains(&key)
}
