//! `gptrain bench`: alone, as a grid of threads, and as processes of which one sends slowly. The bounds
//! tolerate any load of the machine: the slow process is slower by far, and in the other
//! cases only a hundredfold slowness would be reported.

use crate::common::binary::{Done, Lab, Ranks, free_port};
use gptrain::comm::tcp::testing::SEND_LIMIT;
use gptrain::estimate::measured::{GroupSpeed, Measured, Slow};
use gptrain::launch::sick_nodes;
use std::fs;
use std::process::Command;

/// With what a command printed.
fn document(done: &Done) -> Measured {
    Measured::read(&done.out, "stdout").unwrap_or_else(|problems| panic!("{problems}"))
}

/// A rank of a Slurm step with one rank on each node: n0, n1 …
fn task(lab: &Lab, rank: usize, world: usize, port: u16, args: &[&str]) -> Command {
    let mut command = lab.command(args);
    let variables = [
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_STEP_NUM_TASKS", world.to_string()),
        ("SLURM_LOCALID", "0".into()),
        ("SLURM_NODEID", rank.to_string()),
        ("SLURM_JOB_ID", "7".into()),
        ("SLURM_STEP_ID", "0".into()),
        ("SLURM_STEP_NODELIST", format!("n[0-{}]", world - 1)),
        ("SLURM_STEP_TASKS_PER_NODE", format!("1(x{world})")),
        ("SLURMD_NODENAME", format!("n{rank}")),
        ("GPTRAIN_RENDEZVOUS", format!("127.0.0.1:{port}")),
    ];
    command.envs(variables);
    command
}

#[test]
fn the_node_that_sends_slowly_is_named() {
    const SLOW: usize = 3;
    const WORLD: usize = 6;
    let (lab, port) = (Lab::new(), free_port());
    // A message of 64 KiB takes n3 0.2 s; the others' would have to wait 20 ms for a processor, so nextest
    // runs no other test beside this one.
    let grid = ["--set", "topology={tensor: 2, data: 3}", "--set", "batch.global=6"];
    let args = [&["bench", "run.yaml", "--quick", "--json", "--tolerance=0.9"], &grid[..]].concat();
    let start = |rank: usize| {
        let mut command = task(&lab, rank, WORLD, port, &args);
        if rank == SLOW {
            command.env(SEND_LIMIT, "3e5");
        }
        command.spawn().unwrap()
    };
    let ended = Ranks { children: (0..WORLD).map(start).collect() }.end(0..WORLD);
    for done in &ended {
        assert_eq!((done.code, done.err.as_str()), (Some(5), ""), "{}", ended[0].out);
    }
    assert!(ended[1..].iter().all(|done| done.out.is_empty()), "one rank speaks");
    let found = document(&ended[0]);
    let is_slow = |slow: &&Slow| slow.what == "node" && slow.who == ["n3"];
    let slow = found
        .slow
        .iter()
        .find(is_slow)
        .unwrap_or_else(|| panic!("{}", ended[0].out));
    assert!(slow.share < 0.1 && slow.text.starts_with("n3: "), "{}", slow.text);
    assert_eq!((found.units.as_str(), found.pairs.len()), ("nodes", 15));
    let with = |pair: &&gptrain::estimate::measured::PairSpeed| pair.a == "n3" || pair.b == "n3";
    // What the limit allows, to the last bit per second.
    assert!(
        found
            .pairs
            .iter()
            .filter(with)
            .all(|pair| pair.gb_s <= 3e-4),
        "{:?}",
        found.pairs
    );
    assert!(found.groups.iter().all(|row| !row.in_node));
    let slowest = |row: &&GroupSpeed| row.group == "tensor" && row.bytes == 64 << 10;
    let tensor: Vec<&GroupSpeed> = found.groups.iter().filter(slowest).collect();
    assert!(tensor.iter().all(|row| row.slowest == [2, SLOW]), "{tensor:?}");
    let left = fs::read_dir(lab.path("runs/a")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [sick_nodes::NAME], "nothing else is left behind");
    let noted = sick_nodes::read(&lab.path("runs/a")).unwrap();
    assert!(noted.iter().any(|node| node.host == "n3"));
}

