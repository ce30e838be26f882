//! The stand-in runs blocks, warps, streams and copies in another order for each seed. No op's bits may
//! depend on it.

use crate::bench::Bench;
use crate::{Case, attention, elementwise, loss, low_rank, normalise, query_key, softgpu, update};
use gptrain::base::DType;
use gptrain::device::cuda::Cuda;
use std::process::{Child, Command, Stdio};
use xxhash_rust::xxh3::xxh3_64;

/// Seeds, each of them a process, as the stand-in reads it once.
const SEEDS: [&str; 4] = ["0", "1", "2", "3"];

/// Ops whose blocks or warps sum up or share memory.
fn cases() -> Vec<Case> {
    let families = [
        elementwise::table(),
        normalise::table(),
        attention::table(),
        query_key::table(),
        loss::table(),
        low_rank::table(),
        update::table(),
    ];
    families.into_iter().flatten().collect()
}

/// Digest of every output, a line each.
#[test]
#[ignore = "is one order of the other test"]
fn one_order() {
    for cases in cases().chunks(64) {
        let cuda = Cuda::open(&softgpu::gpu(0)).unwrap_or_else(|problems| panic!("{problems}"));
        for case in cases {
            let bench = Bench::new(&cuda, DType::BF16, false).with_fused_epilogues();
            (case.check)(&bench);
            for seen in bench.seen() {
                println!("digest {:016x} {}, {}", xxh3_64(&seen.bytes), case.name, seen.name);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_order_of_blocks() {
    softgpu::folder(); // compiled once, before the processes ask for it
    let start = |seed: &&str| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "orders::one_order", "--ignored", "--nocapture"]);
        command.env("SOFTGPU_SEED", seed).stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let digests = |child: Child| -> Vec<String> {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let digest = |line: &str| line.find("digest ").map(|at| line[at..].to_string());
        text.lines().filter_map(digest).collect()
    };
    let started: Vec<Child> = SEEDS.iter().map(start).collect();
    let all: Vec<Vec<String>> = started.into_iter().map(digests).collect();
    assert!(all[0].len() > 100, "{} outputs", all[0].len());
    for (seed, ours) in SEEDS.iter().zip(&all) {
        let other = all[0]
            .iter()
            .zip(ours)
            .find(|(first, other)| first != other);
        assert_eq!(other, None, "seed {seed}");
        assert_eq!(ours.len(), all[0].len(), "seed {seed}");
    }
}
