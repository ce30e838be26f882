//! Memory of imports and conversions: bounded by the largest parameter, not by the model. Folders of the formats
//! that gptrain does not write are made here.

use crate::common::binary::{Done, Lab};
use gptrain::exchange::torch::{Element, Out, Stored, TorchWriter};
use std::fs;
use std::path::Path;

/// Most that a command took.
struct Watched {
    /// Resident memory.
    memory: u64,
    /// Bytes that it wrote.
    written: u64,
}

/// Runs a command without a folder for temporary files, and reads what the system counts of it.
fn watch(lab: &Lab, args: &[&str]) -> Watched {
    let mut command = lab.command(args);
    let mut child = command.env("TMPDIR", "/nonexistent").spawn().unwrap();
    let mut watched = Watched { memory: 0, written: 0 };
    loop {
        let number = |file: &str, name: &str| {
            let text = fs::read_to_string(format!("/proc/{}/{file}", child.id())).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        watched.memory = watched
            .memory
            .max(1024 * number("status", "VmHWM:").unwrap_or(0));
        watched.written = watched.written.max(number("io", "wchar:").unwrap_or(0));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Done::of(child.wait_with_output().unwrap()).well();
    watched
}

fn size(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        bytes += if path.is_dir() { size(&path) } else { fs::metadata(&path).unwrap().len() };
    }
    bytes
}

/// Settings of a model of 8 million parameters, of which the embedding has 6.
const LARGE: [&str; 4] =
    ["model.hidden=256", "model.layers=2", "model.vocab=24576", "precision=bf16"];
const EMBEDDING: u64 = 24576 * 256;
const TINY_SHAPE: Shape = Shape { vocab: 64, hidden: 32, layers: 2 };
const LARGE_SHAPE: Shape = Shape { vocab: 24576, hidden: 256, layers: 2 };

/// Memory beside the largest parameter, beyond that of a tiny model.
const CONSTANT: u64 = 20 << 20;

/// A command, and the bytes of memory for each value of the largest parameter.
type Case = (&'static [&'static str], u64);

/// Conversions, in an order in which each has its folder.
const WRITTEN_BY_GPTRAIN: [Case; 8] = [
    (&["convert", "runs/a", "hf", "--to", "hf"], 4),
    (&["convert", "runs/a", "megatron", "--to", "megatron"], 4),
    (&["convert", "runs/a", "universal", "--to", "deepspeed-universal"], 4),
    (&["convert", "megatron", "two", "--to", "megatron", "--tensor", "2"], 4),
    (&["convert", "hf", "from-hf", "--to", "megatron"], 4),
    (&["import", "two", "--output", "runs/two"], 6),
    (&["import", "universal", "--output", "runs/universal"], 6),
    (&["import", "hf", "--output", "runs/hf"], 6),
];

const WRITTEN_HERE: [Case; 6] = [
    (&["import", "zero1/global_step1", "--output", "runs/zero1"], 6),
    (&["convert", "zero1/global_step1", "from-zero1", "--to", "hf"], 4),
    (&["import", "zero3/global_step1", "--output", "runs/zero3"], 6),
    (&["convert", "zero3/global_step1", "from-zero3", "--to", "deepspeed-universal"], 4),
    (&["import", "titan/step-1", "--output", "runs/titan"], 6),
    (&["convert", "titan/step-1", "from-titan", "--to", "megatron"], 4),
];

/// Memory is bounded by the largest parameter, not by the model, whose states are four times as large; the
/// disk has the target alone.
#[test]
fn one_parameter_is_in_memory_and_one_copy_on_the_disk() {
    let tiny = Lab::new();
    let large = Lab::new();
    for (lab, sets) in [(&tiny, &["precision=bf16"][..]), (&large, &LARGE)] {
        lab.run(&[sets, &["train.steps=1"]].concat()).well();
    }
    WRITTEN_BY_GPTRAIN
        .iter()
        .for_each(|case| holds_one_parameter(&tiny, &large, case));
}

