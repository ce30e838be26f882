//! Checkpoints in the memory of the nodes: ranks killed, a node lost, a flipped bit, a missing file, a
//! full file system, another grid. The run continues with the bits of an undisturbed one, and says from
//! where.
//!
//! A node is a mount namespace with its own host name, in which the folder of the memory is another one.

use super::run_cuda::on_stand_ins;
use crate::common::binary::{Done, Lab, Ranks, free_port, process_state, run_args, until};
use crate::common::binary::{verdict, within};
use crate::common::hosts::may_mount;
use gptrain::checkpoint;
use gptrain::launch::RANKS;
use gptrain::train::testing::STEP_DELAY;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Four ranks, which save into memory whenever they can, and to disk only at the end.
const SETS: [&str; 6] = [
    "topology={tensor: 2, data: 2, zero: 1}",
    "train.steps=60",
    "train.eval_interval=0",
    "checkpoint.interval=1000",
    "checkpoint.memory_interval=1",
    "log.interval=1000",
];

/// Folder of the memory in the lab.
fn memory_set(lab: &Lab) -> String {
    format!("checkpoint.memory_folder={}", lab.path("memory").display())
}

/// Lab with a folder for the memory of a single node.
fn lab() -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.path("memory")).unwrap();
    lab
}

/// Newest step that is complete in memory, by the run's folder.
fn step_in_memory(lab: &Lab) -> u64 {
    let note = fs::read(lab.path("runs/a/memory-checkpoint.json")).unwrap_or_default();
    let note: Option<serde_json::Value> = serde_json::from_slice(&note).ok();
    note.and_then(|note| note["step"].as_u64()).unwrap_or(0)
}

/// Step of "resumed at step N from …".
fn resumed_at(out: &str) -> u64 {
    let (_, rest) = out
        .split_once("resumed at step ")
        .unwrap_or_else(|| panic!("not resumed from memory:\n{out}"));
    rest.split_once(' ').unwrap().0.parse().unwrap()
}

/// Asserts that a run has ended as an undisturbed one, and has left nothing in memory.
fn assert_same(lab: &Lab, whole: &Lab, memories: &[&str]) {
    assert_eq!(lab.losses("runs/a"), whole.losses("runs/a"));
    for memory in memories {
        let left = fs::read_dir(lab.path(memory)).unwrap().count();
        assert_eq!(left, 0, "{memory} is empty when the run has ended");
    }
    assert!(!lab.path("runs/a/memory-checkpoint.json").exists());
    let last = |lab: &Lab| {
        lab.path("runs/a/checkpoints/step-00000060")
            .display()
            .to_string()
    };
    lab.gptrain(&["inspect-ckpt", &last(lab), "--diff", &last(whole)])
        .well();
}

/// The run as it is without saves into memory.
fn undisturbed() -> Lab {
    let whole = Lab::new();
    let sets = SETS.iter().copied().filter(|set| !set.contains("memory"));
    whole.run(&sets.collect::<Vec<_>>()).well();
    whole
}

/// Starts a run, and kills it when steps are in memory. Returns the newest.
fn kill_after_saves(lab: &Lab, command: &mut Command) -> u64 {
    let mut run = command.env(STEP_DELAY, "0.02").spawn().unwrap();
    until("steps are in memory", || step_in_memory(lab) >= 5);
    run.kill().unwrap();
    run.wait().unwrap();
    step_in_memory(lab)
}

#[test]
fn a_killed_run_continues_from_memory() {
    let whole = undisturbed();
    let lab = lab();
    let memory = memory_set(&lab);
    let sets = [&SETS[..], &[&memory]].concat();
    let newest = kill_after_saves(&lab, &mut lab.command(&run_args(&sets)));
    assert!(!lab.path("runs/a/checkpoints").exists(), "nothing is on disk");
    let done = lab.run(&sets);
    done.well();
    assert!(resumed_at(&done.out) >= newest, "{}", done.out);
    assert!(done.out.contains("; there is none on disk"), "{}", done.out);
    assert_same(&lab, &whole, &["memory"]);
}

