//! Failures of ranks with GPUs: one is killed, stopped, its GPU fails or hangs, its numbers are not
//! finite. The others end by themselves, with one line for the job.

use super::ranks::{on_stand_in, processes, with};
use crate::common::binary::{Done, Lab, Ranks, free_port, run_args, until, verdict};
use crate::common::softgpu;
use gptrain::base::DType;
use gptrain::base::testing::at_any_load;
use gptrain::comm::nccl::Nccl;
use gptrain::comm::{self, Group, World, threads};
use gptrain::device::cuda::Cuda;
use gptrain::device::{Backend, Tensor};
use gptrain::launch::RANKS;
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

const TWO: [&str; 3] = ["train.device=cuda", "topology.data=2", "topology.zero=1"];

/// To run until something happens.
const LONG: [&str; 3] = ["train.steps=1000000", "log.interval=100000", "train.eval_interval=0"];

/// Two ranks as threads.
fn two_threads(lab: &Lab, sets: &[&str]) -> Command {
    let mut command = on_stand_in(lab, lab.command(&run_args(&with(&TWO, sets))), 2);
    command.env(RANKS, "threads");
    command
}

/// Two ranks as processes, which have taken some steps.
fn two_processes(lab: &Lab, sets: &[&str]) -> Ranks {
    let ranks = processes(lab, 2, 2, &with(&TWO, &with(&LONG, sets)));
    ranks.reach(lab, "runs/a", 3);
    ranks
}

#[test]
fn a_killed_rank_is_named_by_those_whose_gpus_wait_for_it() {
    let lab = Lab::new();
    for victim in [1, 0] {
        let before = lab.metrics("runs/a").len();
        let ranks = processes(&lab, 2, 2, &with(&TWO, &LONG));
        lab.wait_for_steps("runs/a", before + 3);
        ranks.signal(victim, Signal::KILL);
        let line = verdict(&ranks.end([1 - victim]));
        assert!(line.contains(&format!("rank {victim} ")) && line.contains("died"), "{line}");
    }
}

#[test]
fn a_stopped_rank_is_named_by_those_whose_gpus_wait_for_it() {
    at_any_load(Duration::from_secs(5), |limit| {
        let lab = Lab::new();
        let ranks = two_processes(&lab, &[&format!("comm.timeout_s={}", limit.as_secs())]);
        ranks.signal(1, Signal::STOP);
        let line = verdict(&ranks.end([0]));
        let said = line.contains("is silent for") || line.contains("never entered");
        assert!(said && line.contains("rank 1 (node") && line.contains("TP0 PP0 DP1"), "{line}");
    });
}

/// The process lives and says so: what is known of its GPU names it.
#[test]
fn a_gpu_that_hangs_is_named_by_the_collective_it_never_came_to() {
    at_any_load(Duration::from_secs(5), hangs);
}

fn hangs(limit: Duration) {
    let (lab, limit) = (Lab::new(), format!("comm.timeout_s={}", limit.as_secs()));
    let mut command = two_threads(&lab, &with(&LONG, &[&limit]));
    let line = verdict(&[Done::of(command.env("SOFTGPU_FAIL", "1:300:0").output().unwrap())]);
    assert!(line.contains("rank 1 (") && line.contains("TP0 PP0 DP1"), "{line}");
    // Its gradients' group, or that of the host's words among the same ranks: which waits first is
    // a matter of when the GPU stood still.
    assert!(line.contains(" never entered ") && line.contains("grad_sum; last event"), "{line}");
    assert!(line.contains("last event: computing step "), "{line}");
}

#[test]
fn a_gpu_that_fails_is_named_with_its_error_and_the_step() {
    let lab = Lab::new();
    let mut command = two_threads(&lab, &LONG);
    let failed = Done::of(command.env("SOFTGPU_FAIL", "1:300:719").output().unwrap());
    let line = verdict(std::slice::from_ref(&failed));
    assert!(
        line.contains("rank 1 (node ") && line.contains("TP0 PP0 DP1) failed: GPU 1"),
        "{line}"
    );
    assert!(line.contains("(PCI 0000:02:00.0, GPU-0000"), "{line}");
    assert!(line.contains("CUDA_ERROR_LAUNCH_FAILED") && line.contains("Xid"), "{line}");
    assert!(line.contains("last event: computing step "), "{line}");
    let dumps = lab.path("runs/a/failures");
    let dump = std::fs::read_dir(dumps)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let told = lab.gptrain(&["diagnose", dump.to_str().unwrap()]);
    told.expect(0, &[]);
    assert!(told.out.contains(line.trim_start_matches("gptrain: ")), "{}", told.out);
}

