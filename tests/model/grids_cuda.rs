//! Grids of GPUs equal one CPU: ranks are threads, each with its own software stand-in, joined by the
//! stand-in for NCCL; or all with one, joined through host memory, as a single real GPU can be tried
//! (`make test-gpu`).

use crate::common;
use crate::common::softgpu;
use gptrain::base::DType;
use gptrain::comm::host_staged::HostStaged;
use gptrain::comm::nccl::Nccl;
use gptrain::comm::{Collective, Group, Solo, World, threads};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::{Cuda, Launched, Options, device_count};
use gptrain::device::{Backend, Tensor};
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::Inputs;
use std::process::{Child, Command, Stdio};

macro_rules! grid {
    ($name:ident, $how:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check(&[$($set),+], How::$how);
        }
    };
}

grid!(nccl_tensor_2_sequence, Nccl: "topology.tensor=2", "topology.sequence_parallel=true");
grid!(nccl_tensor_2_selective, Nccl: "topology.tensor=2", "topology.sequence_parallel=true",
    "topology.recompute=selective");
grid!(nccl_tensor_2_full, Nccl: "topology.tensor=2", "topology.recompute=full");
grid!(nccl_data_2_zero_2, Nccl: "topology.data=2", "topology.zero=2");
grid!(nccl_data_2_zero_3, Nccl: "topology.data=2", "topology.zero=3");
grid!(nccl_pipeline_2, Nccl: "topology.pipeline=2");
grid!(nccl_all_three, Nccl: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1");
grid!(nccl_pipeline_zero_2, Nccl: "topology.pipeline=2", "topology.data=2", "topology.zero=2");
grid!(nccl_two_levels, Nccl: "topology.data=4", "topology.shard=2");
grid!(nccl_two_levels_zero_1, Nccl: "topology.data=4", "topology.shard=2", "topology.zero=1");
grid!(nccl_two_levels_zero_3, Nccl: "topology.data=4", "topology.shard=2", "topology.zero=3");
grid!(nccl_equal_states_zero_2, Nccl: "topology.data=4", "topology.shard=2", "topology.zero=2",
    "topology.states=shard");
grid!(nccl_equal_states_zero_3, Nccl: "topology.data=4", "topology.shard=2", "topology.zero=3",
    "topology.states=shard");
grid!(nccl_two_levels_pipeline, Nccl: "topology.data=4", "topology.shard=2", "topology.pipeline=2",
    "topology.zero=2");
grid!(staged_tensor_data, Staged: "topology.tensor=2", "topology.data=2", "topology.zero=2");
grid!(staged_tensor_pipeline, Staged: "topology.tensor=2", "topology.pipeline=2",
    "topology.sequence_parallel=true");

/// NCCL itself, where a machine has one GPU: a communicator, each collective op by op and in a graph, an
/// operation begun and finished, and the ends of a communicator that works and of one that is aborted.
#[test]
fn nccl_with_one_rank() {
    for dtype in [DType::F32, DType::BF16] {
        let options = Options { dtype, ..softgpu::gpu(0) };
        let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let be: &dyn Backend = &cuda;
        let nccl = Nccl::open(&cuda, &options).unwrap_or_else(|problems| panic!("{problems}"));
        let [world] = <[World; 1]>::try_from(threads::world(1)).unwrap_or_else(|_| unreachable!());
        let group = nccl.group_of_one(&world);
        assert_eq!((group.size(), group.rank()), (1, 0));
        let tensor = || Tensor::at(be.reserve(1 << 10).unwrap(), 1, 256, dtype);
        let [x, y] = [tensor(), tensor()];
        let bytes: Vec<u8> = (0..x.bytes()).map(|i| (i % 61) as u8).collect();
        let contents = |tensor: Tensor| {
            let mut bytes = vec![0; tensor.bytes()];
            be.download(tensor, &mut bytes);
            bytes
        };
        for collective in [
            Collective::AllReduce(x),
            Collective::AllGather { part: x, whole: y },
            Collective::ReduceScatter { whole: x, part: y },
        ] {
            let result = if matches!(collective, Collective::AllReduce(_)) { x } else { y };
            let mut graph = be.graph(1);
            for run in 0..5 {
                be.upload(&bytes, x);
                if result == y {
                    be.upload(&vec![0; y.bytes()], y);
                }
                match run {
                    0..4 => drop(graph.run(&mut || group.run(collective))),
                    _ => group.finish(group.begin(collective)),
                }
                be.sync().unwrap();
                assert_eq!(contents(result), bytes, "{collective:?} in {dtype}, run {run}");
            }
        }
        drop(group);
        let aborted = nccl.group_of_one(&world);
        aborted.all_reduce(x);
        world.fail("a test");
        drop(aborted);
    }
}

#[derive(Clone, Copy)]
pub enum How {
    Nccl,
    Staged,
}

/// As one rank on the CPU but for the order of sums, and twice the same bits.
fn check(topology: &[&str], how: How) {
    check_model(&["model.dropout=0.1"], topology, how);
}

/// Norms of heads, groups, a window, SwiGLU, RoPE: the kernels that GPT-2 does not use.
#[test]
fn nccl_qwen3_tensor_2() {
    let qwen3 = ["model.family=qwen3", "model.kv_heads=2", "model.ffn_hidden=48", "model.window=9"];
    check_model(&qwen3, &["topology.tensor=2", "topology.sequence_parallel=true"], How::Nccl);
}

/// ZeRO 3 in a pipeline, and sums of two micro-batches, whose other passes graphs may replay.
#[test]
fn nccl_breadth_first() {
    let model = ["model.layers=6", "model.dropout=0.1"];
    let order = "topology={pipeline: 2, schedule: breadth_first, chunks: 3, data: 2}";
    check_model(&model, &[order, "topology.zero=3"], How::Nccl);
    check_model(&model, &[order, "topology.zero=2", "topology.zero_every=2"], How::Nccl);
}

/// The cap of the logits and the second loss, over a vocabulary that two ranks share.
#[test]
fn nccl_capped_tensor_2() {
    let capped = ["model.logit_softcap=0.3", "train.z_loss=0.1", "model.vocab=101"];
    check_model(&capped, &["topology.tensor=2"], How::Nccl);
}

fn check_model(model: &[&str], topology: &[&str], how: How) {
    let fp16 = ["precision=fp16", "loss_scale=1024"];
    let precisions: [(&[&str], f64); 3] =
        [(&["precision=f32"], 1e-5), (&["precision=bf16"], 4e-3), (&fp16, 5e-4)];
    for (precision, tolerance) in precisions {
        check_precision(&[model, precision].concat(), topology, how, tolerance);
    }
}

fn check_precision(model: &[&str], topology: &[&str], how: How, tolerance: f64) {
    let model = [&["batch.micro=2", "batch.global=8"], model].concat();
    let manifest = common::manifest(&[&model[..], topology].concat());
    let ours = outcomes(&manifest, how);
    let cpu = Cpu::new(Some(1));
    let one = train(&cpu, Groups::solo(), &common::manifest(&model), 2, |_| ());
    for (a, b) in ours.iter().zip(&one) {
        let off = |a: f64, b: f64| (a - b).abs() / b;
        assert!(off(a.loss, b.loss) <= tolerance, "{a:?}, one rank {b:?}");
        let equal = a.z_loss == b.z_loss;
        assert!(equal || off(a.z_loss, b.z_loss) <= tolerance, "{a:?}, one rank {b:?}");
        assert!(off(a.grad_norm, b.grad_norm) <= 10.0 * tolerance, "{a:?}, one rank {b:?}");
    }
    if model.contains(&"precision=bf16") {
        assert_eq!(ours, outcomes(&manifest, how), "the same grid twice");
    }
}

/// A number between two codes may go to the other one: an eighth of it.
#[test]
fn nccl_fp8() {
    for topology in [
        &["topology.tensor=2", "topology.sequence_parallel=true"][..],
        &["topology.data=2", "topology.zero=3"],
        &["topology.tensor=2", "topology.pipeline=2"],
    ] {
        check_precision(&["precision=fp8"], topology, How::Nccl, 8e-3);
    }
}

/// Stages change no bit of a loss where nothing is clipped and no embedding tied: whichever rank sent
/// which share of what they receive.
#[test]
fn nccl_stages_change_no_bit() {
    let losses = |topology: &[&str]| {
        let plain = ["optimizer.adamw.clip=0", "model.tied_head=false", "topology.tensor=2"];
        let sets = [&LEARNED[..], &plain, &["batch.global=4"], topology].concat();
        let past = on_gpus(&common::manifest(&sets), How::Nccl, 2, &|_| ());
        past.outcomes
            .iter()
            .map(|outcome| outcome.loss.to_bits())
            .collect::<Vec<_>>()
    };
    let alone = losses(&[]);
    assert_eq!(losses(&["topology.pipeline=2"]), alone);
    assert_eq!(losses(&["topology.pipeline=2", "topology.schedule=interleaved"]), alone);
    assert_eq!(losses(&["topology.pipeline=2", "topology.schedule=breadth_first"]), alone);
}

/// Outcomes of two steps.
pub fn outcomes(manifest: &Manifest, how: How) -> Vec<Outcome> {
    on_gpus(manifest, how, 2, &|_| ()).outcomes
}

/// Results of training on every rank, and the launches on the first rank's GPU in each step.
struct Past {
    outcomes: Vec<Outcome>,
    launched: Vec<Launched>,
}

/// GPUs that the ranks of a test have: of the machine, which NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks
/// share, or as many stand-ins as there are ranks.
fn gpus() -> usize {
    if softgpu::is_real() { device_count(&softgpu::gpu(0)).max(1) } else { usize::MAX }
}

/// Devices as `set` has them.
fn on_gpus(
    manifest: &Manifest,
    how: How,
    steps: usize,
    set: &(dyn Fn(&mut Options) + Sync),
) -> Past {
    let worlds = threads::world(manifest.topology.ranks());
    let all: Vec<Past> = std::thread::scope(|scope| {
        let run = |world: World| {
            scope.spawn(move || {
                let mut options = softgpu::gpu(match how {
                    How::Nccl => world.rank() % gpus(),
                    How::Staged => 0,
                });
                set(&mut options);
                let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
                let nccl = Nccl::open(&cuda, &options);
                let make = |name: &str, ranks: &[usize]| -> Box<dyn Group> {
                    match how {
                        _ if ranks.len() == 1 => Box::new(Solo),
                        How::Nccl => nccl.as_ref().unwrap().group(&world, name, ranks),
                        How::Staged => Box::new(HostStaged::new(&cuda, world.group(name, ranks))),
                    }
                };
                let groups = Groups::for_rank(world.rank(), &manifest.topology, make);
                let (mut launched, mut before) = (Vec::new(), Launched::default());
                let outcomes = train(&cuda, groups, manifest, steps, |_| {
                    let now = cuda.launched();
                    let (kernels, graphs) =
                        (now.kernels - before.kernels, now.graphs - before.graphs);
                    launched.push(Launched { kernels, graphs });
                    before = now;
                });
                Past { outcomes, launched }
            })
        };
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    });
    for past in &all {
        assert_eq!(past.outcomes, all[0].outcomes, "ranks disagree");
    }
    all.into_iter().next().unwrap()
}

/// With CUDA graphs as the variable has it.
fn with_graphs(value: &str) -> impl Fn(&mut Options) + Sync {
    move |options| options.graphs = Some(value.to_string())
}

/// Steps, each followed by `stepped`; then an evaluation.
pub fn train(
    be: &dyn Backend,
    groups: Groups,
    manifest: &Manifest,
    steps: usize,
    mut stepped: impl FnMut(usize),
) -> Vec<Outcome> {
    let (global, micro) = (manifest.batch.global, manifest.batch.micro);
    let (dp, replicas) = (groups.grad_sum.rank(), groups.grad_sum.size());
    let engine = Engine::new(be, groups, manifest, true).unwrap();
    engine.init();
    let micros = global / micro / replicas;
    let load = |first: usize| {
        let mut next = first + dp * micro;
        move |inputs: &Inputs| {
            inputs.upload(be, &batch(next, micro, global, manifest.model.seq_len));
            next += replicas * micro;
            Ok(())
        }
    };
    let step = |step: usize| {
        let outcome = engine.step(&mut load(step * global), micros, 3e-3);
        stepped(step);
        outcome.unwrap()
    };
    let mut outcomes: Vec<Outcome> = (0..steps).map(step).collect();
    let loss = engine.evaluate(&mut load(0), micros as u64).unwrap();
    outcomes.push(Outcome { loss, ..outcomes[0] });
    outcomes
}

/// Samples `first ..`, each counting 1 / `of` in the loss.
pub fn batch(first: usize, samples: usize, of: usize, seq: usize) -> Batch {
    let tokens: Vec<i32> = (first..first + samples)
        .flat_map(|s| common::tokens(1, seq, 128, s as u64))
        .collect();
    Batch::causal(&tokens, samples, first as u64, 1.0 / (of * seq) as f32)
}

const LEARNED: [&str; 4] =
    ["model.dropout=0.1", "model.layers=4", "model.seq_len=8", "batch.micro=1"];

/// From the third pass of a kind on, a GPU is asked for graphs, and for nothing else but the update.
#[test]
fn a_gpu_learns_its_passes_by_heart() {
    for sets in [
        &["precision=f32", "topology.recompute=full"][..],
        &["precision=bf16", "model.embedding_layernorm=true"],
    ] {
        let manifest = |global: &str| common::manifest(&[&LEARNED[..], &[global], sets].concat());
        let on = |global, value| on_gpus(&manifest(global), How::Nccl, 3, &with_graphs(value));
        let (four, eight) = (on("batch.global=4", "0"), on("batch.global=8", "0"));
        let [of_four, of_eight] = [&four, &eight].map(|past| past.launched[2].kernels);
        let update = 2 * of_four - of_eight;
        let heart = on("batch.global=4", "1");
        assert_eq!(heart.outcomes, four.outcomes, "{sets:?}");
        assert!(four.launched.iter().all(|step| step.graphs == 0));
        assert_eq!(heart.launched[2], Launched { kernels: update, graphs: 8 }, "{sets:?}");
        assert!(update < of_four / 4, "{update} kernels of {of_four}");
    }
}

/// Ranks give the bits they give without graphs; so many graphs are launched by the first rank in the
/// third step, of eight micro-batches.
fn learned(graphs: u64, topology: &[&str]) {
    let manifest = common::manifest(&[&LEARNED[..], &["batch.global=8"], topology].concat());
    let eagerly = on_gpus(&manifest, How::Nccl, 3, &with_graphs("0"));
    let heart = on_gpus(&manifest, How::Nccl, 3, &with_graphs("all"));
    assert_eq!(heart.outcomes, eagerly.outcomes, "{topology:?}");
    assert_eq!(heart.launched[2].graphs, graphs, "{topology:?}");
}

/// Without being told to, only where a pass has one communicator.
#[test]
fn passes_with_two_communicators_are_learned_on_demand() {
    let graphs = |topology: &[&str]| {
        let manifest = common::manifest(&[&LEARNED[..], &["batch.global=4"], topology].concat());
        on_gpus(&manifest, How::Nccl, 3, &|_| ()).launched[2].graphs
    };
    assert_eq!(graphs(&["topology.tensor=2"]), 0);
    assert_eq!(graphs(&["topology.data=2"]), 4);
}

#[test]
fn ranks_learn_their_passes_by_heart() {
    learned(16, &["topology.tensor=2", "topology.sequence_parallel=true"]);
    learned(
        16,
        &["topology.tensor=2", "topology.sequence_parallel=true", "topology.recompute=selective"],
    );
    learned(8, &["topology.data=2"]);
    learned(16, &["topology.pipeline=2"]);
}

const COMPRESSED: [&str; 2] =
    ["topology.data=2", "topology.compression={powersgd: {rank: 2, start_step: 2, min_rate: 1}}"];

/// Replicas on GPUs send what replicas on CPUs send, from the third step on; and a pass that leaves
/// gradients to be compressed is not the one that reduces them.
#[test]
fn compressed_gradients_are_those_of_cpus() {
    for sets in [&["precision=f32"][..], &["precision=fp16", "loss_scale=1024"]] {
        let manifest = common::manifest(&[&LEARNED[..], &COMPRESSED, sets].concat());
        let ours = on_gpus(&manifest, How::Nccl, 6, &with_graphs("1")).outcomes;
        assert_eq!(ours, on_gpus(&manifest, How::Nccl, 6, &with_graphs("0")).outcomes, "{sets:?}");
        let rank = |world: World| {
            let cpu = Cpu::new(Some(1));
            train(&cpu, Groups::new(&world, &manifest.topology), &manifest, 6, |_| ())
        };
        let theirs = std::thread::scope(|scope| {
            let ranks: Vec<_> = threads::world(2)
                .into_iter()
                .map(|world| scope.spawn(|| rank(world)))
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("a rank"))
                .next_back()
                .unwrap()
        });
        let tolerance = if sets.len() > 1 { 2e-3 } else { 1e-5 };
        for (a, b) in ours.iter().zip(&theirs) {
            let off = |a: f64, b: f64| (a - b).abs() / b;
            let worst = off(a.loss, b.loss).max(off(a.grad_norm, b.grad_norm) / 10.0);
            assert!(worst <= tolerance, "{a:?}, on CPUs {b:?}");
        }
    }
}

