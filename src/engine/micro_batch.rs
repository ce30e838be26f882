//! Limit of a micro-batch, by the device.

use base::Problems;
use device::Backend;
use manifest::Manifest;
use plan::segments::MicroShape;

/// Fails if the device's attention cannot process a micro-batch at once.
pub fn check_micro_batch(be: &dyn Backend, m: &Manifest) -> Result<(), Problems> {
    let heads = m.model.heads / m.topology.tensor;
    let evaluated = MicroShape { samples: m.batch.micro, tokens: m.model.seq_len };
    let mut shapes = m.schedule().largest_micros();
    shapes.push(evaluated);
    let found = shapes
        .into_iter()
        .map(|shape| (shape, be.most_samples(heads, shape.tokens)))
        .find(|(shape, most)| shape.samples > *most);
    let Some((MicroShape { samples: micro, tokens: seq }, most)) = found else { return Ok(()) };
    let what = format!(
        "a micro-batch has {micro} samples of {seq} tokens, and attention on this device takes at most \
         {most} of them at once with {heads} heads per rank"
    );
    let divisor = (1..=most.min(micro))
        .rev()
        .find(|n| micro.is_multiple_of(*n));
    let remedy = match divisor {
        _ if !m.batch.micro_stages.is_empty() => {
            format!("give batch.micro and batch.micro_stages at most {most} samples")
        }
        Some(fewer) => format!("--set batch.micro={fewer}: a step then has more micro-batches"),
        None => "raise topology.tensor, which splits the heads, or lower model.seq_len".to_string(),
    };
    Err(Problems::one("batch.micro", what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Dry;
    use std::path::Path;

    fn manifest(sets: &[&str]) -> Manifest {
        let text = "
model: {layers: 1, hidden: 4096, heads: 32, vocab: 8, seq_len: 8192}
data: {train: none}
batch: {micro: 96, global: 384}
lr: {peak: 1e-3}
train: {steps: 1}
";
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        manifest::parse(text, "test", Path::new("."), &sets)
            .unwrap()
            .manifest
    }

    #[test]
    fn a_micro_batch_above_the_limit_of_attention_is_refused_by_the_plan() {
        let gpu = Dry::gpu();
        let refused = check_micro_batch(&gpu, &manifest(&[]))
            .unwrap_err()
            .to_string();
        let says = [
            "batch.micro",
            "96 samples of 8192 tokens",
            "at most 64 of them at once with 32 heads per rank",
            "--set batch.micro=48",
        ];
        assert!(says.iter().all(|words| refused.contains(words)), "{refused}");
        assert!(check_micro_batch(&gpu, &manifest(&["batch.micro=48"])).is_ok(), "the remedy");
        assert!(check_micro_batch(&gpu, &manifest(&["batch.micro=64", "batch.global=64"])).is_ok());
        assert!(check_micro_batch(&gpu, &manifest(&["topology.tensor=2"])).is_ok(), "16 heads");
        assert!(check_micro_batch(&Dry::default(), &manifest(&[])).is_ok(), "a CPU");
        let long = ["model.seq_len=1048576", "batch.micro=1", "batch.global=1"];
        let refused = check_micro_batch(&gpu, &manifest(&long))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("raise topology.tensor"), "{refused}");
    }
}
