//! The planner's arithmetic, against the formulas and worked examples of the field.

use crate::common;
use crate::common::softgpu;
use gptrain::comm::{Group, Solo, dry, threads};
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, WORKSPACE};
use gptrain::device::{self, HEAD_PRODUCT};
use gptrain::engine::{Engine, Groups, MemoryPlan};
use gptrain::estimate::days;
use gptrain::estimate::deepspeed::states;
use gptrain::estimate::gptrain::drift::{self, FirstSteps};
use gptrain::estimate::gptrain::dry_run;
use gptrain::estimate::hardware;
use gptrain::estimate::parts::Part;
use gptrain::estimate::rates::{simple_days, simple_tflops};
use gptrain::estimate::setup::{Offload, Setup};
use gptrain::estimate::verdict::MemoryFit;
use gptrain::manifest::{LayerSplit, Manifest, Position};
use gptrain::model::parameters;
use gptrain::plan::grid::Axis;
use gptrain::plan::length::LengthRamp;
use gptrain::plan::segments::{BatchSchedule, MicroStages};
use gptrain::plan::{ramp::Ramp, split};
use gptrain::predict::Predictor;
use gptrain::predict::calibrate;
use gptrain::predict::cost::constants::{Constants, MEMORY, Prior, TIME};
use gptrain::predict::fitted;
use gptrain::predict::rows::{self, Given, Row};
use gptrain::predict::shape_lint;
use std::rc::Rc;

fn shipped() -> Vec<Row> {
    rows::read(rows::SHIPPED, "shipped").unwrap()
}

/// A measured run by its id.
fn run(id: &str) -> Setup {
    shipped()
        .into_iter()
        .find(|row| row.id == id)
        .unwrap()
        .setup
        .unwrap()
}

/// GPT of these sizes, with nothing padded.
fn gpt(h: usize, layers: usize, s: usize, v: usize, position: Position) -> Setup {
    let mut setup = run("002-052");
    let m = &mut setup.model;
    (m.hidden, m.layers, m.seq_len, m.vocab, m.ffn_hidden) = (h, layers, s, v, 4 * h);
    (m.vocab_multiple, m.position) = (1, position);
    m.heads = 16; // divides every width below

    m.embedding_layernorm = position == Position::Alibi;
    setup.with_topology(|t| (t.tensor, t.pipeline, t.data) = (1, 1, 1))
}

fn near(a: f64, b: f64, share: f64) {
    assert!((a / b - 1.0).abs() <= share, "{a} is not {b}");
}

#[test]
fn parameters_of_gpts_are_exact() {
    for (h, l, s, v, expected) in [
        (768, 12, 1024, 50257, 124_439_808),
        (12288, 112, 2048, 150257, 204_826_644_480),
        (12288, 80, 2048, 50257, 145_610_674_176),
        (16384, 96, 2048, 50257, 310_115_090_432),
        (20480, 105, 2048, 50257, 529_581_506_560),
        (14336, 80, 2048, 150257, 199_498_442_752),
        (13312, 96, 2048, 150257, 206_189_288_448),
        (11600, 64, 2048, 50257, 103_958_492_400),
        (12288, 96, 2048, 50257, 174_604_259_328),
    ] {
        assert_eq!(parameters(&gpt(h, l, s, v, Position::Learned).model), expected);
    }
}

#[test]
fn parameters_of_blooms_are_exact() {
    let bloom = |h, l, v| parameters(&gpt(h, l, 2048, v, Position::Alibi).model);
    assert_eq!(bloom(14336, 70, 250_000), 176_234_655_744);
    for (h, l, billions) in [
        (14400, 80, 202.69),
        (14400, 78, 197.72),
        (14400, 77, 195.23),
        (14400, 81, 205.18),
        (14400, 72, 182.79),
        (13824, 80, 186.94),
        (13824, 84, 196.12),
        (13824, 78, 182.36),
        (14336, 72, 181.18),
        (14336, 70, 176.25),
        (14336, 82, 205.84),
        (13312, 84, 181.98),
        (13312, 82, 177.73),
        (13312, 94, 203.25),
        (12288, 96, 177.04),
        (12288, 106, 195.17),
        (12288, 100, 184.29),
    ] {
        near(bloom(h, l, 250_880) as f64 / 1e9, billions, 0.0055 / billions);
    }
}

