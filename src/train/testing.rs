//! Variables with which tests slow a run down or hurry it up. Not in a build without the feature
//! `testing`.

use std::sync::OnceLock;
use std::time::Duration;

/// Seconds that a rank sleeps in each step.
pub const STEP_DELAY: &str = "GPTRAIN_TEST_STEP_DELAY";

/// Seconds between queries of Slurm for the job's end.
pub const REREAD: &str = "GPTRAIN_TEST_REREAD";

/// FLOP/s of the machine for which `--minutes` chooses the length of a run.
pub const MACHINE_FLOPS: &str = "GPTRAIN_TEST_MACHINE_FLOPS";

/// Assumed FLOP/s of this machine, if they are set.
pub fn machine_flops() -> Option<f64> {
    let text = std::env::var(MACHINE_FLOPS).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{MACHINE_FLOPS}: {text:?} is not a number")),
    )
}

/// Sleeps for the delay of a step. Called within the timed part of a step.
pub fn delay_step() {
    static DELAY: OnceLock<Option<Duration>> = OnceLock::new();
    if let Some(delay) = DELAY.get_or_init(|| seconds(STEP_DELAY)) {
        std::thread::sleep(*delay);
    }
}

/// Interval of queries, if it is set.
pub fn reread() -> Option<Duration> {
    seconds(REREAD)
}

fn seconds(variable: &str) -> Option<Duration> {
    let text = std::env::var(variable).ok()?;
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Some(seconds.unwrap_or_else(|| panic!("{variable}: {text:?} is not a number of seconds")))
}
