//! Arguments of Hugging Face's Trainer as settings.

use super::{Read, Script, deepspeed, missing_variable};
use crate::foreign::{Format, RunDescription, Settings, number};
use crate::hf::read_config;
use crate::source::training_arguments;
use crate::torch::Tree;
use base::Problems;
use manifest::dialects::Dialect;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Values of arguments that are not given, as the Trainer has them.
fn defaults() -> Map<String, Json> {
    let name = |setting: &str| Dialect::HuggingFace.name(setting).to_string();
    Map::from_iter([
        (name("optimizer.adamw.beta1"), json!(0.9)),
        (name("optimizer.adamw.beta2"), json!(0.999)),
        (name("optimizer.adamw.eps"), json!(1e-8)),
        (name("optimizer.adamw.weight_decay"), json!(0.0)),
        (name("optimizer.adamw.clip"), json!(1.0)),
        (name("batch.micro"), json!(8)),
        (name("lr.peak"), json!(5e-5)),
        (name("lr.decay"), json!("linear")),
        (name("log.interval"), json!(500)),
        (name("checkpoint.interval"), json!(500)),
        (name("train.seed"), json!(42)),
    ])
}

/// Settings of AdamW, whose names the table has.
const ADAMW: [&str; 4] = [
    "optimizer.adamw.beta1",
    "optimizer.adamw.beta2",
    "optimizer.adamw.eps",
    "optimizer.adamw.weight_decay",
];

/// Words of FSDP's strategy, if FSDP is on.
fn fsdp(values: &Map<String, Json>) -> Option<&str> {
    let value = values.get("fsdp")?;
    let is_off = *value == json!(false) || *value == json!("");
    (!is_off).then(|| value.as_str().unwrap_or_default())
}

/// ZeRO level of FSDP's strategies.
fn fsdp_level(strategy: &str) -> u64 {
    let has = |word| strategy.split([' ', ',']).any(|found| found == word);
    match () {
        () if has("no_shard") => 0,
        () if has("shard_grad_op") || has("hybrid_shard_zero2") => 2,
        () => 3,
    }
}

/// Sets shard groups. Their copies have equal states in MiCS and hybrid sharding; ZeRO++ keeps a second
/// division of the weights and divides states among all ranks.
fn set_shard_groups(
    settings: &mut Settings,
    deepspeed: &BTreeMap<String, Json>,
    values: &Map<String, Json>,
    replicas: u64,
) {
    let [shard, states] = ["topology.shard", "topology.states"];
    for name in Dialect::HuggingFace.names(shard) {
        let ranks = deepspeed.get(name).and_then(Json::as_u64).unwrap_or(1);
        if ranks > 1 && ranks < replicas && replicas.is_multiple_of(ranks) {
            settings.set(shard, ranks, name);
            if name.contains("mics") {
                settings.set(states, "shard", name);
            }
        }
    }
    if fsdp(values).is_some_and(|strategy| strategy.contains("hybrid_shard")) {
        settings.set(shard, "node", "fsdp: hybrid_shard");
        settings.set(states, "shard", "fsdp: hybrid_shard");
    }
}