/// Embedding and layer of one rank, in parameters and at 18 bytes each.
#[test]
fn sizes_per_device_are_the_published_ones() {
    let parts = |h, v| {
        let counts = gpt(h, 1, 2048, v, Position::Learned).counts;
        (counts.tokens, counts.block)
    };
    let (embedding, layer) = parts(11600, 50257);
    assert_eq!((embedding, layer), (582_981_200.0, 1_614_870_800.0));
    assert_eq!((embedding / 4.0, layer / 4.0), (145_745_300.0, 403_717_700.0));
    assert_eq!((embedding + 2.0 * layer) / 4.0, 953_180_700.0);
    assert_eq!(18.0 * (embedding + 2.0 * layer) / 4.0, 17_157_252_600.0);
    assert_eq!(18.0 * 2.0 * layer / 4.0, 14_533_837_200.0);
    let (embedding, layer) = parts(13312, 150257);
    assert_eq!((embedding / 4.0, layer / 4.0), (500_055_296.0, 531_671_296.0));
    assert_eq!(18.0 * layer, 38_280_333_312.0);
    assert_eq!((layer / 2.0, 9.0 * layer), (1_063_342_592.0, 19_140_166_656.0));
    for (h, v, embedding_m, layer_m) in [
        (12288, 50257, 77.19, 226.51),
        (16384, 50257, 102.93, 402.68),
        (20480, 50257, 128.66, 629.18),
        (14336, 150257, 269.26, 308.30),
        (13312, 150257, 250.03, 265.84),
    ] {
        let (embedding, layer) = parts(h, v);
        near(embedding / 8e6, embedding_m, 1e-4);
        near(layer / 8e6, layer_m, 1e-4);
    }
    // Layers of a stage at 18 bytes: 145B over 8, 310B over 16, 530B over 35, 199B over 10.
    for (h, v, layers, gb) in [
        (12288, 50257, 10.0, 40.8),
        (16384, 50257, 6.0, 43.5),
        (20480, 50257, 3.0, 33.98),
        (14336, 150257, 8.0, 44.4),
        (13312, 150257, 8.0, 38.3),
    ] {
        near(parts(h, v).1 * layers / 8.0 * 18e-9, gb, 2e-3);
    }
    let (embedding, layer) = parts(14336, 250_880);
    assert_eq!((embedding, layer), (3_596_615_680.0, 2_466_437_120.0));
}

#[test]
fn tflops_by_the_simple_formula() {
    for (billions, seq, batch, seconds, gpus, expected) in [
        (48.0, 1024.0, 1024.0, 127.0, 64.0, 49.54),
        (48.0, 1024.0, 1024.0, 146.0, 64.0, 43.09),
        (48.0, 1024.0, 768.0, 122.0, 64.0, 38.68),
        (48.0, 1024.0, 512.0, 139.52, 64.0, 22.55),
        (104.0, 1024.0, 1048.0, 256.0, 128.0, 27.25),
        (104.0, 1024.0, 1048.0, 155.0, 256.0, 22.50),
        (104.0, 1024.0, 2048.0, 586.0, 128.0, 23.26),
        (104.0, 1024.0, 2048.0, 301.0, 256.0, 22.64),
        (104.0, 2048.0, 2048.0, 633.0, 128.0, 43.07),
    ] {
        near(simple_tflops(8.0, billions * 1e9, seq * batch, seconds, gpus), expected, 2.5e-4);
    }
    // Layers' parameters alone, norms and row-parallel biases once per tensor rank.
    let tokens = 2048.0 * 2048.0;
    let (h, l) = (14400.0, 8.0);
    let size = l * (12.0 * h * h + 13.0 * h) + 7.0 * 6.0 * h * l;
    near(simple_tflops(8.0, size, tokens, 769.99, 8.0), 108.47, 1e-4);
    near(simple_tflops(8.0, size, tokens, 777.09, 8.0), 107.48, 1e-4);
    assert_eq!((2048.0f64 / 769.99 * 1000.0).round(), 2660.0);
}