/// The supervisors count a step in memory as progress.
#[test]
fn a_rank_that_begins_anew_continues_from_memory() {
    let whole = undisturbed();
    let lab = lab();
    let memory = memory_set(&lab);
    let sets = [&SETS[..], &[&memory, "restart.max=1"]].concat();
    let port = free_port();
    let start = |task| {
        let mut rank = lab.rank(task, 4, port, &sets);
        rank.env(STEP_DELAY, "0.02").spawn().unwrap()
    };
    let tasks = Ranks { children: (0..4).map(start).collect() };
    // Each time later than restart.max alone would permit.
    for times in 1..=2 {
        let before = step_in_memory(&lab);
        until("steps are in memory", || step_in_memory(&lab) >= before + 5);
        let pid = tasks.pid(times).as_raw_nonzero();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let rank = fs::read_to_string(children).unwrap();
        let killed = Command::new("kill").args(["-9", rank.trim()]).status();
        assert!(killed.unwrap().success());
    }
    let ended = tasks.end(0..4);
    ended.iter().for_each(Done::well);
    let out: String = ended.iter().map(|done| done.out.as_str()).collect();
    assert_eq!(out.matches("resumed at step ").count(), 2, "{out}");
    assert_eq!(
        out.matches("(1 of 1): from the checkpoint of step ")
            .count(),
        2,
        "{out}"
    );
    assert_same(&lab, &whole, &["memory"]);
}

/// Starts four ranks on two nodes, whose memories are the folders `node0` and `node1`. None if this user
/// may not make mount namespaces.
fn start_on_nodes(lab: &Lab, world: usize, sets: &[&str]) -> Option<Ranks> {
    if !may_mount() {
        return None;
    }
    let port = free_port();
    let start = |rank: usize| {
        let node = 2 * rank / world;
        let memory = lab.path(&format!("node{node}"));
        let script = format!(
            "hostname node{node} && mount --bind {} {} && exec \"$@\"",
            memory.display(),
            lab.path("memory").display()
        );
        let outer = ["unshare", "--mount", "--uts", "sh", "-c", &script, "sh"];
        let mut command = lab.rank(rank, world, port, sets);
        command.env(STEP_DELAY, "0.02");
        within(&outer, &command).spawn().unwrap()
    };
    Some(Ranks { children: (0..world).map(start).collect() })
}

/// Folders of a run on two nodes that was killed, from which each test starts.
fn killed_on_two_nodes() -> Option<Lab> {
    let lab = lab();
    for node in ["node0", "node1"] {
        fs::create_dir(lab.path(node)).unwrap();
    }
    let memory = memory_set(&lab);
    let sets = [&SETS[..], &[&memory, "checkpoint.interval=7"]].concat();
    let ranks = start_on_nodes(&lab, 4, &sets)?;
    let saved = || lab.path("runs/a/checkpoints/step-00000007").exists();
    until("steps are in memory and on disk", || saved() && step_in_memory(&lab) >= 9);
    (0..4).for_each(|rank| ranks.signal(rank, Signal::KILL));
    drop(ranks);
    keep_complete(&lab);
    for name in ["node0", "node1", "runs"] {
        copy(&lab.path(name), &lab.path(&format!("killed/{name}")));
    }
    Some(lab)
}

