//! Megatron's arguments as the grid and the stages of a manifest.

use super::super::Choices;
use super::super::arguments::pickled_arguments;
use super::*;

/// Sets the split by arguments: `name=value` separated by spaces.
fn settings(text: &str, layers: usize, stages: usize) -> Result<Settings, String> {
    let tree = pickled_arguments(text);
    let args = Arguments::new(tree.root(), "x".into(), "mcore", &Choices::default());
    let mut settings = Settings::default();
    settings.set("batch.global", 24, "");
    set_said_split(&mut settings, &args, layers, stages).map_err(|error| error.to_string())?;
    Ok(settings)
}

fn split(text: &str, layers: usize, stages: usize) -> Result<Option<String>, String> {
    Ok(settings(text, layers, stages)?
        .get(SPLIT)
        .map(str::to_string))
}

#[test]
fn arguments_say_how_many_layers_the_stages_have() {
    let said = |text, layers, stages| split(text, layers, stages).unwrap();
    assert_eq!(said("", 4, 2), None);
    assert_eq!(said("", 3, 2).as_deref(), Some("balanced"));
    let first = "decoder_first_pipeline_num_layers=2";
    assert_eq!(said(first, 4, 3).as_deref(), Some("[2, 1, 1]"));
    assert_eq!(said(first, 4, 2), None);
    assert_eq!(said("num_layers_in_last_pipeline_stage=1", 5, 3).as_deref(), Some("[2, 2, 1]"));
    let both = format!("{first} decoder_last_pipeline_num_layers=1");
    assert_eq!(said(&both, 9, 4).as_deref(), Some("[2, 3, 3, 1]"));
    assert_eq!(said(&both, 3, 2).as_deref(), Some("[2, 1]"));
    let embedding = "account_for_embedding_in_pipeline_split=True";
    assert_eq!(said(embedding, 5, 2).as_deref(), Some("[2, 3]"));
    let ends = format!("{embedding} account_for_loss_in_pipeline_split=True");
    assert_eq!(said(&ends, 10, 3).as_deref(), Some("transformer_and_embedding"));
    let method = "pp_partition_method=type:transformer|embedding";
    assert_eq!(said(method, 10, 3).as_deref(), Some("transformer_and_embedding"));
    let wrong = split(first, 5, 3).unwrap_err();
    assert!(wrong.contains("do not divide"), "{wrong}");
    assert!(split("decoder_first_pipeline_num_layers=9", 4, 2).is_err());
}

#[test]
fn arguments_say_how_the_work_is_divided() {
    let rows = |text: &str, ranks| {
        let tree = pickled_arguments(text);
        let args = Arguments::new(tree.root(), "x".into(), "mcore", &Choices::default());
        let mut settings = Settings::default();
        set_grid(&mut settings, &args, ranks);
        set_replicas(&mut settings, &args).unwrap();
        let rows = settings
            .0
            .into_iter()
            .map(|row| format!("{}={}", row.key, row.value));
        rows.collect::<Vec<_>>().join(" ")
    };
    let grid = "topology.tensor=2 topology.pipeline=1";
    let all = "sequence_parallel=True recompute_granularity=selective optimizer_cpu_offload=True \
               use_distributed_optimizer=True data_parallel_size=4";
    let expected = format!(
        "{grid} topology.sequence_parallel=true topology.recompute=selective \
         topology.offload.what=optimizer topology.data=4 topology.zero=1"
    );
    assert_eq!(rows(all, [2, 1]), expected);
    let without = "topology.tensor=1 topology.pipeline=1 topology.data=4";
    assert_eq!(rows("sequence_parallel=True data_parallel_size=4", [1, 1]), without);
    assert_eq!(
        rows("checkpoint_activations=True", [2, 1]),
        format!("{grid} topology.recompute=full")
    );
    let fsdp = "use_megatron_fsdp=True use_distributed_optimizer=True data_parallel_size=2";
    assert_eq!(rows(fsdp, [2, 1]), format!("{grid} topology.data=2 topology.zero=3"));
    assert!(rows(fsdp, [2, 2]).ends_with("topology.data=2 topology.zero=1"));
    let instances = "num_distributed_optimizer_instances=2 data_parallel_size=8";
    let whole = rows(instances, [1, 1]);
    assert!(whole.ends_with("topology.data=8 topology.shard=4"), "states are not divided: {whole}");
    let divided = rows(&format!("use_distributed_optimizer=True {instances}"), [1, 1]);
    let levels = "topology.data=8 topology.zero=1 topology.shard=4 topology.states=shard";
    assert!(divided.ends_with(levels), "{divided}");
    let outer = format!("use_megatron_fsdp=True {instances} outer_dp_sharding_strategy=optim");
    assert!(rows(&outer, [1, 1]).ends_with("topology.zero=3 topology.shard=4"), "all replicas");
}

#[test]
fn a_layout_in_letters_has_the_layers_of_each_stage() {
    let said = |layout: &str, layers, stages| {
        split(&format!("pipeline_model_parallel_layout={layout}"), layers, stages)
    };
    assert_eq!(said("Et*3|t|ttL", 6, 3).unwrap().as_deref(), Some("[3, 1, 2]"));
    assert_eq!(said("Et|(tt|)*2,tL", 6, 4).unwrap().as_deref(), Some("transformer_and_embedding"));
    assert_eq!(said("E|tt|ttL", 4, 3).unwrap().as_deref(), Some("balanced"));
    for wrong in ["Ett|ttL", "Et|x|L", "Et|(t", "Et*|t|L", "E(t|)*99999999999|L", "Et*99999999|t|L"]
    {
        assert!(said(wrong, 6, 3).is_err(), "{wrong}");
    }
}

#[test]
fn chunks_are_an_interleaved_schedule() {
    let said = |text: &str, layers, stages| {
        let settings = settings(text, layers, stages).unwrap();
        [SCHEDULE, CHUNKS, SPLIT].map(|key| settings.get(key).map(str::to_string))
    };
    let some = |text: &str| Some(text.to_string());
    let chunks = "virtual_pipeline_model_parallel_size=2";
    assert_eq!(said(chunks, 8, 2), [some("interleaved"), some("2"), None]);
    let first = format!("{chunks} decoder_first_pipeline_num_layers=2");
    assert_eq!(said(&first, 6, 2), [some("interleaved"), some("2"), some("[1, 2, 1, 2]")]);
    let layout = "pipeline_model_parallel_layout=Ett|t|t|ttL";
    assert_eq!(said(layout, 6, 2), [some("interleaved"), some("2"), some("[2, 1, 1, 2]")]);
    // A batch of 24 is not divisible by five stages.
    assert_eq!(said(chunks, 20, 5), [None, None, None]);
}