/// Every row whose log printed the improved formula's TFLOPs.
#[test]
fn tflops_by_the_improved_formula() {
    let improved = |s: &Setup, seconds: f64| s.flops().1 / (seconds * s.ranks() as f64 * 1e12);
    let ours = |id: &str, seconds| improved(&run(id), seconds);
    near(ours("002-052", 143.31), 112.49, 1e-3);
    near(ours("002-079", 120.18), 134.14, 1e-3);
    near(ours("002-117", 103.51), 156.93, 1e-3);
    let mut checked = 0;
    for row in shipped() {
        let late =
            row.id.starts_with("002-") && row.id.as_str() >= "002-052" && row.seconds_printed;
        if let (true, Ok(s), Some(seconds), Some(tflops)) =
            (late && row.flags.is_empty(), &row.setup, row.seconds, row.tflops)
        {
            near(improved(s, seconds), tflops, 2e-3);
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} rows");
}

#[test]
fn days_and_hours_of_the_worked_examples() {
    near(simple_days(8.0, 200e9, 300e9, 350.0, 150.0), 105.82, 1e-4);
    near(simple_days(8.0, 200e9, 300e9, 1.0, 150.0) * 24.0, 888_888.89, 1e-6);
    near(simple_days(8.0, 13e9, 300e9, 256.0, 45.0), 31.35, 1e-3);
    near(simple_days(8.0, 167e9, 450e9, 384.0, 150.0), 120.80, 1e-3);
    near(simple_days(8.0, 175e9, 300e9, 1024.0, 140.0), 33.9, 2e-3);
    near(simple_days(8.0, 1e12, 450e9, 3072.0, 163.0), 83.9, 2e-2);
    near((115_311.0 - 12_695.0) * 105.0 / 86400.0, 124.7, 1e-3);
    // Days per 100 B tokens as the rows of op-by-op PyTorch give them.
    near(100e9 / (40.0 * 86400.0), 28_935.0, 1e-4);
    let row = shipped()
        .into_iter()
        .find(|row| row.id == "004-012")
        .unwrap();
    near(16384.0 * 2048.0 / row.seconds.unwrap(), 28_935.0, 1e-4);
}

#[test]
fn deepspeeds_own_estimators() {
    let gib = |x: f64| x / 1073741824.0;
    let (p, largest) = (2851e6, 32e6);
    let rule = |zero, optimizer, weights, init| {
        states(zero, (p, largest), (8.0, 8.0), Offload { optimizer, weights }, init)
    };
    near(gib(rule(2, false, false, true).gpu), 15.93, 1e-3);
    near(gib(rule(2, true, false, true).gpu), 5.31, 1e-3);
    near(rule(3, false, false, true).gpu, 4.0 * largest + 18.0 * p / 8.0, 1e-12);
    near(rule(3, true, false, true).gpu, 4.0 * largest + 2.0 * p / 8.0, 1e-12);
    near(rule(3, true, true, true).gpu, 4.0 * largest, 1e-12);
    near(gib(rule(3, true, true, true).host), 71.7, 1e-3);
    near(gib(rule(3, true, true, false).host), 127.5, 1e-3);
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let broken = |change: &dyn Fn(&mut Setup)| {
        let mut setup = run("002-158");
        change(&mut setup);
        setup.violations().join("; ")
    };
    assert_eq!(broken(&|_| ()), "");
    let stages = broken(&|s| {
        (s.model.layers, s.topology.pipeline) = (32, 64);
        s.topology.layer_split = LayerSplit::Uniform;
    });
    assert!(stages.contains("PP 64 has more stages than 32 layers"), "{stages}");
    let heads = broken(&|s| (s.model.hidden, s.model.heads, s.topology.tensor) = (13824, 108, 8));
    assert!(heads.contains("108 heads are not divisible by TP 8"), "{heads}");
    assert!(broken(&|s| s.global = 100).contains("not a multiple of micro 2 × DP 8"));
    for (id, gpus, remedy) in [
        ("001-011", 16, "is not the 16"),
        ("001-029", 64, "TP 4 × PP 32"),
        ("003-002", 256, "PP 64"),
    ] {
        let row = shipped().into_iter().find(|row| row.id == id).unwrap();
        assert_eq!(row.devices, Some(gpus));
        assert!(row.problems().join("; ").contains(remedy), "{id}: {:?}", row.problems());
    }
}

#[test]
fn layers_and_the_ends_divide_as_published() {
    for (layers, stages, each) in
        [(94, 24, 4), (106, 12, 9), (100, 6, 17), (82, 12, 7), (94, 12, 8), (70, 12, 6)]
    {
        let cuts = split::with_ends(layers, stages);
        assert_eq!((cuts[0].len(), cuts[1].len()), (each - 1, each));
        assert_eq!(cuts[stages - 1].len(), each - 1);
    }
}

#[test]
fn an_awkward_shape_is_named() {
    let has = |id: &str, words: &str| {
        let notes = shape_lint::lint(&run(id)).join("\n");
        assert!(notes.contains(words), "{id}: {notes}");
    };
    has("002-025", "head_dim 150 is not a multiple of 8");
    has("002-085", "head_dim 108");
    has("002-117", "stages hold 6 to 7 layers");
    let mut small = run("002-159");
    small.global = 64;
    assert!(
        shape_lint::lint(&small)
            .join("\n")
            .contains("4 micro-batches do not fill 12 stages")
    );
    small.model.heads = 4;
    small.micro = 1;
    assert!(
        shape_lint::lint(&small)
            .join("\n")
            .contains("not a multiple of 4")
    );
    assert_eq!(shape_lint::lint(&run("002-159")), Vec::<String>::new());
}

/// 12 stages × 2 × DP 16 are first full at 384, DP 8 at 192; the ramp-up's own numbers.
#[test]
fn the_ramp_up_and_the_pipe() {
    let ramp = Ramp::growing(16, 16, 9_765_625, 2048);
    assert_eq!(ramp.increments(), 127);
    let stages: Vec<_> = ramp.phases(220_000_000).collect();
    assert_eq!(stages[0].steps, 4806); // 4,805 whole ones and the one that crosses
    let to_384 = stages
        .iter()
        .take_while(|stage| stage.global_batch <= 384)
        .map(|s| s.steps);
    near(to_384.sum::<u64>() as f64, 18_146.0, 1e-3);
    let setup = run("002-159");
    let lengths = LengthRamp::constant(setup.model.seq_len);
    let schedule = BatchSchedule { ramp, micros: MicroStages::constant(setup.micro), lengths };
    let seconds = &mut |s: &Setup| Predictor::shipped().predict(s).seconds;
    let run = days::plan_run(&schedule, 220_000_000, &setup, seconds);
    assert_eq!(run.full_from, Some(192));
    assert_eq!(run.segments.len(), 128);
    let slow = &run.segments[0];
    // Measured: 15.23 s at batch 16, of which the formulas know three quarters.
    near(slow.seconds, 15.23, 0.3);
}

#[test]
fn bloom_tells_its_story() {
    let p = Predictor::shipped().predict(&run("002-159"));
    near(p.seconds, 104.5, 0.02);
    let total: f64 = p.time.parts.iter().map(|part| part.1).sum();
    near(total, p.time.total(), 1e-12);
    assert!(p.verdict == MemoryFit::Fits && p.seconds_error < 0.1, "± {}", p.seconds_error);
    near(p.gigabytes, 59.0, 0.05);
}

/// With UPDATE=1 it writes them. The fit converges to them, from the prior and from
/// themselves, to a twentieth of the spread that they had before: a fit begins with all runs heard alike, and
/// where it ends the weights have dents of that size, which a second fit makes smaller.
#[test]
fn the_constants_are_those_of_the_rows() {
    let rows = rows::shipped();
    let prior = Constants::prior();
    let fit = |start: &Constants| fitted::fit_constants(&rows, start, fitted::CONVERGED);
    let found = fit(&fit(&prior));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write("src/predict/constants.yaml", fitted::to_yaml(&found)).unwrap();
        return;
    }
    let shipped = fitted::shipped();
    let again = fit(shipped);
    let same = |table: &[Prior], shipped: &[f64], found: &[f64], from: &str| {
        for (prior, (a, b)) in table.iter().zip(shipped.iter().zip(found)) {
            let (name, dent) = (prior.name, 0.05 * prior.spread);
            assert!((a / b).ln().abs() < dent, "{name}: {a} is written, {b} is fitted from {from}");
        }
    };
    for (found, from) in [(found, "the prior"), (again, "itself")] {
        same(TIME, &shipped.time, &found.time, from);
        same(MEMORY, &shipped.memory, &found.memory, from);
    }
    assert!(
        shipped
            .time
            .iter()
            .zip(&prior.time)
            .any(|(a, b)| (a / b).ln().abs() > 0.5)
    );
}

