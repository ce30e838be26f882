use super::*;
use crate::gptrain::stage_times::StageTimes;
use crate::hardware;
use crate::logs;
use crate::measured::RankSpeeds;
use crate::measured::{FORMAT, Product};
use crate::setup::Program;
use serde_json::json;

const TEXT: &str = "
model: {layers: 4, hidden: 16, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 32}
lr: {peak: 1e-3}
train: {samples: 800}
";

fn planned(sets: &[&str]) -> Manifest {
    manifest::for_test(TEXT, sets)
}

fn product(tflops: f64, m: usize) -> Product {
    Product { name: "qkv".into(), m, n: 1000, k: 1000, tflops }
}

fn rank(rank: usize, node: &str, copy: f64) -> RankSpeeds {
    RankSpeeds {
        rank,
        node: node.into(),
        place: String::new(),
        device: String::new(),
        // 2 and 6 GFLOP at 0.1 and 0.3 TFLOP/s: 40 ms for 8 GFLOP.
        products: vec![product(0.1, 1000), product(0.3, 3000)],
        cube: product(9.0, 1000),
        device_copy_gb_s: copy,
        host_copy_gb_s: 1.0,
        upload_gb_s: None,
        download_gb_s: None,
        file_write_gb_s: 1.0,
        file_read_gb_s: 1.0,
        file_access: String::new(),
        ops: Vec::new(),
    }
}

fn row(in_node: bool, op: &str, bytes: u64, seconds: f64, busbw: f64) -> GroupSpeed {
    GroupSpeed {
        group: if in_node { "tensor" } else { "data" }.into(),
        size: 2,
        groups: 2,
        in_node,
        op: op.into(),
        bytes,
        seconds,
        algbw_gb_s: busbw,
        busbw_gb_s: busbw,
        slowest: vec![0, 1],
    }
}

fn measured() -> Measured {
    Measured {
        format: FORMAT.into(),
        manifest: "test".into(),
        precision: manifest::Precision::F32,
        hardware: None,
        quick: false,
        seconds: 10.0,
        ranks: vec![rank(0, "a", 8.0), rank(1, "a", 10.0), rank(2, "b", 15.0)],
        groups: vec![
            row(true, "send_recv", 1024, 7e-6, 0.1),
            row(true, "send_recv", 1 << 20, 1.0, 3.0),
            row(true, "send_recv", 1 << 22, 1.0, 4.0),
            row(true, "all_reduce", 1024, 9e-6, 0.1),
            row(true, "all_reduce", 1 << 22, 1.0, 6.0),
            row(false, "send_recv", 1024, 30e-6, 0.1),
            row(false, "all_gather", 1 << 20, 1.0, 0.5),
            GroupSpeed {
                group: "pipeline edge".into(),
                ..row(false, "send_recv", 1 << 20, 1.0, 0.9)
            },
            GroupSpeed { group: "world".into(), ..row(false, "all_reduce", 1 << 20, 1.0, 0.7) },
        ],
        units: "nodes".into(),
        pairs: Vec::new(),
        slow: Vec::new(),
        busy_share: 0.0,
        notes: Vec::new(),
        changes: Vec::new(),
        soak: Vec::new(),
    }
}

fn setup(m: &Manifest) -> Setup {
    Setup::new(m, Program::Gptrain, hardware::find("cpu", "test").unwrap())
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
}

#[test]
fn shares_and_links_are_those_of_the_document() {
    let m = planned(&["topology={tensor: 2, data: 2}"]);
    let learned = learn(&measured(), "bench.json", &m, setup(&m)).unwrap();
    let hw = learned.hardware;
    near(hw.product_share, 0.2 / 0.4); // 8 GFLOP in 40 ms, of 0.4 TFLOP/s
    near(hw.memory_share, 10.0 / 20.0); // the middle one of 8, 10, 15 GB/s
    near(hw.links.bus.unwrap().latency_us, 7.0);
    near(hw.links.bus.unwrap().gb_s, 5.0); // between 4 and 6, at the largest sizes
    let network = hw.links.network.unwrap();
    near(network.latency_us, 30.0);
    near(network.gb_s, 0.7); // between 0.5 and 0.9
    let (ring, nodes) = hw.links.ring.unwrap();
    near(ring.gb_s, 0.5); // the gather's, not the message's
    assert_eq!((ring.latency_us, nodes), (network.latency_us, 2));
    let mut two_levels = measured();
    let copies = row(false, "reduce_scatter", 1 << 20, 1.0, 0.2);
    two_levels
        .groups
        .push(GroupSpeed { group: COPY_GROUPS.into(), ..copies });
    let (ring, _) = learn(&two_levels, "bench.json", &m, setup(&m))
        .unwrap()
        .hardware
        .links
        .ring
        .unwrap();
    near(ring.gb_s, 0.2); // the copies'
    assert_eq!(learned.per_node, 2);
}

