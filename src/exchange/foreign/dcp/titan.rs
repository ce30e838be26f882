//! torchtitan's folders: the shape of the heads, the rotation, the batch and the rates are not in the
//! files. The import asks for them.

use super::super::Choices;
use super::super::settings::asked;
use super::DcpFolder;
use crate::tensor_part::Pairs;
use base::Problems;
use manifest::dialects::Dialect;
use std::path::Path;

/// Step, settings and notes.
pub fn describe(folder: &mut DcpFolder, _: &Path, choices: &Choices) -> anyhow::Result<()> {
    let step = folder.meta.count("train_state.step")?;
    let Some(step) = step else {
        return Err(Problems::one(
            folder.meta.place(),
            "has no train_state.step: a model without its training state",
            "import a step that was saved whole, or the weights alone by way of Hugging Face's \
             format",
        )
        .into());
    };
    folder.found.step = step;
    let heads = asked(&choices.sets, "model.heads").and_then(|text| text.parse::<usize>().ok());
    folder.model(heads)?;
    let unset = |key: &str| format!("{} where it is not set", Dialect::Torchtitan.name(key));
    let qwen = folder.has_qk_norm();
    if qwen {
        // Its rotation has the columns of a head in two halves.
        folder.pairs = Pairs::Halves;
    }
    let settings = &mut folder.found.settings;
    let eps = format!("torchtitan's {}", unset("model.layernorm_eps"));
    if qwen {
        settings.set("model.family", "qwen3", "queries and keys have norms");
        settings.set("model.layernorm_eps", "1e-6", &eps);
    } else {
        settings.set("model.layernorm_eps", "1e-5", &eps);
    }
    settings.set("precision", "bf16", &unset("precision"));
    settings.set("batch.micro", 1, "");
    settings.set("lr.counted", "before", "PyTorch's schedulers step after the optimizer");
    let decayed_norms = folder.optimizer()?;
    let clip = "optimizer.adamw.clip";
    folder.found.settings.set(clip, "1.0", &unset(clip));
    if decayed_norms > 0 {
        folder.found.notes.push(format!(
            "torchtitan's AdamW decays all parameters, {decayed_norms} norms too; gptrain decays matrices \
             alone"
        ));
    }
    let count = |key: &str| asked(&choices.sets, key).and_then(|text| text.parse::<u64>().ok());
    if let (Some(global), Some(length)) = (count("batch.global"), count("model.seq_len")) {
        folder.found.samples = step.saturating_mul(global);
        folder.found.tokens = folder.found.samples.saturating_mul(length);
    }
    Ok(())
}