#[test]
fn processes_whose_gpu_fails_end_with_one_line() {
    let lab = Lab::new();
    let sets = with(&TWO, &LONG);
    let port = free_port();
    let start = |rank| {
        let mut command = on_stand_in(&lab, lab.rank(rank, 2, port, &sets), 2);
        command.env("SOFTGPU_FAIL", "1:300:214").spawn().unwrap()
    };
    let line = verdict(&Ranks { children: (0..2).map(start).collect() }.end(0..2));
    assert!(line.contains("rank 1 (node ") && line.contains("ECC_UNCORRECTABLE"), "{line}");
}

#[test]
fn the_only_gpu_of_a_run_fails() {
    let lab = Lab::new();
    let sets = with(&["train.device=cuda"], &LONG);
    let mut command = on_stand_in(&lab, lab.command(&run_args(&sets)), 1);
    let done = Done::of(command.env("SOFTGPU_FAIL", "0:300:999").output().unwrap());
    let words = ["GPU 0 (PCI 0000:01:00.0, ", "CUDA_ERROR_UNKNOWN", "Xid", "computing step "];
    done.expect(1, &words);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    assert!(lab.path("runs/a/failures").exists());
}

#[test]
fn numbers_of_a_gpu_that_are_not_finite_name_tensor_rank_and_step() {
    let lab = Lab::new();
    let wild = ["lr={peak: 1000, decay: constant}", "optimizer.adamw.weight_decay=1"];
    let done = Done::of(two_threads(&lab, &wild).output().unwrap());
    done.expect(1, &["step ", "gradient", "on rank ", "(TP0 PP0 DP", "weights are still those of"]);
}

/// A group of both ranks, made by one of them.
fn pair(world: &World, cuda: &Cuda, timeout: Duration) -> Box<dyn Group> {
    let nccl = Nccl::open(cuda, &softgpu::options()).unwrap();
    nccl.with_setup_timeout(timeout)
        .group(world, "pair", &[0, 1])
}

fn gpu(world: &World) -> Cuda {
    Cuda::open(&softgpu::gpu(world.rank())).unwrap_or_else(|problems| panic!("{problems}"))
}

/// No signal ends the process here: only an abort of the communicator frees the host.
#[test]
fn a_host_that_waits_for_its_gpu_is_freed_when_another_rank_fails() {
    let waits = |world: World| {
        let cuda = gpu(&world);
        let memory = cuda.reserve(64).unwrap();
        let failed = comm::catch(|| {
            let group = pair(&world, &cuda, Duration::from_secs(60));
            let x = Tensor::at(memory, 1, 8, DType::F32);
            group.all_reduce(x);
            assert!(cuda.sync().is_err(), "what was waited for never came");
            group.all_reduce(x);
        });
        failed.unwrap_err().line
    };
    let gives_up = |world: World| {
        let cuda = gpu(&world);
        let _group = pair(&world, &cuda, Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(200));
        world.fail("reading data: no such file").line
    };
    let [first, second]: [World; 2] = threads::world(2).try_into().ok().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || waits(first));
        let line = gives_up(second);
        assert_eq!(line, "rank 1 failed: reading data: no such file");
        assert_eq!(waiting.join().unwrap(), line);
    });
}

/// NCCL finds out by itself.
#[test]
fn ranks_that_call_different_things_are_told() {
    let rank = |world: World| {
        let cuda = gpu(&world);
        let memory = cuda.reserve(64).unwrap();
        let failed = comm::catch(|| {
            let group = pair(&world, &cuda, Duration::from_secs(60));
            let x = Tensor::at(memory, 1, 8 + world.rank(), DType::F32);
            group.all_reduce(x);
            let _ = cuda.sync(); // as long as both wait
            until("the world has failed", || world.failed().is_some());
            group.all_reduce(x);
        });
        failed.unwrap_err().line
    };
    let lines: Vec<String> = std::thread::scope(|scope| {
        let start = |world| scope.spawn(move || rank(world));
        let started: Vec<_> = threads::world(2).into_iter().map(start).collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].starts_with("rank ") && lines[0].contains(" failed: NCCL: "), "{lines:?}");
    assert!(lines[0].contains("calls all_reduce of "), "{lines:?}");
}

#[test]
fn a_rank_that_never_comes_to_a_group_is_not_waited_for_for_ever() {
    let [first, second]: [World; 2] = threads::world(2).try_into().ok().unwrap();
    // NCCL itself does not return.
    std::thread::spawn(move || {
        let cuda = gpu(&first);
        pair(&first, &cuda, Duration::from_millis(300));
    });
    until("the world has failed", || second.failed().is_some());
    let line = second.failed().unwrap().line;
    assert!(
        line.starts_with("rank 0 failed: NCCL did not create group pair of ranks [0, 1]"),
        "{line}"
    );
}
