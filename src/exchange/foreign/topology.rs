//! The other run's pipeline stages as `topology.layer_split`, from the layers that each stage has.

use super::arguments::Arguments;
use super::settings::Settings;
use plan::split;

const KEY: &str = "topology.layer_split";
/// DeepSpeed's argument: the layers that its balance counts.
const METHOD: &str = "pp_partition_method";
/// Layers of a model, at most.
const MAX_LAYERS: usize = 1 << 20;

/// Sets the split of the layers: `layers` has their number in each stage of the files.
pub fn set_counted_split(settings: &mut Settings, args: &Arguments, layers: &[usize]) {
    set_split(settings, args, layers, "layers of the stages' files");
}

/// Sets the split of `layers` layers by the arguments that give each stage a number of them.
pub fn set_said_split(
    settings: &mut Settings,
    args: &Arguments,
    layers: usize,
    stages: usize,
) -> anyhow::Result<()> {
    match said_layers(args, layers, stages)? {
        Some((sizes, from)) => set_split(settings, args, &sizes, from),
        None if stages < 2 || layers.is_multiple_of(stages) => {}
        // DeepSpeed's stages, whose files the folder does not have, or a layout in letters.
        None if counts_ends(args) && (layers + 2).is_multiple_of(stages) => {
            settings.set(KEY, "transformer_and_embedding", METHOD);
        }
        None => settings.set(KEY, "balanced", "the stages have different numbers of layers"),
    }
    Ok(())
}

fn set_split(settings: &mut Settings, args: &Arguments, layers: &[usize], from: &str) {
    let stages = layers.len();
    let all: usize = layers.iter().sum();
    let is = |parts: Vec<std::ops::Range<usize>>| {
        parts
            .iter()
            .map(|part| part.len())
            .eq(layers.iter().copied())
    };
    if stages < 2 {
        return;
    }
    let even = all.is_multiple_of(stages) && is(split::uniform(all, stages));
    let ends = (all + 2).is_multiple_of(stages) && is(split::with_ends(all, stages));
    match (even, ends) {
        (true, true) if counts_ends(args) => {
            settings.set(KEY, "transformer_and_embedding", METHOD);
        }
        (true, _) => {}
        (false, true) => settings.set(KEY, "transformer_and_embedding", from),
        // gptrain's stages have a layer each.
        (false, false) if layers.contains(&0) => settings.set(KEY, "balanced", from),
        (false, false) => {
            let sizes: Vec<String> = layers.iter().map(usize::to_string).collect();
            settings.set(KEY, format!("[{}]", sizes.join(", ")), from);
        }
    }
}

/// Whether DeepSpeed counted embedding and head as layers.
fn counts_ends(args: &Arguments) -> bool {
    let method = args.get(METHOD);
    method.is_some_and(|method| {
        method
            .str()
            .is_ok_and(|method| method.contains("embedding"))
    })
}

/// Layers of each stage by Megatron-Core's arguments, and the arguments; None if they say nothing of it.
fn said_layers(
    args: &Arguments,
    layers: usize,
    stages: usize,
) -> anyhow::Result<Option<(Vec<usize>, &'static str)>> {
    let given = |name: &str| anyhow::Ok(args.optional_count(name)?.map(|count| count as usize));
    let first = given("decoder_first_pipeline_num_layers")?;
    let last = given("decoder_last_pipeline_num_layers")?;
    let embedding = usize::from(args.is_set("account_for_embedding_in_pipeline_split"));
    let loss = usize::from(args.is_set("account_for_loss_in_pipeline_split"));
    let (sizes, from) = if stages < 2 || stages > layers || layers > MAX_LAYERS {
        return Ok(None);
    } else if first.is_some() || last.is_some() {
        let free = stages - [first, last].iter().flatten().count();
        let rest = layers.saturating_sub(first.unwrap_or(0).saturating_add(last.unwrap_or(0)));
        let mut sizes = vec![rest / free.max(1); stages];
        sizes[0] = first.unwrap_or(sizes[0]);
        sizes[stages - 1] = last.unwrap_or(sizes[stages - 1]);
        (sizes, "decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers")
    } else if embedding + loss > 0 {
        let mut sizes = vec![(layers + embedding + loss) / stages; stages];
        sizes[0] -= embedding;
        sizes[stages - 1] -= loss;
        (sizes, "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split")
    } else {
        return Ok(None);
    };
    if sizes
        .iter()
        .fold(0usize, |sum, size| sum.saturating_add(*size))
        != layers
    {
        return Err(args.problem(format!(
            "args.{from} do not divide {} {layers} among {stages} stages",
            args.name("model.layers")
        )));
    }
    Ok(Some((sizes, from)))
}

#[cfg(test)]
mod tests {
    use super::super::super::torch::pickled;
    use super::*;

    /// Arguments in a pickled dict.
    fn split(text: &str, layers: usize, stages: usize) -> Result<Option<String>, String> {
        let mut pickle = b"\x80\x02}(".to_vec();
        for (name, value) in text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
        {
            pickle.extend([b"X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat());
            match value.parse::<u8>() {
                Ok(number) => pickle.extend([b'K', number]),
                Err(_) if value == "True" => pickle.push(0x88),
                Err(_) => {
                    let len = (value.len() as u32).to_le_bytes();
                    pickle.extend([b"X", &len[..], value.as_bytes()].concat());
                }
            }
        }
        pickle.extend(b"u.");
        let tree = pickled(&pickle, "x").unwrap();
        let args = Arguments::new(tree.root(), "x".into(), "mcore");
        let mut settings = Settings::default();
        set_said_split(&mut settings, &args, layers, stages).map_err(|error| error.to_string())?;
        Ok(settings.get(KEY).map(str::to_string))
    }

    #[test]
    fn arguments_say_how_many_layers_the_stages_have() {
        let said = |text, layers, stages| split(text, layers, stages).unwrap();
        assert_eq!(said("", 4, 2), None);
        assert_eq!(said("", 3, 2).as_deref(), Some("balanced"));
        let first = "decoder_first_pipeline_num_layers=2";
        assert_eq!(said(first, 4, 3).as_deref(), Some("[2, 1, 1]"));
        assert_eq!(said(first, 4, 2), None);
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
}
