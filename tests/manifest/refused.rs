//! Every complaint, word by word.

use crate::{GOOD, check, check_added, check_set, check_whole, complaints, read};
use gptrain::manifest;
use std::path::Path;

#[test]
fn values_of_the_wrong_kind_say_what_was_found_and_what_is_taken() {
    check("  layers: twelve", "m.yaml:3: model.layers is \"twelve\" → it takes a whole number");
    check(
        "  layers: 0",
        "m.yaml:3: model.layers is 0; the least is 1 → give a number from 1 to 10000",
    );
    check(
        "  layers: -6",
        "m.yaml:3: model.layers is -6; the least is 1 → give a number from 1 to 10000",
    );
    check(
        "  layers: 6.5",
        "m.yaml:3: model.layers is 6.5, not a whole number → write it without a fraction",
    );
    check("  layers: \"6\"", "m.yaml:3: model.layers is the text \"6\" → remove the quotes");
    check(
        "  layers: 010",
        "m.yaml:3: model.layers is 010, which some read as octal or hexadecimal → write a plain \
         decimal number",
    );
    check(
        "  seq_len: 0x80",
        "m.yaml:7: model.seq_len is 0x80, which some read as octal or hexadecimal → write a plain \
         decimal number",
    );
    check("  layers: [6]", "m.yaml:3: model.layers is a list → it takes a whole number");
    check("  layers: {n: 6}", "m.yaml:3: model.layers is a section → it takes a whole number");
    check(
        "  layers:",
        "m.yaml:3: model.layers is missing → add `layers:` (Transformer blocks (Megatron's \
         --num-layers))",
    );
    check(
        "  peak: 1e309",
        "m.yaml:14: lr.peak is 1e309, too large for a number → give a smaller number",
    );
    check("  peak: .nan", "m.yaml:14: lr.peak is .nan, not a finite number → give a number");
    check("  peak: nan", "m.yaml:14: lr.peak is \"nan\" → it takes a number");
    check(
        "  peak: -1",
        "m.yaml:14: lr.peak is -1; the least is 0.0 → give a number from 0.0 to 1000.0",
    );
    check_added(
        "precision: bf61",
        "m.yaml:17: precision is \"bf61\" → did you mean bf16? It takes f32, tf32, bf16, fp16, fp8",
    );
    check_added(
        "log: {tensorboard: no}",
        "m.yaml:17: log.tensorboard is \"no\" → write false (without quotes)",
    );
    check_added(
        "log: {tensorboard: maybe}",
        "m.yaml:17: log.tensorboard is \"maybe\" → it takes true or false",
    );
    check_added(
        "topology: 4",
        "m.yaml:17: topology is \"4\" → it takes a section with keys chunks, \
         compression, data, layer_split, neighbours, offload, overlap_p2p, pipeline, recompute, schedule, \
         sequence_parallel, shard, states, tensor, zero, zero_every",
    );
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    check_added("precison: f32", "m.yaml:17: unknown key precison → did you mean precision?");
    check_added(
        "  smaples: 5",
        "m.yaml:17: unknown key train.smaples → did you mean train.samples?",
    );
    check_added("n_layer: 5", "m.yaml:17: unknown key n_layer → did you mean model.layers?");
    check_added("seq_len: 5", "m.yaml:17: unknown key seq_len → did you mean model.seq_len?");
    check_added(
        "--global-batch-size: 5",
        "m.yaml:17: unknown key --global-batch-size → did you mean \
         batch.global?",
    );
    check_added(
        "log: {colour: x}",
        "m.yaml:17: unknown key log.colour → log has the \
         keys folder, format, interval, on_event, params_norm, \
         peak_tflops, prometheus, simple_tflops, tensorboard, zeros",
    );
    check_set("modl.layers=3", "--set modl.layers: unknown key modl → did you mean model?");
    check_set("lr.peek=3", "--set lr.peek: unknown key lr.peek → did you mean lr.peak?");
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_the_numbers() {
    check(
        "  heads: 7",
        "m.yaml:4: model.hidden 256 is not a multiple of model.heads 7 → set model.hidden to 252 or \
         259, or model.heads to 4 or 8",
    );
    check_set(
        "model.heads=7",
        "--set model.heads: model.hidden 256 is not a multiple of model.heads 7 → set model.hidden \
         to 252 or 259, or model.heads to 4 or 8",
    );
    check(
        "  global: 20",
        "m.yaml:12: batch.global 20 is not a multiple of batch.micro 8 → set batch.global to 16 or \
         24, or set batch.micro to 5",
    );
    check_added(
        "topology: {tensor: 3}",
        "m.yaml:17: model.heads 8 is not divisible by topology.tensor 3 → set topology.tensor to 2 or 4",
    );
    check_added(
        "topology: {pipeline: 64}",
        "m.yaml:17: topology.pipeline 64 needs more layers than model.layers 6 → set \
         topology.pipeline to 6 or less",
    );
    check_added(
        "topology: {pipeline: 4}",
        "m.yaml:17: model.layers 6 is not divisible by topology.pipeline 4 → set topology.layer_split \
         to transformer_and_embedding or balanced",
    );
    check_added(
        "topology: {pipeline: 3, layer_split: [2, 2, 1]}",
        "m.yaml:17: topology.layer_split holds 5 layers, model.layers is 6 → make the numbers add up",
    );
    check_added(
        "topology: {pipeline: 3, layer_split: [3, 0, 3]}",
        "m.yaml:17: a stage between the first and the last has no layer → give it one: only the stages of \
         the embedding and of the head may have none",
    );
    check_added(
        "topology: {pipeline: 8}",
        "m.yaml:17: topology.pipeline 8 needs more layers than model.layers 6 → set topology.layer_split \
         to transformer_and_embedding: embedding and head are stages of their own",
    );
    check_added(
        "topology: {pipeline: 3, layer_split: [3, 3]}",
        "m.yaml:17: topology.layer_split has 2 entries for topology.pipeline 3 → give 3 numbers of \
         layers",
    );
    check_added(
        "topology: {pipeline: 3, layer_split: transformer_and_embedding}",
        "m.yaml:17: model.layers 6 + 2 (embedding and head) = 8 is not divisible by topology.pipeline 3 \
         → set topology.layer_split to balanced",
    );
    check_added(
        "topology: {pipeline: 3, schedule: interleaved}",
        "m.yaml:17: schedule: interleaved takes 24 samples at a time (micro 8 × data 1 × pipeline \
         3); a global batch of 16 is not divisible by it → use multiples of 24, or 1f1b",
    );
    check_added(
        "topology: {pipeline: 2, zero: 3}",
        "m.yaml:17: topology.zero 3 with topology.pipeline 2 and schedule: 1f1b: a stage would gather \
         its weights twice for each micro-batch, which costs more traffic than the memory is worth → \
         set topology.zero to 2, which shards gradients and optimizer states, topology.pipeline to 1, or \
         topology.schedule to breadth_first with topology.chunks of 3 or more, which gathers a chunk \
         twice per step",
    );
    check_added(
        "topology: {pipeline: 2, zero: 3, schedule: breadth_first, layer_split: balanced}",
        "m.yaml:17: topology.zero 3 with topology.chunks 2: the weights of two chunks are whole at a \
         time, so nothing is saved → set topology.chunks to 3 or more, or topology.zero to 2",
    );
    check_added(
        "topology: {schedule: breadth_first}",
        "m.yaml:17: schedule: breadth_first needs at least 2 pipeline stages → set topology.schedule to \
         1f1b",
    );
    check_added(
        "topology: {data: 2, zero: 1, zero_every: 4}",
        "m.yaml:17: topology.zero_every 4 with topology.zero 1, which sums gradients over replicas once \
         per step → set topology.zero to 2, or remove topology.zero_every",
    );
    check_added(
        "topology: {pipeline: 2, data: 2, zero: 2, zero_every: 4}",
        "m.yaml:17: topology.zero_every 4 with schedule: 1f1b: the gradients of all blocks of a stage \
         would be whole at a time, as at topology.zero 1 → set topology.schedule to breadth_first in a \
         pipeline, or topology.zero to 1, or remove topology.zero_every",
    );
    check_added(
        "topology: {data: 2, zero: 2, compression: powersgd}",
        "m.yaml:17: topology.compression powersgd with topology.zero 2: every replica keeps an error \
         of 4 bytes for each of its parameters, as much as the gradients that ZeRO 2 shares → set \
         topology.zero to 1, or topology.compression to none",
    );
    check_added(
        "topology: {data: 2, compression: powersgd}\ncheckpoint: {memory_interval: 5}",
        "m.yaml:18: checkpoint.memory_interval with topology.compression: a save averages the errors \
         of compression, so losses would depend on which saves are skipped → remove one of them",
    );
    check_added(
        "checkpoint: {memory_folder: /dev/shm}",
        "m.yaml:17: nothing is saved in checkpoint.memory_folder \"/dev/shm\" → set \
         checkpoint.memory_interval: 10, or remove it",
    );
    check_added(
        "checkpoint: {memory_interval: 5, memory_folder: memory}",
        "m.yaml:17: checkpoint.memory_folder \"memory\" is not an absolute path → name a folder that \
         every node has in memory, such as /dev/shm",
    );
    check_added(
        "topology: {data: 2, offload: full, compression: powersgd}",
        "m.yaml:17: topology.compression powersgd with topology.offload full: every replica keeps an \
         error of 4 bytes for each of its parameters on the device, twice the weights that offload \
         takes away → set topology.offload to optimizer, or topology.compression to none",
    );
    check_added(
        "topology: {compression: {powersgd: {rank: 33}}}",
        "m.yaml:17: topology.compression.powersgd.rank is 33; the most is 32 → give a number from 1 \
         to 32",
    );
    check_added(
        "topology: {chunks: 2}",
        "m.yaml:17: topology.chunks is only for schedule: interleaved and breadth_first → set \
         topology.schedule to interleaved, or remove it",
    );
}

#[test]
fn interleaving_is_checked_at_every_stage_of_a_ramp_up() {
    let sets = [
        "topology={pipeline: 2, schedule: interleaved, layer_split: balanced}",
        "batch={micro: 2, global: 16, ramp_up: 4 2 1000}",
    ];
    let complaint = complaints(GOOD, &sets);
    let expected = "schedule: interleaved takes 4 samples at a time (micro 2 × data 1 × pipeline \
                    2); a global batch of 6 (and 2 more of the ramp-up) is not divisible by it → use \
                    multiples of 4, or 1f1b";
    assert!(complaint.ends_with(expected), "{complaint}");
}

/// The 102 of 108 heads story: formulas of the 48-node search, each a line.
#[test]
fn topologies_of_the_search_are_told_apart() {
    let try_cut = |layers: usize, pipeline: usize, split: &str| {
        let layers = format!("model.layers={layers}");
        let topology = format!("topology={{pipeline: {pipeline}, layer_split: {split}}}");
        complaints(GOOD, &[&layers, &topology]) == "accepted"
    };
    for (layers, pipeline) in [(94, 24), (106, 12), (100, 6), (82, 12), (94, 12), (70, 12)] {
        assert!(try_cut(layers, pipeline, "transformer_and_embedding"), "{layers} over {pipeline}");
    }
    assert!(!try_cut(78, 12, "uniform") && !try_cut(78, 12, "transformer_and_embedding"));
    assert!(try_cut(78, 12, "balanced"));
    assert!(!try_cut(32, 64, "balanced"));
    check_set("model={layers: 2, hidden: 1080, heads: 108, vocab: 99, seq_len: 8}", "accepted");
    let sets =
        ["model={layers: 2, hidden: 1080, heads: 108, vocab: 99, seq_len: 8}", "topology.tensor=8"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set topology.tensor: model.heads 108 is not divisible by topology.tensor 8 → set \
         topology.tensor to 6 or 9"
    );
}

#[test]
fn a_ramp_up_is_checked_at_every_stage_up_front() {
    check_set(
        "batch.ramp_up=16 16",
        "--set batch.ramp_up: batch.ramp_up \"16 16\" is not START \
         INCREMENT SAMPLES → write three whole numbers, such as 16 16 9_765_625",
    );
    check_set(
        "batch.ramp_up=32 16 100",
        "--set batch.ramp_up: the ramp-up starts at 32, above \
         batch.global → start at 16 or less",
    );
    check_set(
        "batch.ramp_up=8 3 100",
        "--set batch.ramp_up: the ramp-up cannot reach batch.global \
         16: 16 − 8 = 8 is not a multiple of the increment 3 → take an increment that divides 8",
    );
    check_set(
        "batch.ramp_up=8 4 100",
        "--set batch.ramp_up: in 1 of its 3 stages the ramp-up's \
         global batch is not a multiple of batch.micro 8: 12 → make start and increment multiples of 8, \
         or set batch.micro to 4",
    );
    check_set("batch={micro: 2, global: 2048, ramp_up: 16 8 9_765_625}", "accepted");
    let sets = ["batch={micro: 2, global: 2048, ramp_up: 16 8 9_765_625}", "topology.data=8"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set batch: in 127 of its 255 stages the ramp-up's global batch is not a multiple of \
         batch.micro 2 × topology.data 8 = 16: 24, 40, 56, 72, 88, 104, 120, 136, … 2040 → make start \
         and increment multiples of 16, or set batch.micro to 1"
    );
    check_set(
        "batch={micro: 2, global: 2048, ramp_up: {start: 24, samples: 5}}",
        "--set batch: \
         batch.ramp_up.increment is missing → add `increment:` (Samples added at each growth; global \
         − start must be divisible by it)",
    );
}

#[test]
fn lengths_and_learning_rates_must_make_sense() {
    check(
        "  samples: 15",
        "m.yaml:16: train.samples 15 is less than one step of 16 → train for at \
         least 16 samples",
    );
    check_added(
        "  tokens: 5",
        "m.yaml:15: the run's length is given more than once → keep one of \
         train.samples, train.tokens, train.steps",
    );
    check_whole(
        &GOOD.replace("  samples: 6400\n", "  tokens: 1000\n"),
        "m.yaml:16: train.tokens \
         1000 is 8 samples, less than one step of 16 → train for at least 16 samples",
    );
    check_whole(
        &GOOD.replace("train:\n  samples: 6400\n", "train: {seed: 1}\n"),
        "m.yaml:15: the \
         run's length is missing → add train.samples, train.tokens or train.steps",
    );
    check_set(
        "lr.min=1",
        "--set lr.min: lr.min 1 is above lr.peak 0.001 → set lr.min to lr.peak or \
         less",
    );
    check_set(
        "lr={peak: 1, min: 0.1, decay: constant}",
        "--set lr: lr.min 0.1 is never reached: \
         lr.decay is constant → remove lr.min, or choose another lr.decay",
    );
    check_set(
        "lr={peak: 1, warmup_samples: 9, warmup_tokens: 9}",
        "--set lr: lr.warmup_tokens and \
         lr.warmup_samples are both given → keep one of them",
    );
    check_set(
        "lr={peak: 1, warmup_samples: 9, decay: {linear: {samples: 9}}}",
        "--set lr: the \
         warm-up takes 9 samples, and lr.decay ends at 9 → shorten the warm-up or lengthen lr.decay",
    );
    check_set(
        "lr={peak: 1, warmup_samples: 6000, decay: {wsd: {decay_samples: 500}}}",
        "--set lr: \
         the warm-up takes 6,000 samples, and the decay begins at 5,900 → shorten the warm-up or \
         lengthen lr.decay",
    );
    check_set(
        "lr={peak: 1, decay: {wsd: {decay_samples: 7000}}}",
        "--set lr: lr.decay.wsd: a decay \
         of 7,000 samples cannot end at 6,400 → shorten the decay",
    );
    check_set(
        "lr={peak: 1, decay: {cosine: {}, linear: {}}}",
        "--set lr: lr.decay has more than one \
         shape → keep one",
    );
    check_set(
        "lr={peak: 1, decay: {}}",
        "--set lr: lr.decay names no shape → take constant, linear, \
         cosine or wsd",
    );
    check_set("train.eval_interval=0", "accepted");
}

#[test]
fn stages_of_the_data_are_in_order_and_within_the_run() {
    let stages = |stages: &str, complaint: &str| {
        check_whole(&GOOD.replace("batch:", &format!("  stages: {stages}\nbatch:")), complaint);
    };
    stages("[{from_samples: 6399, train: b}]", "accepted");
    stages(
        "[{from_samples: 6400, train: b}]",
        "m.yaml:10: data.stages.0 begins at sample 6,400; the run ends at 6,400 → begin earlier, or \
         train longer",
    );
    stages(
        "[{from_samples: 20, train: b}, {from_tokens: 2560, train: c}]",
        "m.yaml:10: data.stages.1 begins at sample 20, the stage before it at 20 → write the stages \
         in the order they begin",
    );
    stages(
        "[{train: b}]",
        "m.yaml:10: data.stages.0 does not say where it begins → add from_samples or from_tokens",
    );
    stages(
        "[{from_samples: 20, from_tokens: 20, train: b}]",
        "m.yaml:10: data.stages.0.from_tokens and data.stages.0.from_samples are both given → keep \
         one of them",
    );
    stages(
        "[{from_samples: 20}]",
        "m.yaml:10: data.stages.0.train is missing → add `train:` (Prefix, or list of \
         datasets with weights, as in data.train)",
    );
    check(
        "  train: corpus/a\n  seed: 4294967296",
        "m.yaml:10: data.seed is 4294967296; the most is 4294967295 → give a number from 0 to \
         4294967295",
    );
}

#[test]
fn datasets_are_checked_as_far_as_the_manifest_goes() {
    check(
        "  train: corpus/a.bin",
        "m.yaml:9: data.train: corpus/a.bin is one of the dataset's two \
         files → write corpus/a",
    );
    check("  train: []", "m.yaml:9: data.train has no dataset → give at least one prefix");
    check(
        "  train: [{weight: 2}]",
        "m.yaml:9: data.train.0 has neither a prefix nor a weights_file → give the PREFIX of \
         PREFIX.bin",
    );
    check(
        "  train: [{prefix: a, weight: -1}]",
        "m.yaml:9: data.train.0.weight is -1; the least is \
         0.0 → give a number from 0.0 to 1000000000000.0",
    );
    check(
        "  train: [{prefix: a, weight: 0}]",
        "m.yaml:9: data.train: all weights are 0 → give one \
         dataset a weight above 0",
    );
    check(
        "  train: {prefix: a, range: 0.9..0.5}",
        "m.yaml:9: data.train.range \"0.9..0.5\" is not a \
         range within 0..1 → write FROM..TO, such as 0.95..1.0",
    );
    check(
        "  train: {prefix: a, range: 0..1, split: 9/1}",
        "m.yaml:9: data.train has a range and a \
         split → keep one of them",
    );
    check(
        "  train: {prefix: a, split: 0/1}",
        "m.yaml:9: data.train: the split 0/1 leaves nothing to \
         train → give train a share above 0, or a range",
    );
    check_set(
        "data.split=x",
        "--set data.split: data.split \"x\" is not up to three numbers, 0 or \
         more → write the shares of train, valid and test, such as 969,30,1",
    );
    check_set(
        "data.split=1,2,3,4",
        "--set data.split: data.split \"1,2,3,4\" is not up to three \
         numbers, 0 or more → write the shares of train, valid and test, such as 969,30,1",
    );
    check_set(
        "data.valid={a/b: corpus/b}",
        "--set data.valid: \"a/b\" cannot name a validation set \
         → use letters, digits, `-` and `_`",
    );
    check_set(
        "data.valid={web: }",
        "--set data.valid: data.valid.web has no value → give it one or \
         remove it",
    );
    check_set(
        "data.eod.token=4096",
        "--set data.eod.token: data.eod.token 4096 is not below \
         model.vocab 4096 → give the tokenizer's end-of-document id",
    );
    let sets = ["data.inter_document_masking=true", "data.eod={token: 0, reset_attention: true}"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set data.inter_document_masking: data.eod.reset_attention and \
         data.inter_document_masking both end documents → keep one: the token, or the bounds of \
         the index"
    );
    let sets = ["data.valid={}", "train.eval_interval=5"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set train.eval_interval: evaluation every 5 steps, but no validation set → add \
         data.valid, or a split with a second share, or set it to 0"
    );
}

#[test]
fn fp8_takes_matrices_whose_sides_are_multiples_of_16() {
    check_added("precision: fp8", "accepted");
    let sets = ["precision=fp8", "model.hidden=264"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set model.hidden: model.hidden 264 is not a multiple of 16, as fp8 needs it → change it, \
         or set precision: bf16"
    );
    let sets = ["precision=fp8", "topology.tensor=4", "model.ffn_hidden=1056"];
    assert_eq!(
        complaints(GOOD, &sets),
        "--set model.ffn_hidden: model.ffn_hidden 1056 / topology.tensor 4 is not a multiple of 16, \
         as fp8 needs it → change it, or set precision: bf16"
    );
}

/// Blocks of columns in a row, and in a tensor-parallel rank's share of it.
#[test]
fn blocks_of_8_bit_moments_must_be_whole() {
    check_added(
        "optimizer: {adam8bit: {block: 48}}",
        "m.yaml:17: optimizer.adam8bit.block 48 is not 16, 32 or 64 → take 64",
    );
    check_added(
        "optimizer: {adam8bit: {block: 128}}",
        "m.yaml:17: optimizer.adam8bit.block is 128; the most is 64 → give a number from 16 to 64",
    );
    check_added(
        "optimizer: {adamw: {}, adam8bit: {}}",
        "m.yaml:17: optimizer has more than one kind → keep one",
    );
    let model = |size: &str| format!("model={{layers: 2, {size}, vocab: 99, seq_len: 8}}");
    let refused = |size: &str, block: usize| {
        let optimizer = format!("optimizer.adam8bit.block={block}");
        complaints(GOOD, &[&model(size), "topology.tensor=4", &optimizer])
    };
    assert_eq!(
        refused("hidden: 384, heads: 12", 64),
        "--set optimizer.adam8bit.block: topology.tensor 4 leaves a rank 96 of the 384 columns of \
         attn.proj.weight, which are not whole blocks of optimizer.adam8bit.block 64 → set \
         optimizer.adam8bit.block to 32, or topology.tensor to 3"
    );
    assert_eq!(
        refused("hidden: 11600, heads: 80", 16),
        "--set optimizer.adam8bit.block: topology.tensor 4 leaves a rank 2900 of the 11600 columns \
         of attn.proj.weight, which are not whole blocks of optimizer.adam8bit.block 16 → set \
         topology.tensor to 1"
    );
    assert_eq!(
        refused("hidden: 288, heads: 12, ffn_hidden: 384", 64),
        "--set optimizer.adam8bit.block: topology.tensor 4 leaves a rank 96 of the 384 columns of \
         mlp.fc2.weight, which are not whole blocks of optimizer.adam8bit.block 64 → set \
         topology.tensor to 3"
    );
    assert_eq!(refused("hidden: 384, heads: 12", 32), "accepted");
}

/// A copy of an effective manifest holds the former defaults; a saved manifest may hold any value.
#[test]
fn settings_that_no_longer_exist_are_refused_with_a_remedy() {
    check_added(
        "topology:\n  offload:\n    what: optimizer\n    delay: 1\n    delay_after: 40",
        "m.yaml:20: there is no topology.offload.delay any more: updates cannot be delayed, because \
         stale gradients raised the loss → remove it: the losses are then those without offload",
    );
    check_set(
        "topology.offload.delay_after=3",
        "--set topology.offload.delay_after: there is no topology.offload.delay_after any more: \
         updates cannot be delayed, because stale gradients raised the loss → remove it: the losses \
         are then those without offload",
    );
    let offload = "topology: {offload: {what: optimizer, delay: 0, delay_after: 40}}\n";
    let kept = read(&format!("{GOOD}{offload}"), &[]).effective;
    let (saved, name) = (format!("{GOOD}{}", offload.replace("delay: 0", "delay: 1")), "m.yaml");
    let saved = manifest::parse_saved(&saved, name, Path::new("/home/me"), &[]).unwrap();
    assert_eq!(saved.effective, kept);
}

#[test]
fn offload_that_cannot_be_is_refused_by_name() {
    let host = "topology.offload={what: optimizer, gradients: host}";
    let compressed = "topology={data: 2, compression: powersgd}";
    let adafactor = "optimizer=adafactor";
    for (sets, what, remedy) in [
        (&[host, adafactor][..], "of every gradient", "topology.offload.gradients to device"),
        (&[compressed, host], "of all gradients of a step", "topology.compression to none"),
    ] {
        let all = complaints(GOOD, sets);
        assert!(all.contains(what) && all.contains(remedy), "{sets:?}: {all}");
    }
    check_set(
        "topology.offload.gradients=host",
        "--set topology.offload.gradients: topology.offload has settings, but \
         topology.offload.what is missing → set topology.offload.what to optimizer",
    );
    check_set(
        "train.device_memory=2gb",
        "--set train.device_memory: train.device_memory \"2gb\" is not a size → a number of bytes is \
         written as in 2GiB, 512MiB or 1.5TB",
    );
}

#[test]
fn several_mistakes_are_reported_in_one_go() {
    let text = "\
name: trial
model:
  layers: 0
  hidden: 256
  heads: eight
  vocap: 4096
data:
  train: corpus/a
batch:
  micro: 3
  global: 16
lr:
  peak: 1e-3
  min: 1e-2
";
    let expected = "\
m.yaml:2: model.seq_len is missing → add `seq_len:` (Tokens per sample (--seq-length))
m.yaml:3: model.layers is 0; the least is 1 → give a number from 1 to 10000
m.yaml:5: model.heads is \"eight\" → it takes a whole number
m.yaml:6: unknown key model.vocap → did you mean model.vocab?
m.yaml:11: batch.global 16 is not a multiple of batch.micro 3 → set batch.global to 15 or 18, or set batch.micro to 2
m.yaml:14: lr.min 0.01 is above lr.peak 0.001 → set lr.min to lr.peak or less
m.yaml: train is missing → add `train:` (Length (samples, tokens or steps), evaluation, device and seed)
--set log.interval: log.interval is \"often\" → it takes a whole number";
    assert_eq!(complaints(text, &["log.interval=often"]), expected);
}

#[test]
fn parts_of_a_model_that_do_not_fit_are_refused() {
    check_set(
        "model.kv_heads=3",
        "--set model.kv_heads: model.heads 8 is not divisible by model.kv_heads 3 → set model.kv_heads \
         to 2 or 4",
    );
    check_set(
        "model.kv_heads=16",
        "--set model.kv_heads: model.heads 8 is not divisible by model.kv_heads 16 → set model.kv_heads \
         to 8",
    );
    assert_eq!(
        complaints(GOOD, &["model.kv_heads=2", "topology.tensor=4", "batch.global=32"]),
        "--set topology.tensor: model.kv_heads 2 is not divisible by topology.tensor 4 → set \
         topology.tensor to 2",
    );
    assert_eq!(
        complaints(GOOD, &["model.position=rope", "model.head_dim=33"]),
        "--set model.head_dim: position rope turns columns of a head in pairs, and a head has 33 \
         columns → set model.head_dim to 34",
    );
    assert_eq!(
        complaints(GOOD, &["model.family=llama", "model.gelu=exact"]),
        "--set model.gelu: model.gelu exact is for ffn: gelu, and ffn is swiglu → remove it, or set \
         model.ffn to gelu",
    );
    assert_eq!(
        complaints(GOOD, &["model.position=rope", "model.positions=4096"]),
        "--set model.positions: model.positions is for position: learned, and model.position is rope \
         → remove model.positions",
    );
    check_set(
        "model.positions=12",
        "--set model.positions: model.positions 12 is less than model.seq_len 128 → set \
         model.seq_len to 12 or less, or model.positions to 128 or more",
    );
    check_set(
        "model.position={rope: {scaling: {dynamic: {factor: 2}}}}",
        "--set model.position: scaling dynamic (NTK) turns a token by an angle that depends on the \
         length of what is read, so what was learned at one length does not hold at another → take \
         linear, llama3 or yarn",
    );
    check_set(
        "model.position={rope: {scaling: {}}}",
        "--set model.position: scaling has no kind → give linear, llama3 or yarn, or remove it",
    );
    check_set(
        "model.position={rope: {scaling: {linear: {factor: 2}, yarn: {factor: 2, \
         original_seq_len: 64}}}}",
        "--set model.position: scaling has more than one kind → keep one",
    );
    check_set(
        "model.position={rope: {scaling: {llama3: {factor: 2, original_seq_len: 64, \
         low_freq_factor: 4}}}}",
        "--set model.position: llama3.low_freq_factor 4 is not below llama3.high_freq_factor 4 → \
         lower it, or raise llama3.high_freq_factor",
    );
}
