//! The plan of gptrain itself: its own engine on a device and groups that only count.

pub mod dry_run;
pub mod stage_times;
pub mod shape_stages;
mod overlap;
pub mod prices;
pub mod cuts;
pub mod bounds;
mod memo;
pub mod advisor;
pub mod drift;
pub mod calibrate;
pub mod tuned_cuts;
pub mod compression;
pub mod micro_sums;
pub mod slow_rings;
pub mod local_cpu;