/// Leaves step 7 on disk, and the newest step in memory that both nodes have whole. The kill may also have
/// left parts of a step that was being written or removed, and another step on disk.
fn keep_complete(lab: &Lab) {
    for saved in fs::read_dir(lab.path("runs/a/checkpoints")).unwrap() {
        let saved = saved.unwrap().path();
        if saved.is_dir() && !saved.ends_with("step-00000007") {
            fs::remove_dir_all(saved).unwrap();
        }
    }
    let [here, there] = ["node0", "node1"].map(|node| whole_steps(lab, node));
    let name = |step: &PathBuf| step.file_name().unwrap().to_owned();
    let common = here
        .iter()
        .map(name)
        .filter(|name| there.iter().any(|step| step.ends_with(name)));
    let kept = common.max().expect("a step that both nodes have whole");
    for step in ["node0", "node1"].iter().flat_map(|node| steps(lab, node)) {
        if !step.ends_with(&kept) {
            fs::remove_dir_all(step).unwrap();
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Folders of the steps in a node's memory.
fn steps(lab: &Lab, node: &str) -> Vec<PathBuf> {
    let run = fs::read_dir(lab.path(node))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let steps = fs::read_dir(run).unwrap();
    steps.map(|step| step.unwrap().path()).collect()
}

/// Those that have the parts of all ranks.
fn whole_steps(lab: &Lab, node: &str) -> Vec<PathBuf> {
    let is_whole = |step: &PathBuf| {
        (0..4).all(|rank| step.join(format!("part-{rank:05}-of-00004.json")).exists())
    };
    steps(lab, node).into_iter().filter(is_whole).collect()
}

/// The step that both nodes have.
fn complete(lab: &Lab, node: &str) -> PathBuf {
    let steps = whole_steps(lab, node);
    assert_eq!(steps.len(), 1, "{steps:?}");
    steps[0].clone()
}

/// Restores the killed run, changes its memory, and runs it to its end. Returns rank 0's output.
fn continue_after(lab: &Lab, change: impl Fn(), world: usize, sets: &[&str]) -> String {
    for name in ["node0", "node1", "runs"] {
        copy(&lab.path(&format!("killed/{name}")), &lab.path(name));
    }
    change();
    let memory = memory_set(lab);
    let sets = [&SETS[..], &[&memory, "checkpoint.interval=7"], sets].concat();
    let ended = start_on_nodes(lab, world, &sets).unwrap().end(0..world);
    ended.iter().for_each(Done::well);
    ended[0].out.clone()
}

fn flip(path: &Path, byte: usize) {
    let mut bytes = fs::read(path).unwrap();
    let end = bytes.len();
    bytes[byte % end] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn parts_that_are_lost_or_damaged_come_from_the_neighbour_or_from_disk() {
    let Some(lab) = killed_on_two_nodes() else { return };
    let whole = undisturbed();
    let same = |lab: &Lab| assert_same(lab, &whole, &["node0", "node1"]);
    let step = step_in_memory(&lab);

    // Nothing is lost: both nodes are read. Of steps that were being written and removed, nothing is said.
    let leave = || {
        let part = "part-00001-of-00004.json";
        for other in ["step-00000001", "step-00000059"] {
            let folder = complete(&lab, "node1").with_file_name(other);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(part), "{").unwrap();
        }
    };
    let out = continue_after(&lab, leave, 4, &[]);
    assert!(
        resumed_at(&out) >= step && out.contains("from the memory of node0, node1 in "),
        "{out}"
    );
    assert!(!out.contains("is not used"), "{out}");
    same(&lab);

    // A node is lost with its memory.
    let lose = || {
        fs::remove_dir_all(lab.path("node1")).unwrap();
        fs::create_dir(lab.path("node1")).unwrap();
    };
    let out = continue_after(&lab, lose, 4, &[]);
    let says = "from the memory of node0, 2 parts of it neighbours' copies, in ";
    assert!(resumed_at(&out) >= step && out.contains(says), "{out}");
    assert!(out.contains("; the newest on disk is step "), "{out}");
    same(&lab);

    // A bit has flipped in the first node's own file: the copy is read, and the place is said.
    let change = || flip(&complete(&lab, "node0").join("master-00001.safetensors"), 9001);
    let out = continue_after(&lab, change, 4, &[]);
    let says = [
        "node node0 in memory: rank 1's part of step ",
        "master-00001.safetensors: bytes ",
        "are damaged",
        "the copy of node node1 is read instead",
    ];
    assert!(says.iter().all(|part| out.contains(part)), "{out}");
    assert!(resumed_at(&out) >= step && out.contains("1 part of it a neighbour's copy"), "{out}");
    same(&lab);

    // A file is missing, and the description of another part is damaged.
    let change = || {
        fs::remove_file(complete(&lab, "node1").join("second_moment-00002.safetensors")).unwrap();
        flip(&complete(&lab, "node1").join("part-00003-of-00004.json"), 700);
    };
    let out = continue_after(&lab, change, 4, &[]);
    let says = ["second_moment-00002.safetensors", "part-00003-of-00004.json is damaged"];
    assert!(says.iter().all(|part| out.contains(part)), "{out}");
    assert!(resumed_at(&out) >= step, "{out}");
    same(&lab);

    // Both copies are damaged: the files are used.
    let change = || {
        for node in ["node0", "node1"] {
            flip(&complete(&lab, node).join("first_moment-00002.safetensors"), 5000);
        }
    };
    let out = continue_after(&lab, change, 4, &[]);
    assert!(
        out.contains("no other node has a copy") && out.contains(" in memory is not used"),
        "{out}"
    );
    assert!(
        !out.contains("resumed at step") && out.contains("resuming from runs/a/checkpoints/step-")
    );
    same(&lab);

    // Both nodes have lost the memory, or a part.
    let lose = || {
        for node in ["node0", "node1"] {
            fs::remove_dir_all(lab.path(node)).unwrap();
            fs::create_dir(lab.path(node)).unwrap();
        }
    };
    let out = continue_after(&lab, lose, 4, &[]);
    assert!(out.contains(" in memory is not used: no node has a part of it"), "{out}");
    assert!(out.contains("resuming from runs/a/checkpoints/step-"), "{out}");
    same(&lab);

    // Another grid reads the parts of both nodes.
    let grid = "topology={tensor: 1, data: 2, zero: 0}";
    let out = continue_after(&lab, || (), 2, &[grid]);
    assert!(resumed_at(&out) >= step, "{out}");
    let (ours, all) = (lab.losses("runs/a"), whole.losses("runs/a"));
    assert_eq!(ours.len(), all.len());
    for (a, b) in ours.iter().zip(&all) {
        let (a, b) = (f64::from_bits(a[1]), f64::from_bits(b[1]));
        assert!((a - b).abs() <= 1e-6 * b, "{a} and {b}");
    }
}

/// A run on two nodes, of which rank 2 on the second is stopped before it has the whole part of rank 0 on the
/// first, and the step of that part. None if this user may not make mount namespaces.
fn stopped_within_a_copy() -> Option<(Lab, Ranks, u64)> {
    let lab = lab();
    for node in ["node0", "node1"] {
        fs::create_dir(lab.path(node)).unwrap();
    }
    let memory = memory_set(&lab);
    let ranks = start_on_nodes(&lab, 4, &[&SETS[..], &[&memory]].concat())?;
    until("a step is in memory", || step_in_memory(&lab) > 0 || ranks.ended(0));
    loop {
        let complete = step_in_memory(&lab);
        let sent = || step_of_a_copy(&lab, complete);
        until("rank 0 sends a part", || sent().is_some() || ranks.ended(0));
        ranks.signal(2, Signal::STOP);
        until("rank 2 is stopped", || process_state(ranks.pid(2)) == Some('T') || ranks.ended(2));
        if let Some(step) = sent() {
            return Some((lab, ranks, step));
        }
        // Its last bytes came before the signal.
        ranks.signal(2, Signal::CONT);
        assert!(!ranks.ended(0), "the run has ended, and no copy was interrupted");
    }
}

/// Step after `complete` of which the first node has rank 0's part, and the second node has no copy.
fn step_of_a_copy(lab: &Lab, complete: u64) -> Option<u64> {
    let part = "part-00000-of-00004.json";
    let [own, copies] = ["node0", "node1"].map(|node| {
        let whole = steps(lab, node).into_iter();
        let whole = whole.filter(|step| step.join(part).exists());
        let number = |step: PathBuf| checkpoint::step(&step.file_name()?.to_string_lossy());
        whole.filter_map(number).max().unwrap_or(0)
    });
    (own > copies.max(complete)).then_some(own)
}

/// The copy is whole: the run continues from it when the node of its part is lost.
#[test]
fn a_neighbour_that_is_stopped_within_a_copy_completes_it() {
    let Some((lab, ranks, step)) = stopped_within_a_copy() else { return };
    ranks.signal(2, Signal::CONT);
    until("the step is complete", || step_in_memory(&lab) >= step || ranks.ended(0));
    (0..4).for_each(|rank| ranks.signal(rank, Signal::KILL));
    drop(ranks);
    let newest = step_in_memory(&lab);
    assert!(newest >= step, "step {step} is not complete in memory");
    fs::remove_dir_all(lab.path("node0")).unwrap();
    fs::create_dir(lab.path("node0")).unwrap();
    let memory = memory_set(&lab);
    let ranks = start_on_nodes(&lab, 4, &[&SETS[..], &[&memory]].concat()).unwrap();
    let ended = ranks.end(0..4);
    ended.iter().for_each(Done::well);
    let out = &ended[0].out;
    assert!(resumed_at(out) >= newest, "{out}");
    assert!(out.contains("from the memory of node1, 2 parts of it neighbours' copies"), "{out}");
    assert_same(&lab, &undisturbed(), &["node0", "node1"]);
}

/// The others name it and end, and a restart finds what all nodes have.
#[test]
fn a_neighbour_that_is_killed_within_a_copy_costs_no_step_that_was_complete() {
    let Some((lab, ranks, step)) = stopped_within_a_copy() else { return };
    let complete = step_in_memory(&lab);
    ranks.signal(2, Signal::KILL);
    let line = verdict(&ranks.end([0, 1, 3]));
    assert!(line.contains("rank 2 (node node1") && line.contains("died: connection "), "{line}");
    let memory = memory_set(&lab);
    let ranks = start_on_nodes(&lab, 4, &[&SETS[..], &[&memory]].concat()).unwrap();
    let ended = ranks.end(0..4);
    ended.iter().for_each(Done::well);
    // The step of the copy is complete too, if every rank had already written its own part.
    let at = resumed_at(&ended[0].out);
    assert!(at >= complete && at <= step, "{at}, not {complete} to {step}: {}", ended[0].out);
    assert_same(&lab, &undisturbed(), &["node0", "node1"]);
}

/// States are copied out of GPUs, here the software stand-in, beside the steps that change them.
#[test]
fn a_killed_run_on_gpus_continues_from_memory() {
    let on_gpus = ["topology={data: 2, zero: 1}", "train.device=cuda"];
    let start = |lab: &Lab, sets: &[&str]| {
        let sets = [&SETS[..], sets, &on_gpus].concat();
        let mut command = on_stand_ins(lab, lab.command(&run_args(&sets)), 2);
        command.env(RANKS, "threads");
        command
    };
    let whole = Lab::new();
    let without = ["checkpoint.memory_interval=null"];
    Done::of(start(&whole, &without).output().unwrap()).well();
    let lab = lab();
    let memory = memory_set(&lab);
    let newest = kill_after_saves(&lab, &mut start(&lab, &[&memory]));
    let done = Done::of(start(&lab, &[&memory]).output().unwrap());
    done.well();
    assert!(resumed_at(&done.out) >= newest, "{}", done.out);
    assert_same(&lab, &whole, &["memory"]);
}

/// Checkpoints in memory are then no longer part of the run's history.
#[test]
fn a_named_checkpoint_is_taken_instead() {
    let whole = undisturbed();
    let lab = lab();
    let memory = memory_set(&lab);
    let sets = [&SETS[..], &[&memory, "checkpoint.interval=5"]].concat();
    let mut run = lab
        .command(&run_args(&sets))
        .env(STEP_DELAY, "0.02")
        .spawn()
        .unwrap();
    let saved = || lab.path("runs/a/checkpoints/step-00000005").exists();
    until("steps are in memory and on disk", || saved() && step_in_memory(&lab) >= 8);
    run.kill().unwrap();
    run.wait().unwrap();
    let named = [&run_args(&sets)[..], &["--resume-from", "step-00000005"]].concat();
    let done = lab.gptrain(&named);
    done.well();
    assert!(!done.out.contains("resumed at step"), "{}", done.out);
    assert!(
        done.out
            .contains("resuming from runs/a/checkpoints/step-00000005 "),
        "{}",
        done.out
    );
    assert_same(&lab, &whole, &["memory"]);
}

/// Output of a script in its own mount namespace; `$0` is gptrain. None if the system permits none.
fn in_namespace(lab: &Lab, script: &str) -> Option<String> {
    let done = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_gptrain")])
        .current_dir(lab.path(""))
        .env("GPTRAIN_CACHE", lab.path("cache"))
        .output()
        .unwrap();
    if !lab.path("said").exists() {
        println!("no mount namespaces here: {}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    Some(fs::read_to_string(lab.path("said")).unwrap())
}

/// A tmpfs that fills up during the run, and has room again: one warning, one line, and no failed run.
#[test]
fn a_full_memory_is_a_warning() {
    let lab = lab();
    let folder = format!("--set checkpoint.memory_folder={}", lab.path("memory").display());
    let script = format!(
        "mount -t tmpfs -o size=8m none memory || exit 9; \
         (GPTRAIN_TEST_STEP_DELAY=0.02 $0 run run.yaml --set train.steps=200 --set \
         checkpoint.memory_interval=1 {folder}; echo code $?) > said 2>&1 & \
         until test -n \"$(find memory -name 'part-*.json')\" || grep -q code said; do sleep 0.01; done; \
         until grep -q 'is not saved in memory' said || grep -q code said; do \
         head -c 20m /dev/zero >> memory/filler; sleep 0.05; done; \
         rm memory/filler; wait"
    );
    let Some(out) = in_namespace(&lab, &script) else { return };
    assert!(out.contains("code 0"), "{out}");
    assert_eq!(out.matches("is not saved in memory: ").count(), 1, "{out}");
    assert!(out.contains("No space left on device") && out.contains("mount -o remount"), "{out}");
    assert!(out.contains("saves into memory succeed again, from step "), "{out}");
    let whole = Lab::new();
    whole.run(&["train.steps=200"]).well();
    assert_eq!(lab.losses("runs/a"), whole.losses("runs/a"));
}

#[test]
fn a_memory_that_is_too_small_is_not_used() {
    let lab = lab();
    let folder = format!("--set checkpoint.memory_folder={}", lab.path("memory").display());
    let script = format!(
        "mount -t tmpfs -o size=64k none memory || exit 9; \
         ($0 run run.yaml --set checkpoint.memory_interval=1 {folder}; echo code $?) > said 2>&1"
    );
    let Some(out) = in_namespace(&lab, &script) else { return };
    let says = ["code 0", "nothing is saved in memory: node ", "2 steps of its ranks"];
    assert!(says.iter().all(|part| out.contains(part)), "{out}");
}