#[test]
fn one_parameter_of_partitions_and_distributed_checkpoints_is_in_memory() {
    let tiny = Lab::new();
    let large = Lab::new();
    for (lab, shape) in [(&tiny, TINY_SHAPE), (&large, LARGE_SHAPE)] {
        shape.write_zero1(&lab.path("zero1/global_step1"));
        shape.write_zero3(&lab.path("zero3/global_step1"));
        shape.write_titan(&lab.path("titan/step-1"));
    }
    WRITTEN_HERE
        .iter()
        .for_each(|case| holds_one_parameter(&tiny, &large, case));
}

/// Compares a command on the large model with the same on the tiny one.
fn holds_one_parameter(tiny: &Lab, large: &Lab, (command, bytes): &Case) {
    let mut args = command.to_vec();
    if args[1].starts_with("titan") {
        args.extend(TITAN_SETS.iter().flat_map(|set| ["--set", set]));
    }
    let constant = watch(tiny, &args).memory;
    let watched = watch(large, &args);
    let to = if args[0] == "import" { args[3] } else { args[2] };
    let target = size(&large.path(to));
    let memory = watched.memory.saturating_sub(constant);
    let written = watched.written;
    println!("{command:?}: {} MiB beyond {} MiB", memory >> 20, constant >> 20);
    assert!(memory > 2 * EMBEDDING, "{command:?}: the measurement sees the embedding: {memory}");
    assert!(memory < bytes * EMBEDDING + CONSTANT, "{command:?}: {memory} bytes");
    let most = target + target / 50 + (1 << 20);
    assert!(written < most, "{command:?}: {written} bytes are written for {target}");
}

/// Settings that torchtitan's files do not have.
const TITAN_SETS: [&str; 8] = [
    "model.heads=4",
    "model.seq_len=16",
    "model.position.rope.theta=500",
    "batch.global=8",
    "lr.warmup_samples=16",
    "lr.decay=constant",
    "train.steps=100",
    "data.train=corpus",
];

/// Shape of a model whose states are all the same number.
#[derive(Clone, Copy)]
struct Shape {
    vocab: usize,
    hidden: usize,
    layers: usize,
}

/// A parameter's name and shape.
type Param = (String, Vec<usize>);

/// States of a parameter, and how Adam calls the moments.
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

impl Shape {
    /// Names of BLOOM's parameters in Megatron-DeepSpeed: of the embedding, of a layer, of the final norm.
    fn bloom(&self, embed: &str, layer: &dyn Fn(usize) -> String, norm: &str) -> Vec<Param> {
        let Shape { vocab, hidden, layers } = *self;
        let mut params = vec![
            (format!("{embed}.weight"), vec![vocab, hidden]),
            (format!("{embed}.norm.weight"), vec![hidden]),
            (format!("{embed}.norm.bias"), vec![hidden]),
        ];
        for number in 0..layers {
            for (name, rows, cols) in [
                ("self_attention.query_key_value", 3, 1),
                ("self_attention.dense", 1, 1),
                ("mlp.dense_h_to_4h", 4, 1),
                ("mlp.dense_4h_to_h", 1, 4),
            ] {
                let name = format!("{}.{name}", layer(number));
                params.push((format!("{name}.weight"), vec![rows * hidden, cols * hidden]));
                params.push((format!("{name}.bias"), vec![rows * hidden]));
            }
            for name in ["input_layernorm", "post_attention_layernorm"] {
                let name = format!("{}.{name}", layer(number));
                params.push((format!("{name}.weight"), vec![hidden]));
                params.push((format!("{name}.bias"), vec![hidden]));
            }
        }
        params.push((format!("{norm}.weight"), vec![hidden]));
        params.push((format!("{norm}.bias"), vec![hidden]));
        params
    }