/// Every part of a step's time, by hand from what the engine counted.
#[test]
fn the_plan_follows_the_learned_figures() {
    let m = planned(&["topology={tensor: 2, data: 2}"]);
    let learned = learn(&measured(), "bench.json", &m, setup(&m)).unwrap();
    let stages = dry_run::stages(&m);
    let parts = StageTimes::new(&stages, &learned).parts(learned.micros());
    let part = |name: &str| parts.iter().find(|(part, _)| *part == name).unwrap().1;
    let work = &stages[0].work;
    let micros = 8.0;
    let gemm = work.micro.ops["gemm"];
    let products = (gemm.flops / 0.2e12).max(gemm.bytes / 10e9) + gemm.calls * 5e-6;
    near(part("matrix products"), micros * products);
    let sums = |work: &dry_run::Workload, groups: &[&str], alpha: f64, beta: f64| -> f64 {
        let of = work
            .messages
            .iter()
            .filter(|((group, _), _)| groups.contains(group));
        of.map(|(_, sent)| sent.calls * alpha + sent.bytes / beta)
            .sum()
    };
    let tensor = sums(&work.micro, &["tensor", "tp_async"], 7e-6, 5e9);
    assert!(tensor > 0.0);
    near(part("tensor parallel"), micros * tensor);
    let data = sums(&work.step, &[comm::GRAD_SUM], 30e-6, 0.5e9);
    assert!(data > 30e-6);
    near(part("once a step: sums"), data);
}

/// A node's ranks copy at once; transfers are in the slower direction. A CPU has none.
#[test]
fn host_and_transfers_are_those_of_the_document() {
    let m = planned(&[]);
    let mut gpus = measured();
    for (rank, (up, down)) in gpus
        .ranks
        .iter_mut()
        .zip([(9.0, 8.0), (7.0, 9.0), (6.0, 30.0)])
    {
        (rank.upload_gb_s, rank.download_gb_s) = (Some(up), Some(down));
        rank.host_copy_gb_s = 12.0;
    }
    let learned = learn(&gpus, "bench.json", &m, setup(&m)).unwrap().hardware;
    near(learned.link_gb_s, 7.0);
    near(learned.host_gb_s * HOST_SHARE, 18.0); // of 24 and 12
    let without = learn(&measured(), "bench.json", &m, setup(&m))
        .unwrap()
        .hardware;
    near(without.link_gb_s, 10.0);
    near(without.host_gb_s * HOST_SHARE, 20.0 * 0.7);
}

/// A machine half as fast as planned: twice the seconds, and bytes as before.
#[test]
fn the_pace_of_a_run_shows_in_its_plan() {
    let m = planned(&["topology={tensor: 2, data: 2}"]);
    let stages = dry_run::stages(&m);
    let base = setup(&m);
    let half = 2.0 * stage_times::seconds(&stages, &base);
    let line = |step: usize, sec: f64| {
        format!("{{\"step\":{step},\"global_batch\":32,\"sec\":{sec},\"lm_loss\":null}}\n")
    };
    let eval = "{\"step\":3,\"consumed_samples\":96,\"eval\":\"valid\",\"lm_loss\":3.0}\n";
    let times = [9.0, half, half * 1.01, half * 0.99, half * 7.0];
    let text: String = times
        .iter()
        .enumerate()
        .map(|(i, sec)| line(i + 1, *sec))
        .collect();
    let text = text + eval;
    assert!(!Measured::is_document(&text) && !Measured::is_document(&line(1, half)));
    let log = logs::read(&text, "metrics.jsonl", &base).unwrap();
    assert_eq!((log.steps.len(), log.outliers.len()), (3, 1), "the first step warms up");
    let (learned, said) = slowdown(&log, "metrics.jsonl", &m, base).unwrap();
    near(stage_times::seconds(&stages, &learned), half);
    assert!(said.contains("learned from 3 steps: they took 2.00 times"), "{said}");
    assert!(dry_run::error(learned.hardware, 1) <= 0.1);
}

/// A grid's run whose products take twice what is planned has that factor, and no other.
#[test]
fn parts_of_a_grid_show_in_its_plan() {
    let m = planned(&["topology={tensor: 2, pipeline: 2, data: 2}", "batch.global=64"]);
    let gpu = hardware::find("h100-80g", "test").unwrap();
    let stages = dry_run::stages(&m);
    let base = Setup::new(&m, Program::Gptrain, gpu);
    let before = drift::by_part(&stages, &base, 0);
    let mut measured = before;
    measured[Part::Products as usize] *= 2.0;
    let seconds: f64 = measured.iter().sum();
    let parts = Some(PartTable::new(5, 64, &before, &measured));
    let log = Log { medians: Vec::new(), steps: vec![(64, seconds)], outliers: Vec::new(), parts };
    let (learned, said) = slowdown(&log, "metrics.jsonl", &m, base).unwrap();
    near(learned.hardware.parts[Part::Products as usize], 2.0);
    near(learned.hardware.parts[Part::Attention as usize], 1.0);
    assert!(said.contains("each part's own factor: matrix products 2.00"), "{said}");
    assert!(!said.contains("tensor collectives"), "hidden beside computation: {said}");
}