/// The estimate for gptrain equals the memory that its engine reserves, on every rank, to the byte:
/// for every optimizer, and for every setting that saves memory.
#[test]
fn the_bill_is_the_engines() {
    let eighth = "optimizer.adam8bit.block=16";
    for sets in [
        vec![],
        vec!["precision=bf16", "topology.recompute=full"],
        vec!["topology.tensor=2", "topology.sequence_parallel=true"],
        vec!["topology.pipeline=2", "topology.data=2", "topology.zero=1"],
        vec!["topology.pipeline=2", "topology.data=2", "topology.zero=2"],
        vec![
            "topology.pipeline=2",
            "topology.data=2",
            "topology.zero=2",
            "precision=bf16",
            "topology.schedule=interleaved",
            "topology.offload={what: full, gradients: host}",
        ],
        vec!["topology={pipeline: 2, tensor: 2, schedule: breadth_first}"],
        vec![
            "topology={pipeline: 2, data: 2, zero: 3, schedule: breadth_first, chunks: 3}",
            "model.layers=12",
            "precision=bf16",
        ],
        vec![
            "topology={pipeline: 2, data: 4, shard: 2, zero: 2, zero_every: 2, schedule: breadth_first}",
            "model.layers=12",
        ],
        vec!["topology.tensor=2", "topology.pipeline=2", "precision=bf16"],
        vec!["topology.data=2", "topology.zero=3", "topology.recompute=selective"],
        vec!["topology.data=2", "topology.zero=1", "topology.offload=optimizer"],
        vec!["topology.tensor=2", "topology.sequence_parallel=true", "precision=fp8"],
        vec!["topology.data=2", "topology.zero=3", "topology.offload=full", "precision=bf16"],
        vec!["topology.data=2", "topology.compression={powersgd: {rank: 2, start_step: 0}}"],
        vec!["model.family=llama", "model.kv_heads=2", "topology.tensor=2", "precision=bf16"],
        vec!["model.family=qwen3", "model.kv_heads=2", "topology.data=2", "topology.zero=3"],
        vec!["model.window=8", "model.pattern=[window, full]", "topology.pipeline=2"],
        vec!["model.window=8", "model.pattern=[full, full, full, window]", "topology.pipeline=2"],
        vec![eighth, "topology.tensor=2"],
        vec![eighth, "topology.data=2", "topology.zero=1", "topology.offload=optimizer"],
        vec!["topology.data=4", "topology.shard=2"],
        vec!["topology.data=4", "topology.shard=2", "topology.zero=1", "precision=bf16"],
        vec!["topology.data=4", "topology.shard=2", "topology.zero=2", "topology.pipeline=2"],
        vec!["topology.data=4", "topology.shard=2", "topology.zero=3", "precision=bf16"],
        vec![
            "topology={data: 4, shard: 2, zero: 2, states: shard, offload: full}",
            "precision=bf16",
        ],
        vec!["topology={data: 8, shard: 2, zero: 3, states: shard}", "precision=bf16"],
        vec!["optimizer=adafactor", "topology.tensor=2"],
        vec!["optimizer=adafactor", "topology.pipeline=2", "topology.data=2", "topology.zero=1"],
        vec!["optimizer=adafactor", "model.family=llama", "precision=bf16"],
        vec!["optimizer=muon", "topology.data=2", "topology.zero=1"],
        vec!["optimizer=muon", "model.family=llama", "topology.tensor=2", "precision=bf16"],
        vec!["optimizer=muon", "precision=fp16", "topology={tensor: 2, pipeline: 2, data: 2}"],
        vec!["optimizer=muon", "topology={data: 4, zero: 2}", "log.params_norm=true"],
        vec!["optimizer=adafactor", "topology={data: 4, zero: 1, offload: full}"],
    ] {
        let small = ["model.layers=4", "batch.micro=2", "batch.global=16"];
        let m = common::manifest(&[&small[..], &sets].concat());
        let stages = dry_run::stages(&m);
        let worlds = threads::world(m.topology.ranks());
        let bills: Vec<_> = std::thread::scope(|scope| {
            let rank = |world| {
                let m = &m;
                scope.spawn(move || {
                    let cpu = Cpu::new(Some(1));
                    let groups = Groups::new(&world, &m.topology);
                    let (rank, stage) = (world.rank(), groups.pipeline.rank());
                    let engine = Engine::new(&cpu, groups, m, true).unwrap();
                    (rank, stage, engine.memory_plan().clone())
                })
            };
            let all: Vec<_> = worlds.into_iter().map(rank).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (rank, stage, memory_plan) in bills {
            assert_eq!(memory_plan, stages[stage].memory_plan, "rank {rank} of {sets:?}");
        }
        let whole: u64 = stages.iter().map(|stage| stage.parameters).sum();
        assert!(whole * m.topology.tensor as u64 >= parameters(&m.model), "{sets:?}");
    }
}

/// Every rank of a stage reserves the same bytes, so the estimate, which plans the first, is every
/// rank's: also where shards end within parameters, or are empty, and where ranks own different matrices.
#[test]
fn no_rank_needs_more_than_the_estimate() {
    let sizes = ["model.hidden=40", "model.ffn_hidden=88", "model.vocab=130", "model.layers=4"];
    let steps = ["batch={micro: 2, global: 48}", "log.zeros=true", "log.params_norm=true"];
    let mut planned = 0;
    for optimizer in
        ["optimizer=adamw", "optimizer=adam8bit", "optimizer=adafactor", "optimizer=muon"]
    {
        for grid in ["data: 2", "data: 3", "data: 4, tensor: 2", "data: 3, pipeline: 2", "data: 24"]
        {
            for rest in [
                "zero: 0",
                "zero: 1",
                "zero: 2",
                "zero: 3",
                "zero: 2, shard: 2, states: shard",
                "zero: 1, offload: optimizer",
                "zero: 3, offload: {what: full, gradients: host}",
                "compression: {powersgd: {rank: 2}}",
            ] {
                let topology = format!("topology={{{grid}, {rest}}}");
                let sets = [&sizes[..], &steps, &[optimizer, &topology]].concat();
                let Ok(m) = common::try_manifest(&sets) else { continue };
                let stages = dry_run::stages(&m);
                for rank in 0..m.topology.ranks() {
                    let stage = m.topology.grid().coord(rank)[Axis::Pipeline];
                    let planned = plan_rank(&m, rank);
                    assert_eq!(planned, stages[stage].memory_plan, "rank {rank} of {sets:?}");
                }
                planned += 1;
            }
        }
    }
    assert!(planned > 100, "{planned} plans");
}

/// Memory plan of any rank, on a device and in groups that only count.
fn plan_rank(m: &Manifest, rank: usize) -> MemoryPlan {
    let groups = Groups::for_rank(rank, &m.topology, |name, ranks| -> Box<dyn Group> {
        match ranks.iter().position(|member| *member == rank) {
            Some(at) if ranks.len() > 1 => {
                Box::new(dry::Dry::new(name, at, ranks.len(), &Rc::default()))
            }
            _ => Box::new(Solo),
        }
    });
    Engine::plan(&device::Dry::default(), &groups, m, m.data.causal()).0
}

/// On a GPU, too, where the ops have scratch of their own.
#[test]
fn the_bill_of_a_gpu_is_the_engines() {
    let m = common::manifest(&["train.device=cuda", "precision=bf16"]);
    let cuda = Cuda::open(&softgpu::gpu(0)).unwrap_or_else(|problems| panic!("{problems}"));
    let engine = Engine::new(&cuda, Groups::solo(), &m, true).unwrap();
    assert_eq!(*engine.memory_plan(), dry_run::stages(&m)[0].memory_plan);
    assert!(
        engine
            .memory_plan()
            .rows
            .contains(&("library workspace", WORKSPACE)),
        "{}",
        engine.memory_plan()
    );
}

/// A gemm's arithmetic is the engine's, not a formula's: forward and backward are 6 FLOPs a weight.
#[test]
fn counted_flops_are_the_formulas() {
    let m = common::manifest(&["model.hidden=256", "model.heads=4", "model.vocab=1024"]);
    let stages = dry_run::stages(&m);
    let tokens = (m.batch.micro * m.model.seq_len) as f64;
    let work = &stages[0].work.micro.ops;
    let flops = work["gemm"].flops + work[HEAD_PRODUCT].flops;
    let weights = (parameters(&m.model) - 24 * 256) as f64; // all but the positions multiply
    near(flops, 6.0 * weights * tokens, 0.02);
}

#[test]
fn drift_from_the_plan_is_said_aloud() {
    let unnamed = common::manifest(&[]);
    let m = common::manifest(&["plan.hardware=cpu"]);
    let memory_plan = dry_run::stages(&m)[0].memory_plan.total();
    let compare = |m: &Manifest, memory, parts| {
        let micro = m.schedule().first_micro();
        let first = FirstSteps { batch: 8, micro, seconds: 100.0, parts };
        let cpu = gptrain::estimate::hardware::find("cpu", "test").unwrap();
        drift::compare(m, Some(cpu), 0, memory, &first).unwrap()
    };
    let line = |m: &Manifest, memory| compare(m, memory, None).line;
    let far = line(&m, memory_plan);
    assert!(far.contains("slower than cpu should be") && !far.contains("bug"), "{far}");
    assert!(!line(&unnamed, memory_plan).contains("slower"));
    let other = gptrain::base::Bytes(memory_plan.0 + 1);
    assert!(line(&m, other).contains("bug"));
    // The part in which the seconds are is named, beside what was planned for it.
    let mut measured = [0.0; Part::COUNT];
    measured[Part::Head as usize] = 100.0;
    let compared = compare(&m, memory_plan, Some((4, measured)));
    assert!(
        compared
            .line
            .contains("in head and loss: 100.00 s, planned 0.0"),
        "{}",
        compared.line
    );
    let table = compared.table.unwrap();
    assert_eq!((table.step, table.batch, table.row(Part::Head).1), (4, 8, 100.0));
    let planned = table.total().planned;
    assert!(planned > 0.0 && table.row(Part::Products).0 > 0.0, "{table:?}");
    assert!(
        table
            .parts
            .iter()
            .all(|row| row.planned >= 0.0 && row.planned < planned),
        "{table:?}"
    );
}

/// A file with times only leaves memory as shipped; all figures are finite, on any hardware.
#[test]
fn what_a_file_does_not_measure_keeps_its_constants() {
    let setup = run("002-052");
    let line = |i: u64, ms: f64| {
        format!(
            " iteration {i}/ 100 | elapsed time per iteration (ms): {ms} | global batch size: 2048 |\n"
        )
    };
    let log: String = (1..6).map(|i| line(i, 200_000.0)).collect();
    let learned =
        calibrate::calibrate(&log, "run.log", Some(&setup), false, Given::default()).unwrap();
    assert_eq!(learned.learned_counts("run.log").unwrap(), (4, 0));
    let (own, shipped) = (learned.predictor.predict(&setup), Predictor::shipped().predict(&setup));
    near(own.gigabytes, shipped.gigabytes, 1e-12);
    near(own.gigabytes_error, shipped.gigabytes_error, 1e-12);
    assert!(own.seconds > 1.3 * shipped.seconds, "{} {}", own.seconds, shipped.seconds);
    for hw in hardware::table() {
        let setup = Setup { hardware: hw, per_node: hw.per_node, ..setup.clone() };
        let before = Predictor::shipped().predict(&setup).seconds;
        let log: String = (1..6).map(|i| line(i, 2000.0 * before)).collect();
        let learned = calibrate::calibrate(&log, "run.log", Some(&setup), false, Given::default())
            .unwrap()
            .predictor;
        let p = learned.predict(&setup);
        let figures = [p.seconds, p.seconds_error, p.gigabytes, p.gigabytes_error];
        assert!(figures.iter().all(|figure| figure.is_finite()), "{}: {figures:?}", hw.name);
        let slower = p.seconds / before;
        assert!((1.4..2.4).contains(&slower), "{}: {slower}", hw.name);
    }
}