    fn args(&self) -> Out {
        let number = |number: usize| Out::from(number);
        let hidden = self.hidden;
        let args = [
            ("num_layers", number(self.layers)),
            ("hidden_size", number(hidden)),
            ("num_attention_heads", number(4)),
            ("kv_channels", number(hidden / 4)),
            ("ffn_hidden_size", number(4 * hidden)),
            ("seq_length", number(16)),
            ("max_position_embeddings", number(16)),
            ("padded_vocab_size", number(self.vocab)),
            ("make_vocab_size_divisible_by", number(1)),
            ("position_embedding_type", Out::from("alibi")),
            ("embed_layernorm", Out::from(true)),
            ("layernorm_epsilon", Out::from(1e-5)),
            ("init_method_std", Out::from(0.02)),
            ("hidden_dropout", Out::from(0.0)),
            ("attention_dropout", Out::from(0.0)),
            ("openai_gelu", Out::from(false)),
            ("bias_gelu_fusion", Out::from(true)),
            ("micro_batch_size", number(2)),
            ("global_batch_size", number(8)),
            ("train_samples", number(160)),
            ("lr", Out::from(1e-2)),
            ("min_lr", Out::from(1e-3)),
            ("lr_decay_style", Out::from("cosine")),
            ("lr_decay_samples", number(160)),
            ("lr_warmup_samples", number(16)),
            ("optimizer", Out::from("adam")),
            ("adam_beta1", Out::from(0.9)),
            ("adam_beta2", Out::from(0.95)),
            ("adam_eps", Out::from(1e-8)),
            ("weight_decay", Out::from(0.1)),
            ("clip_grad", Out::from(1.0)),
            ("bf16", Out::from(true)),
            ("seed", number(42)),
            ("data_path", Out::List(vec![Out::from("corpus")])),
            ("split", Out::from("100,0,0")),
            ("tensor_model_parallel_size", number(1)),
            ("pipeline_model_parallel_size", number(1)),
            ("consumed_train_samples", number(8)),
        ];
        Out::Namespace(args.map(|(name, value)| (name.to_string(), value)).to_vec())
    }

    /// Arguments, step, and names and shapes of the groups.
    fn write_model(&self, path: &Path, groups: &[Vec<Param>]) {
        let sizes =
            |shape: &[usize]| Out::List(shape.iter().map(|size| Out::from(*size)).collect());
        let mut shapes = Vec::new();
        for group in groups {
            shapes.push(Out::named(
                group
                    .iter()
                    .map(|(name, shape)| (name.as_str(), sizes(shape))),
            ));
        }
        let root = Out::named([
            ("args", self.args()),
            ("iteration", Out::from(1usize)),
            ("checkpoint_version", Out::from(3.0)),
            ("param_shapes", Out::List(shapes)),
        ]);
        TorchWriter::create(path, &root).unwrap().finish().unwrap();
    }

    /// ZeRO-1 on one tensor rank and two data ranks.
    fn write_zero1(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let groups = groups(self.bloom(
            "tied_modules.embed.word_embeddings",
            &|layer| format!("{}", layer + 3),
            &format!("{}", self.layers + 4),
        ));
        self.write_model(&folder.join("mp_rank_00_model_states.pt"), &groups);
        let halves: Vec<usize> = groups
            .iter()
            .map(|group| elements(group, 1).div_ceil(2))
            .collect();
        for data in 0..2 {
            let path = folder.join(format!("bf16_zero_pp_rank_{data}_mp_rank_00_optim_states.pt"));
            write_optimizer(&path, &halves, |masters, base| {
                Out::named([
                    ("single_partition_of_fp32_groups", masters),
                    ("base_optimizer_state", base),
                ])
            });
        }
    }

    /// ZeRO-3 on one tensor rank and two data ranks.
    fn write_zero3(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let groups = groups(self.bloom(
            "language_model.embedding.word_embeddings",
            &|layer| format!("language_model.encoder.layers.{layer}"),
            "language_model.encoder.final_layernorm",
        ));
        let parts: Vec<usize> = groups.iter().map(|group| elements(group, 2)).collect();
        for data in 0..2 {
            let ranks = format!("zero_pp_rank_{data}_mp_rank_00");
            self.write_model(&folder.join(format!("{ranks}_model_states.pt")), &groups);
            let path = folder.join(format!("bf16_{ranks}_optim_states.pt"));
            write_optimizer(&path, &parts, |masters, base| {
                Out::named([
                    ("fp32_flat_groups", masters),
                    ("optimizer_state_dict", base),
                    ("partition_count", Out::from(2usize)),
                ])
            });
        }
    }