/// The first micro-batch's passes finish the gathers of the weights.
#[test]
fn ranks_that_share_the_update_learn_the_passes_after_the_first() {
    learned(6, &["topology.data=2", "topology.zero=1"]);
    learned(6, &["topology.data=2", "topology.zero=2", "precision=bf16"]);
    learned(6, &["topology.data=2", "topology.zero=3"]);
}

/// The last micro-batch's reductions overlap with the pipeline's messages; those of every
/// micro-batch at ZeRO 2, where only forward passes before the first backward are learned.
#[test]
fn a_pipeline_of_replicas_learns_the_passes_before_the_last() {
    learned(7, &["topology.data=2", "topology.pipeline=2"]);
    learned(
        10,
        &[
            "topology.data=2",
            "topology.pipeline=2",
            "topology.schedule=interleaved",
            "topology.zero=1",
            "model.layers=4",
        ],
    );
    learned(1, &["topology.data=2", "topology.pipeline=2", "topology.zero=2"]);
}

/// Those of backward, of the micro-batch after which gradients are summed, and no others; a graph holds
/// what was enqueued without it.
#[test]
fn products_leave_sms_to_sums_of_gradients() {
    let folder = tempfile::tempdir().unwrap();
    let manifest =
        common::manifest(&[&LEARNED[..], &["batch.global=4", "topology.data=2"]].concat());
    let with = |value: &'static str| {
        let set = |options: &mut Options| {
            with_graphs(value)(options);
            options.sm_margin = Some("1".to_string());
            options.tuned = Some(folder.path().to_path_buf());
        };
        on_gpus(&manifest, How::Nccl, 3, &set).outcomes
    };
    assert_eq!(with("0"), with("1"));
    let files = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().path());
    let texts = files.filter(|file| file.extension().is_some_and(|ending| ending == "txt"));
    let kept: String = texts
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let (beside, alone): (Vec<&str>, Vec<&str>) =
        kept.lines().skip(1).partition(|line| line.contains(" SMs"));
    // The micro-batches before it write what it adds to.
    let name = |line: &str| {
        let product = line.split_once(": ").unwrap().0.replace("+=", "=");
        match product.split_once(" on ") {
            Some((before, after)) => before.to_string() + after.split_once(" SMs").unwrap().1,
            None => product,
        }
    };
    let alone: Vec<String> = alone.into_iter().map(name).collect();
    let beside: Vec<String> = beside.into_iter().map(name).collect();
    assert!(!beside.is_empty() && beside.iter().all(|product| alone.contains(product)), "{kept}");
    // Forward's, in the library's order.
    assert!(!beside.iter().any(|product| product.starts_with("TN ")), "{kept}");
    assert!(alone.iter().any(|product| product.starts_with("TN ")), "{kept}");
}