#[test]
fn a_grid_of_threads_is_measured_and_calibrates_its_plan() {
    let lab = Lab::new();
    let grid = ["--set", "topology={tensor: 2, pipeline: 2, data: 2}"];
    let args =
        [&["bench", "run.yaml", "--quick", "--json", "--tolerance=0.99"], &grid[..]].concat();
    let done = lab.gptrain(&args);
    // 5: on a busy machine a rank may be slower than any tolerance allows.
    assert!([Some(0), Some(5)].contains(&done.code) && done.err.is_empty(), "{}", done.out);
    let found = document(&done);
    assert_eq!((found.ranks.len(), found.units.as_str(), found.pairs.len()), (8, "ranks", 28));
    // Two samples of 16 tokens, 32 wide: half of the heads and of the feed-forward layer.
    let shapes = found.ranks[7]
        .products
        .iter()
        .map(|one| (one.m, one.n, one.k));
    let expected = [(32, 48, 32), (32, 32, 16), (32, 64, 32), (32, 32, 64)];
    assert_eq!(shapes.collect::<Vec<_>>(), expected);
    let has = |group: &str, op: &str| {
        let row = |row: &&GroupSpeed| row.group == group && row.op == op && row.bytes == 1024;
        let row = found
            .groups
            .iter()
            .find(row)
            .unwrap_or_else(|| panic!("{op} of {group}"));
        (row.size, row.groups, row.in_node)
    };
    for op in ["all_reduce", "reduce_scatter", "all_gather", "send_recv"] {
        assert_eq!(has("tensor", op), (2, 4, true));
        assert_eq!(has("data", op), (2, 4, true));
        assert_eq!(has("world", op), (8, 1, true));
    }
    assert_eq!(has("pipeline edge", "send_recv"), (2, 4, true));
    for row in found
        .groups
        .iter()
        .filter(|row| row.group == "world" && row.op == "all_reduce")
    {
        assert!((row.busbw_gb_s / row.algbw_gb_s - 1.75).abs() < 1e-12);
        assert!((row.algbw_gb_s * row.seconds * 1e9 / row.bytes as f64 - 1.0).abs() < 1e-12);
    }
    fs::write(lab.path("bench.json"), &done.out).unwrap();
    let estimate = ["estimate", "run.yaml", "--calibrate", "bench.json"];
    let planned = lab.gptrain(&[&estimate[..], &grid].concat());
    planned.expect(0, &["bench.json: learned: products"]);
    // On a busy machine there may be no time for more than the smallest messages.
    let large = found.groups.iter().any(|row| row.bytes > 1024);
    assert_eq!(planned.err.contains(" µs within a node"), large, "{}", planned.err);
    let cut = &done.out[..done.out.len() / 2];
    fs::write(lab.path("bench.json"), cut).unwrap();
    lab.gptrain(&estimate)
        .expect(2, &["bench.json: is not a document of gptrain bench"]);
}