    /// torchtitan's Llama with an untied head, by one process.
    fn write_titan(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let Shape { vocab, hidden, layers } = *self;
        let mut params = vec![
            ("tok_embeddings.weight".to_string(), vec![vocab, hidden]),
            ("norm.weight".to_string(), vec![hidden]),
            ("output.weight".to_string(), vec![vocab, hidden]),
        ];
        for layer in 0..layers {
            let layer = |name: &str| format!("layers.{layer}.{name}.weight");
            for name in ["wq", "wk", "wv", "wo"] {
                params.push((layer(&format!("attention.{name}")), vec![hidden, hidden]));
            }
            params.push((layer("feed_forward.w1"), vec![2 * hidden, hidden]));
            params.push((layer("feed_forward.w3"), vec![2 * hidden, hidden]));
            params.push((layer("feed_forward.w2"), vec![hidden, 2 * hidden]));
            params.push((layer("attention_norm"), vec![hidden]));
            params.push((layer("ffn_norm"), vec![hidden]));
        }
        let mut table = DcpTable { folder, tensors: Vec::new(), items: Vec::new() };
        table.add_object("train_state.step", &Out::from(1usize));
        for (name, shape) in &params {
            table.add_tensor(name, shape);
            for moment in MOMENTS {
                table.add_tensor(&format!("optimizer.state.{name}.{moment}"), shape);
            }
            table.add_object(&format!("optimizer.state.{name}.step"), &Out::from(1.0));
            let group = format!("optimizer.param_groups.{name}");
            table.add_object(&format!("{group}.lr"), &Out::from(1e-3));
            table.add_object(&format!("{group}.initial_lr"), &Out::from(1e-3));
            let betas = Out::List(vec![Out::from(0.9), Out::from(0.95)]);
            table.add_object(&format!("{group}.betas"), &betas);
            table.add_object(&format!("{group}.eps"), &Out::from(1e-8));
            table.add_object(&format!("{group}.weight_decay"), &Out::from(0.1));
        }
        table.write();
    }
}

/// Matrices, which decay, and the rest.
fn groups(params: Vec<Param>) -> [Vec<Param>; 2] {
    let (matrices, rest) = params.into_iter().partition(|(_, shape)| shape.len() == 2);
    [matrices, rest]
}

/// Elements of a rank's part of a group, whose parameters are cut for so many ranks.
fn elements(group: &[Param], ranks: usize) -> usize {
    let numel = |shape: &[usize]| shape.iter().product::<usize>();
    group
        .iter()
        .map(|(_, shape)| numel(shape).div_ceil(ranks))
        .sum()
}

