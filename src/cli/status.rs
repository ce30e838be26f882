//! `gptrain status`

use base::{Count, Seconds, unix_time};
use std::path::{Path, PathBuf};
use train::events::{self, Kind};
use train::status::Status;

/// A sign of life that is older says that the run is gone, or its folder out of reach.
const SILENT: f64 = 60.0;

#[derive(clap::Args)]
pub struct Args {
    /// The run's folder: `log.folder` of its manifest
    run: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let status = Status::read(&args.run)?;
    match args.json {
        true => base::say!("{:#}", serde_json::to_value(&status)?),
        false => base::say!("{}", text(&status, &args.run, unix_time().as_secs_f64())),
    }
    Ok(())
}

/// What a person wants to know, at a moment.
fn text(status: &Status, folder: &Path, now: f64) -> String {
    let since = |at: f64| Seconds((now - at).max(0.0));
    let silent = now - status.updated;
    let doing = match (status.ended, silent > SILENT) {
        (true, _) => format!("ended {} ago: {}", since(status.updated), status.phase),
        (false, true) => format!(
            "no sign of life for {}: it was {}; look at process {} on {}",
            Seconds(silent),
            status.phase,
            status.process,
            status.host
        ),
        (false, false) => format!("{}, {} ago", status.phase, since(status.updated)),
    };
    let job = status.job.as_ref().map_or(String::new(), |job| format!(", Slurm job {job}"));
    let place = format!("{} ranks, rank 0 on {}{job}", status.ranks, status.host);
    let mut lines = vec![format!("{} ({place}): {doing}", status.name)];
    let (step, steps) = (Count(status.step), Count(status.total_steps));
    let share = 100.0 * status.consumed_samples as f64 / status.total_samples.max(1) as f64;
    lines.push(format!("step {step} of {steps} ({share:.1} %), {} tokens", Count(status.tokens)));
    if let Some(loss) = status.lm_loss {
        let norm =
            status.grad_norm.map_or(String::new(), |norm| format!(", gradient norm {norm:.3}"));
        lines.push(format!("loss {loss:.4}{norm}, learning rate {:.3e}", status.lr));
    }
    let left = status.left_s.filter(|_| !status.ended).map(Seconds);
    let left = left.map_or(String::new(), |left| format!(", {left} left"));
    lines.push(format!("{} tokens/s{left}", Count(status.tokens_per_s.round() as u64)));
    lines.push(status.goodput_line());
    lines.push(saved(folder, now));
    lines.extend(copied(folder, now));
    if status.skipped_steps > 0 {
        lines.push(format!("{} steps updated nothing", Count(status.skipped_steps)));
    }
    for warning in &status.warnings {
        lines.push(format!("note, {} ago: {}", since(warning.at), base::visible(&warning.text)));
    }
    lines.join("\n")
}

/// The newest checkpoint, and how old it is.
fn saved(folder: &Path, now: f64) -> String {
    let found = checkpoint::published(&folder.join("checkpoints")).ok();
    let Some(newest) = found.and_then(|mut found| found.pop()) else {
        return "no checkpoint yet".to_string();
    };
    let made = newest.folder.metadata().and_then(|about| about.modified()).ok();
    let made = made.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let age = made.map(|at| Seconds((now - at.as_secs_f64()).max(0.0)));
    let age = age.map_or(String::new(), |age| format!(", {age} ago"));
    format!("saved step {}{age}", Count(newest.step))
}

/// The newest copy in another place.
fn copied(folder: &Path, now: f64) -> Option<String> {
    let events = events::read(folder).ok()?;
    let newest = events.into_iter().rfind(|event| event.kind == Kind::Copy)?;
    let age = Seconds((now - newest.at).max(0.0));
    Some(format!("copied {}, {age} ago", base::visible(&newest.text)))
}