/// A plan for as many devices as were measured has the bar of a measured machine, and one for more a
/// wider one, up to that of a machine without measurements.
#[test]
fn a_bar_grows_beyond_the_measured_devices() {
    let m = planned(&[]);
    let gpu = Setup { hardware: hardware::find("h100-80g", "test").unwrap(), ..setup(&m) };
    let found = Measured { hardware: None, ..measured() };
    let learned = learn(&found, "bench.json", &m, gpu.clone())
        .unwrap()
        .hardware;
    let devices = learned.measured_devices;
    assert_eq!(devices, measured().ranks.len());
    let bars = [devices, 8 * devices, 64 * devices, 1 << 20].map(|n| dry_run::error(learned, n));
    near(bars[0], 0.2);
    assert!(bars.is_sorted() && bars[1] > 0.22, "{bars:?}");
    near(dry_run::error(learned, usize::MAX), dry_run::error(gpu.hardware, usize::MAX));
    near(dry_run::error(gpu.hardware, 1 << 20), 0.65);
}

/// Half of a machine was free, so what is measured may be half of what it can do.
#[test]
fn a_busy_machine_widens_the_bar() {
    let m = planned(&[]);
    let error = |busy_share: f64| {
        let found = Measured { busy_share, ..measured() };
        let learned = learn(&found, "bench.json", &m, setup(&m)).unwrap();
        let said = line(&found, &learned).contains("other programs had 50 % of the machine");
        assert_eq!(said, busy_share > 0.0);
        dry_run::error(learned.hardware, 1)
    };
    near(error(0.0), 0.2);
    near(error(0.5), 0.2 + 1.0);
    let text = json!(Measured { busy_share: 0.5, ..measured() }).to_string();
    assert_eq!(Measured::read(&text, "b.json").unwrap().busy_share, 0.5);
}

#[test]
fn a_link_that_was_not_measured_stays_the_data_sheets() {
    let m = planned(&[]);
    let one = Measured { groups: Vec::new(), ..measured() };
    let learned = learn(&one, "bench.json", &m, setup(&m)).unwrap();
    assert_eq!(learned.hardware.links, Links::default());
    near(learned.hardware.link(true, 2.0).gb_s, 5.0 * 0.7);
    near(learned.hardware.link(false, 2.0).gb_s, 0.5 * 0.7);
}

/// One line that names the file, what is wrong, and a remedy.
#[test]
fn another_machine_another_precision_and_other_files_are_refused() {
    let m = planned(&[]);
    let other = Measured { hardware: Some("h100-80g".into()), ..measured() };
    let refused = |found: &Measured| {
        learn(found, "bench.json", &m, setup(&m))
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&other).contains("measured on h100-80g, and the plan is for cpu"));
    let other = Measured { precision: manifest::Precision::Bf16, ..measured() };
    assert!(refused(&other).contains("measured in bf16, and the plan is in f32"));
    let good = json!(measured());
    assert_eq!(Measured::read(&good.to_string(), "b").unwrap(), measured());
    let broken = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        Measured::read(&value.to_string(), "b.json").unwrap_err()
    };
    let cases: [(Problems, &str); 8] = [
        (broken(&|v| v["busy_share"] = json!(1.5)), "busy_share 1.5 is not a share"),
        (Measured::read("step 1 loss 2", "b.json").unwrap_err(), "is not a document of"),
        (Measured::read("{\"a\": 1}", "b.json").unwrap_err(), "but no document of"),
        (broken(&|v| v["format"] = json!("gptrain bench 9")), "its format is"),
        (broken(&|v| v["ranks"] = json!([])), "it has no ranks"),
        (
            broken(&|v| v["ranks"][1]["device_copy_gb_s"] = json!(0)),
            "rank 1 reported invalid figures",
        ),
        (broken(&|v| v["groups"][2]["seconds"] = json!(-1)), "send_recv of group tensor"),
        (broken(&|v| drop(v["ranks"][0].as_object_mut().unwrap().remove("cube"))), "`cube`"),
    ];
    for (problems, what) in cases {
        assert_eq!(problems.list.len(), 1);
        let text = problems.to_string();
        assert!(text.contains("b.json") && text.contains(what), "{text}");
        assert!(text.contains("gptrain bench --json"), "{text}");
    }
    let cut = &good.to_string()[..200];
    assert!(
        Measured::read(cut, "b")
            .unwrap_err()
            .to_string()
            .contains("is not a document")
    );
}