/// Writes a file with flat tensors of f32, one for each state of each group. `dict` gets the masters, and
/// PyTorch's part of the optimizer.
fn write_optimizer(path: &Path, groups: &[usize], dict: impl Fn(Out, Out) -> Out) {
    let tensor = |group: usize, state: usize| {
        let shape = vec![groups[group]];
        Out::Tensor(Stored { key: 3 * group + state, element: Element::F32, shape })
    };
    let mut masters = Vec::new();
    let mut states = Vec::new();
    for group in 0..groups.len() {
        masters.push(tensor(group, 0));
        let moments = [1, 2].map(|state| (MOMENTS[state - 1], tensor(group, state)));
        states.push((Out::from(group), Out::named(moments)));
    }
    let numbers = [("lr", Out::from(1e-3)), ("step", Out::from(1usize))];
    let base = Out::named([
        ("state", Out::Dict(states)),
        ("param_groups", Out::List(vec![Out::named(numbers)])),
    ]);
    let root = Out::named([("optimizer_state_dict", dict(Out::List(masters), base))]);
    let mut writer = TorchWriter::create(path, &root).unwrap();
    for (group, elements) in groups.iter().enumerate() {
        for state in 0..3 {
            let values = vec![0.01f32; *elements];
            writer
                .storage(3 * group + state, bytemuck::cast_slice(&values))
                .unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Items of a distributed checkpoint, each in a file of its own, and its `.metadata`.
struct DcpTable<'f> {
    folder: &'f Path,
    /// Names and shapes; None of an object.
    tensors: Vec<(String, Option<Vec<usize>>)>,
    /// Files, and their bytes.
    items: Vec<(String, u64)>,
}

impl DcpTable<'_> {
    fn add(&mut self, name: &str, shape: Option<&[usize]>, root: &Out) {
        let file = format!("__0_{}.distcp", self.items.len());
        let mut writer = TorchWriter::create(&self.folder.join(&file), root).unwrap();
        if let Some(shape) = shape {
            let values = vec![0.01f32; shape.iter().product()];
            writer.storage(0, bytemuck::cast_slice(&values)).unwrap();
        }
        self.items.push((file, writer.finish().unwrap()));
        self.tensors
            .push((name.to_string(), shape.map(<[usize]>::to_vec)));
    }

    fn add_object(&mut self, name: &str, value: &Out) {
        self.add(name, None, value);
    }

    fn add_tensor(&mut self, name: &str, shape: &[usize]) {
        let stored = Stored { key: 0, element: Element::F32, shape: shape.to_vec() };
        self.add(name, Some(shape), &Out::Tensor(stored));
    }

    /// `.metadata`, a pickle: its one class is that of a tensor.
    fn write(&self) {
        let mut pickle = vec![0x80, 2];
        let mut tensors = Vec::new();
        let mut storage = Vec::new();
        for ((name, shape), (file, bytes)) in self.tensors.iter().zip(&self.items) {
            let offset = shape.as_ref().map(|shape| vec![0; shape.len()]);
            let mut index = vec![("fqn", text(name))];
            index.extend(offset.as_ref().map(|offset| ("offset", list(offset))));
            let place = [
                ("relative_path", text(file)),
                ("offset", whole(0)),
                ("length", whole(*bytes as usize)),
            ];
            storage.push((dict(&index), dict(&place)));
            let about = match (shape, offset) {
                (Some(shape), Some(offset)) => {
                    let chunk = dict(&[("offsets", list(&offset)), ("sizes", list(shape))]);
                    let chunks = [&b"]("[..], &chunk, b"e"].concat();
                    let state = dict(&[("size", list(shape)), ("chunks", chunks)]);
                    let class =
                        b"ctorch.distributed.checkpoint.metadata\nTensorStorageMetadata\n)\x81";
                    [&class[..], &state, b"b"].concat()
                }
                _ => dict(&[]),
            };
            tensors.push((text(name), about));
        }
        pickle.extend(dict(&[
            ("state_dict_metadata", pairs(&tensors)),
            ("storage_data", pairs(&storage)),
        ]));
        pickle.push(b'.');
        fs::write(self.folder.join(".metadata"), pickle).unwrap();
    }
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn whole(number: usize) -> Vec<u8> {
    [&[0x8a, 8][..], &(number as u64).to_le_bytes()].concat()
}

fn list(numbers: &[usize]) -> Vec<u8> {
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| whole(*number)).collect();
    [&b"]("[..], &numbers, b"e"].concat()
}

fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    pairs(
        &entries
            .iter()
            .map(|(key, value)| (text(key), value.clone()))
            .collect::<Vec<_>>(),
    )
}

fn pairs(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    [
        &b"}("[..],
        &entries
            .iter()
            .flat_map(|(key, value)| [&key[..], value].concat())
            .collect::<Vec<_>>(),
        b"u",
    ]
    .concat()
}