/// Some of these grids on a GPU that runs one thing at a time, in the order in which its host asked: one
/// hardware queue for all streams, and one collective or message in flight in the whole GPU. What ends
/// there needs no streams that progress independently. The stand-in reads its settings once, so each is
/// a process.
#[test]
fn grids_need_no_second_queue() {
    softgpu::folder(); // compiled once, before the processes ask for it
    let strict = |test: &str, more: [(&str, &str); 2]| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let name = format!("grids_cuda::{test}");
        command.args(["--exact", &name, "--include-ignored", "--nocapture"]);
        command
            .env("SOFTGPU_QUEUES", "1")
            .env("SOFTGPU_NCCL_SERIAL", "1")
            .envs(more);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let patient = [("SOFTGPU_PATIENCE", "120"), ("SOFTGPU_SEED", "0")];
    let tests = ["nccl_data_2_zero_3", "nccl_stages_change_no_bit", "nccl_all_three"];
    let started = tests.map(|test| (test, strict(test, patient)));
    let hangs = strict("messages_that_overlap", [("SOFTGPU_PATIENCE", "2"), ("SOFTGPU_SEED", "0")]);
    let end = |child: Child| {
        let output = child.wait_with_output().expect("it ends");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (test, child) in started {
        let (well, said) = end(child);
        assert!(well, "{test}: {said}");
    }
    let (well, said) = end(hangs);
    assert!(
        !well && said.contains("every stream waits for an operation that no stream runs"),
        "{said}"
    );
}

/// Begun messages have no common order, and hang on a GPU with one queue.
#[test]
#[ignore = "is a part of the test before it"]
fn messages_that_overlap() {
    let overlap = ["topology={pipeline: 2, schedule: interleaved, overlap_p2p: true}"];
    let manifest = common::manifest(&[&LEARNED[..], &["batch.global=4"], &overlap].concat());
    on_gpus(&manifest, How::Nccl, 4, &|_| ());
}
