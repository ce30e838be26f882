//! Logs of Megatron, made here.

use super::*;

fn log(more: &str) -> String {
    let arguments = [
        ("num_layers", "2"),
        ("hidden_size", "64"),
        ("num_attention_heads", "4"),
        ("seq_length", "32"),
        ("max_position_embeddings", "32"),
        ("micro_batch_size", "1"),
        ("global_batch_size", "16"),
        ("rampup_batch_size", "['4', '4', '1_000']"),
        ("train_samples", "10000"),
        ("world_size", "8"),
        ("tensor_model_parallel_size", "2"),
        ("lr", "0.0001"),
        ("hidden_dropout", "0.0"),
        ("bf16", "True"),
        ("fp16", "False"),
        ("num_experts", "[1]"),
        ("data_path", "['corpus']"),
        ("lr_decay_iters", "None"),
    ];
    let lines =
        arguments.map(|(name, value)| format!("[default0]:  {name} {:.>20} {value}\n", "..."));
    format!(
        "using world size: 8\n[default0]:--------- arguments ---------\n{}[default0]:----- end of \
         arguments -----\n > padded vocab (size: 500) with 12 dummy tokens\n{more}",
        lines.concat()
    )
}

#[test]
fn printed_arguments_are_those_of_a_run() {
    let choices = ScriptChoices::default();
    let run = read_log(&log(""), "run.log", &choices).unwrap().unwrap();
    let m = &run.loaded.manifest;
    assert_eq!([m.model.layers, m.model.vocab, m.batch.global], [2, 500, 16]);
    assert_eq!([m.topology.tensor, m.topology.pipeline, m.topology.data], [2, 1, 4]);
    assert_eq!(m.precision.name(), "bf16");
    assert!(run.text.contains("ramp_up: 4 4 1000"), "{}", run.text);
    // A run that was started again prints them again, and a log without them has no manifest.
    let again = log(&log("")
        .replace("global_batch_size .", "global_batch_size ..")
        .replace("16\n", "32\n"));
    let run = read_log(&again, "run.log", &choices).unwrap().unwrap();
    assert_eq!(run.loaded.manifest.batch.global, 32);
    assert!(
        read_log("iteration 1/2\n", "run.log", &choices)
            .unwrap()
            .is_none()
    );
    let odd = log("").replace("num_layers", "encoders");
    let error = read_log(&odd, "run.log", &choices).unwrap_err().to_string();
    assert!(error.contains("run.log: its arguments have no num_layers"), "{error}");
}