/// A step's collectives at its sizes. Two seconds have windows of a fifth of a second.
#[test]
fn a_soak_gives_the_worst_window_beside_the_mean() {
    let lab = Lab::new();
    let grid = ["--set", "topology={tensor: 2, pipeline: 2, data: 2}", "--soak", "2s"];
    let args = [&["bench", "run.yaml", "--quick", "--tolerance=0.99"], &grid[..]].concat();
    let done = lab.gptrain(&[&args[..], &["--json"]].concat());
    assert!([Some(0), Some(5)].contains(&done.code) && done.err.is_empty(), "{}", done.err);
    let soak = document(&done).soak;
    let cells: Vec<(&str, &str, u64)> = soak
        .iter()
        .map(|row| (row.group.as_str(), row.op.as_str(), row.bytes))
        .collect();
    // Two samples of 16 tokens, 32 wide, in f32; half of a block's matrices.
    let expected = [
        ("tensor", "all_reduce", 2 * 16 * 32 * 4),
        ("pipeline edge", "send_recv", 2 * 16 * 32 * 4),
        ("data", "all_reduce", 12 * 32 * 32 / 2 * 4),
    ];
    assert_eq!(cells, expected);
    for row in &soak {
        assert!(row.busbw_gb_s > 0.0 && row.worst_busbw_gb_s <= row.busbw_gb_s * (1.0 + 1e-9));
        assert!((row.window_s - 0.2).abs() < 1e-9 && row.worst_from_s < 2.0, "{row:?}");
        assert_eq!((row.size, row.slowest.len()), (2, 2), "{row:?}");
    }
    // At two levels: shard groups, and the copies of a shard, which divide its update.
    let levels = "topology={data: 8, shard: 4, zero: 1}";
    let more = ["--set", levels, "--set", "batch={micro: 1, global: 8}", "--soak", "2s"];
    let table = lab.gptrain(&[&args[..4], &more].concat()).out;
    let (groups, soak) = table
        .split_once("Soak: busbw in GB/s, the mean and the worst ")
        .unwrap_or_else(|| panic!("no soak in {table}"));
    for (group, number) in [("shard", "2 of 4 ranks"), ("copies", "4 of 2 ranks")] {
        assert!(groups.contains(&format!("{group}: {number}, in a node")), "{groups}");
        for op in ["reduce_scatter", "all_gather"] {
            let is_row = |line: &str| line.trim_start().starts_with(group) && line.contains(op);
            assert!(soak.lines().any(is_row), "{op} of {group}: {soak}");
        }
    }
}

/// Three nodes, of which one sends slowly. What they could do earlier is written by hand: on a busy machine
/// a measurement without the limit may be as slow as one with it.
#[test]
fn a_history_names_the_node_whose_links_have_changed() {
    const WORLD: usize = 3;
    let lab = Lab::new();
    let measure = |more: &[&str]| {
        let grid = ["--set", "topology.data=3", "--set", "batch.global=6", "--tolerance=0.95"];
        let kept = ["--history", "history.jsonl"];
        let args = [&["bench", "run.yaml", "--quick"], &grid[..], &kept[..], more].concat();
        let port = free_port();
        let start = |rank: usize| {
            let mut command = task(&lab, rank, WORLD, port, &args);
            command.envs((rank == 2).then_some((SEND_LIMIT, "3e5")));
            command.spawn().unwrap()
        };
        let mut ended = Ranks { children: (0..WORLD).map(start).collect() }.end(0..WORLD);
        assert!(ended.iter().all(|done| done.err.is_empty()), "{}", ended[0].err);
        ended.swap_remove(0)
    };
    let first = measure(&["--since", "7d"]);
    let yet = "note: the history has no measurement of run on 3 ranks in f32 yet";
    assert!(first.out.contains(yet), "{}", first.out);
    let history = || fs::read_to_string(lab.path("history.jsonl")).unwrap();
    let mut then: serde_json::Value = serde_json::from_str(&history()).unwrap();
    for pair in then["bench"]["pairs"].as_array_mut().unwrap() {
        pair["gb_s"] = 1.0.into();
    }
    fs::write(lab.path("history.jsonl"), format!("{then}\n")).unwrap();
    fs::write(lab.path("then.json"), then["bench"].to_string()).unwrap();
    let second = measure(&["--since", "7d"]);
    assert_eq!(second.code, Some(5), "{}", second.out);
    let named = |line: &&str| line.starts_with("links of n2 −") && line.contains(" % since 20");
    assert_eq!(second.out.lines().filter(named).count(), 1, "{}", second.out);
    // The document has the figures, also when the earlier ones are in a file.
    let third = document(&measure(&["--since", "then.json", "--json"]));
    let change = third
        .changes
        .iter()
        .find(|change| change.who == "n2" && change.what == "links");
    let change = change.unwrap_or_else(|| panic!("{:?}", third.changes));
    assert!(change.then == 1.0 && change.now <= 3e-4, "{change:?}");
    assert_eq!(history().lines().count(), 3);
}