/// Settings of a script.
pub fn settings(script: &Script) -> anyhow::Result<Read> {
    let mut read = Read::default();
    let mut problems = Problems::default();
    read.json = deepspeed::read(script, &mut read.notes)?;
    read.more = deepspeed::arguments(&read.json, script.launch.program);
    let mut values = script.values(Dialect::HuggingFace, &read.more, &mut problems);
    let given: Vec<String> = values.keys().cloned().collect();
    for (name, value) in defaults() {
        values.entry(name).or_insert(value);
    }
    let mut found = RunDescription::new(Format::HfTrainer, "", Path::new(&script.place));
    set_model(script, &values, &mut found, &mut problems)?;
    let replicas = script.replicas(1, &mut problems);
    let steps = steps(script, &values, &mut problems);
    problems.or(())?;
    found.grid[2] = replicas.unwrap_or(1);
    let is_set = |name: &str| values.get(name) == Some(&Json::from(true));
    let settings = &mut found.settings;
    let precision = match (is_set("bf16"), is_set("fp16")) {
        (true, _) => "bf16",
        (_, true) => "fp16",
        _ => "f32",
    };
    settings.set("precision", precision, "bf16, fp16");
    settings.set("data.train", "corpus", "the tokens that `gptrain data build` makes of the texts");
    settings.set("topology.data", found.grid[2], "ranks that the script starts");
    let tree = Tree::from_json(&Json::Object(values.clone()), &script.place);
    training_arguments(tree.root(), &mut found, steps)?;
    let settings = &mut found.settings;
    for key in ADAMW {
        let name = Dialect::HuggingFace.name(key);
        if let Some(value) = values.get(name).and_then(Json::as_f64) {
            settings.set(key, number(value), name);
        }
    }
    if is_set("gradient_checkpointing") {
        settings.set("topology.recompute", "full", "gradient_checkpointing");
    }
    let stage = ["zero_optimization.stage", "stage"]
        .into_iter()
        .find_map(|name| values.get(name));
    let fsdp = fsdp(&values);
    let zero = match (stage.and_then(Json::as_u64), fsdp) {
        (Some(stage), _) => Some((stage, "zero_optimization.stage")),
        (None, Some(strategy)) => Some((fsdp_level(strategy), "fsdp")),
        (None, None) => None,
    };
    if let Some((stage, from)) = zero.filter(|(stage, _)| *stage > 0)
        && replicas.unwrap_or(1) > 1
    {
        settings.set("topology.zero", stage, from);
    }
    if zero.is_some_and(|(stage, _)| stage > 0) {
        set_shard_groups(settings, &read.json, &values, replicas.unwrap_or(1) as u64);
    }
    if let Some((what, from)) = deepspeed::offload(&read.json) {
        settings.set("topology.offload.what", what, from);
    }
    settings.set("lr.counted", "before", "the schedule advances after the update");
    for row in &mut found.settings.0 {
        if values.contains_key(&row.from) && !given.contains(&row.from) {
            row.from += ", the Trainer's default";
        }
    }
    read.notes.append(&mut found.notes);
    read.notes.push(
        "the Trainer's datasets are texts: build them with `gptrain data build`, and name the result in \
         data.train"
            .to_string(),
    );
    read.settings = found.settings;
    Ok(read)
}

/// Sets the model of config.json, which must be here.
fn set_model(
    script: &Script,
    values: &Map<String, Json>,
    found: &mut RunDescription,
    problems: &mut Problems,
) -> anyhow::Result<()> {
    let named = ["config_name", "model_name_or_path"]
        .into_iter()
        .find_map(|name| script.launch.get(name)?.words.first());
    let Some(named) = named else {
        problems.add(
            script.place.clone(),
            "names no model: neither --config_name nor --model_name_or_path",
            "give the folder of its config.json: add --config_name FOLDER to the script",
        );
        return Ok(());
    };
    if let Some(missing) = missing_variable(named) {
        let name = missing.trim_start_matches('$');
        problems.add(
            script.place.clone(),
            format!("the model's folder needs {missing}, which the script does not set"),
            format!("give its value: --var {name}=FOLDER"),
        );
        return Ok(());
    }
    let folder = PathBuf::from(named);
    if !folder.join("config.json").is_file() {
        problems.add(
            script.place.clone(),
            format!("the model's shape is in config.json of {named}, which is not here"),
            format!("get it: hf download {0} config.json --local-dir {0}", base::shell_word(named)),
        );
        return Ok(());
    }
    let model = read_config(&folder)?.model;
    for (key, value) in manifest::model_settings(&model) {
        if key != "seq_len" {
            found
                .settings
                .set(&format!("model.{key}"), value, "config.json");
        }
    }
    let length = Dialect::HuggingFace
        .names("model.seq_len")
        .into_iter()
        .find_map(|name| Some((name, values.get(name)?.as_u64()?)));
    match (length, script.asked("model.seq_len")) {
        (_, Some(asked)) => found.settings.set("model.seq_len", asked, "--set"),
        (Some((name, length)), None) => found.settings.set("model.seq_len", length, name),
        (None, None) => problems.add(
            script.place.clone(),
            "does not say how long a sample is",
            "add --block_size to the script, or --set model.seq_len=N",
        ),
    }
    Ok(())
}

/// Steps of the run; None if `--set` gives a length of another kind.
fn steps(script: &Script, values: &Map<String, Json>, problems: &mut Problems) -> Option<u64> {
    if let Some(asked) = script.asked("train.steps") {
        return asked.parse().ok();
    }
    let steps = values
        .get("max_steps")
        .and_then(Json::as_u64)
        .filter(|steps| *steps > 0);
    let asked = ["train.samples", "train.tokens"]
        .iter()
        .any(|key| script.asked(key).is_some());
    if steps.is_none() && !asked {
        let epochs = values
            .get("num_train_epochs")
            .map_or("3".to_string(), Json::to_string);
        problems.add(
            script.place.clone(),
            format!("the run is {epochs} epochs of a dataset whose length is not in the script"),
            "give its length: --set train.steps=N, or train.tokens",
        );
    }
    steps
}
