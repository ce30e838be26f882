//! torchtitan's folders: the shape of the heads, the rotation, the batch and the rates are not in the
//! files. The import asks for them.

use super::super::Choices;
use super::super::settings::{Wanted, asked};
use super::DcpFolder;
use base::Problems;
use std::path::Path;

/// Settings that the files do not have, torchtitan's names of them, and examples.
pub const WANTED: &[Wanted] = &[
    Wanted { key: "model.heads", why: "attention heads, torchtitan's n_heads", example: "32" },
    Wanted { key: "model.seq_len", why: "training.seq_len", example: "8192" },
    Wanted {
        key: "model.position.rope.theta",
        why: "torchtitan's rope_theta; its rope_scaling, if any, is model.position.rope.scaling",
        example: "500000",
    },
    Wanted { key: "batch.global", why: "training.global_batch_size", example: "512" },
    Wanted { key: "lr.warmup_samples", why: "warmup_steps × batch.global", example: "102400" },
    Wanted { key: "lr.decay", why: "lr_scheduler.decay_type", example: "cosine" },
    Wanted { key: "train.steps", why: "training.steps", example: "10000" },
    Wanted { key: "data.train", why: "the datasets: see docs/data.md", example: "corpus" },
];

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
    folder.model(heads, "torchtitan's n_heads")?;
    let settings = &mut folder.found.settings;
    settings.set("model.layernorm_eps", "1e-5", "torchtitan's norm_eps where it is not set");
    settings.set("precision", "bf16", "training.mixed_precision_param where it is not set");
    settings.set("batch.micro", 1, "");
    settings.set("lr.counted", "before", "PyTorch's schedulers step after the optimizer");
    let decayed_norms = folder.optimizer()?;
    folder.found.settings.set(
        "optimizer.adamw.clip",
        "1.0",
        "training.max_norm where it is not set",
    );
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