/// Two nodes, one after another: with the usual rate, a limit, and a value that is refused.
#[test]
fn values_of_a_variable_are_measured_in_processes_of_their_own() {
    let (lab, port) = (Lab::new(), free_port());
    let variable = format!("{SEND_LIMIT}=,3e5,x");
    let grid = ["--set", "topology.data=2", "--set", "batch.global=4", "--json"];
    let args = [&["bench", "run.yaml", "--quick", "--set-env", &variable][..], &grid[..]].concat();
    let start = |rank: usize| task(&lab, rank, 2, port, &args).spawn().unwrap();
    let ended = Ranks { children: (0..2).map(start).collect() }.end(0..2);
    let codes: Vec<_> = ended.iter().map(|done| done.code).collect();
    assert_eq!(codes, [Some(0), Some(0)], "{}", ended[0].err);
    assert!(ended[1].out.is_empty(), "one rank speaks");
    let printed: serde_json::Value = serde_json::from_str(&ended[0].out).unwrap();
    let variants = printed["variants"].as_array().unwrap();
    let values: Vec<Option<&str>> = variants
        .iter()
        .map(|one| one["env"][SEND_LIMIT].as_str())
        .collect();
    assert_eq!(values, [None, Some("3e5"), Some("x")]);
    let rate = |one: &serde_json::Value| {
        let found = Measured::read(&one["bench"].to_string(), "a variant").unwrap();
        found.pairs[0].gb_s
    };
    // The limit bounds this rate. Without a limit, no rate is certain on a busy machine.
    assert!(rate(&variants[1]) <= 3e-4 && rate(&variants[0]) > 0.0);
    assert!(
        variants[2]["failure"]
            .as_str()
            .unwrap()
            .contains("exit status: 2"),
        "{printed}"
    );
    assert!(ended[0].err.contains("is not a number of bytes per second"), "{}", ended[0].err);
}

#[test]
fn one_rank_without_a_manifest_prints_a_table() {
    let lab = Lab::new();
    let done = lab.gptrain(&["bench", "--quick", "--set", "train.threads=1"]);
    done.expect(0, &[]);
    for words in ["1 rank, 1 node", "product qkv", "× 2304 × 768", "file write", "nothing is slow"]
    {
        assert!(done.out.contains(words), "no {words:?} in:\n{}", done.out);
    }
    // Notes, such as of a busy machine, are sentences.
    let mut rows = done.out.lines().filter(|line| !line.starts_with("note: "));
    let wide = rows.find(|line| line.chars().count() > 100);
    assert_eq!(wide, None);
    assert!(!lab.path("gptrain-bench").exists(), "its folder is gone");
}

#[test]
fn mistakes_are_told() {
    let lab = Lab::new();
    lab.gptrain(&["bench", "--tolerance=2"])
        .expect(2, &["a share is a number from 0 to 1"]);
    lab.gptrain(&["bench", "none.yaml"])
        .expect(2, &["none.yaml", "there is no such file"]);
    for (option, said) in [
        ("--since=7d", "add --history FILE"),
        ("--since=yesterday", "2026-11-24T08:30 (UTC)"),
        ("--soak=10", "a duration is written as 90s, 10m, 36h or 7d"),
        ("--set-env=NCCL_ALGO", "write NAME=VALUE,VALUE"),
    ] {
        lab.gptrain(&["bench", "run.yaml", option])
            .expect(2, &[said]);
    }
    fs::write(lab.path("runs"), "").unwrap();
    lab.gptrain(&["bench", "run.yaml", "--quick"])
        .expect(1, &["making runs/a"]);
    let limit = task(&lab, 0, 2, free_port(), &["bench", "--quick"])
        .env(SEND_LIMIT, "x")
        .output();
    Done::of(limit.unwrap()).expect(2, &[SEND_LIMIT, "is not a number of bytes per second"]);
}
