//! Commands that start several runs: `gptrain sweep --slurm`, a job each, and `gptrain tune` in an
//! allocation, an srun each.

use super::cluster::Cluster;
use crate::common::binary::{Done, Lab, free_port, until};

/// `gptrain sweep --slurm`: a job for each variant; when both have ended, the same command compares them.
pub fn a_sweep_runs_as_jobs(cluster: &Cluster, lab: &Lab) {
    let sweep = || {
        let output = cluster
            .command(env!("CARGO_BIN_EXE_gptrain"))
            .args(["sweep", "run.yaml", "--output", "runs/s", "--slurm"])
            .args(["--set", "train.steps=4", "--set", "lr.peak=1e-3,2e-3"])
            .args(["--partition", "test", "--cpus-per-task", "1"])
            .current_dir(lab.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = sweep();
    assert_eq!(said.matches(": submitted as job ").count(), 2, "{said}");
    until("both variants are complete", || sweep().contains("2 variants, 2 complete"));
    let said = sweep();
    assert!(!said.contains("submitted") && said.contains("wrote runs/s/compare.html"), "{said}");
}

/// `salloc gptrain tune`: every cut has its own ranks on the nodes of the allocation. A second start
/// measures nothing.
pub fn cuts_are_measured_in_an_allocation(cluster: &Cluster, lab: &Lab) {
    let tune = || {
        let mut salloc = cluster.command("salloc");
        salloc
            .args(["-N", "2", "-n", "4", "--ntasks-per-node=2"])
            .arg(env!("CARGO_BIN_EXE_gptrain"))
            .args(["tune", "run.yaml", "--steps", "3", "--gpus", "4", "--json"])
            .args(["--set", "batch.global=8"])
            .args(["--over", "topology.tensor=1,2"])
            .env("GPTRAIN_RENDEZVOUS", format!("127.0.0.1:{}", free_port()));
        let done = Done::of(salloc.current_dir(lab.path("")).output().unwrap());
        done.well();
        done
    };
    let first = tune();
    let table: serde_json::Value = serde_json::from_str(&first.out).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let grids: Vec<_> = rows
        .iter()
        .map(|row| (row["tensor"].as_u64(), row["data"].as_u64(), row["nodes"].as_u64()))
        .collect();
    assert_eq!(grids, [(Some(1), Some(4), Some(2)), (Some(2), Some(2), Some(2))], "{table}");
    assert!(rows.iter().all(|row| row["sec"].as_f64() > Some(0.0)), "{table}");
    assert_eq!(tune().out, first.out, "measured once");
}
