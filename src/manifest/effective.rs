//! A checked manifest, written back as YAML: every key with its value.

use super::raw;
use super::*;

/// Loads back to the same manifest, from any folder.
pub fn yaml(manifest: &Manifest) -> String {
    let raw = raw::Raw::from(manifest);
    serde_saphyr::to_string(&raw).expect("plain structs are always written")
}

impl From<&Manifest> for raw::Raw {
    fn from(m: &Manifest) -> raw::Raw {
        raw::Raw {
            name: Some(m.name.clone()),
            model: Some(model(&m.model)),
            precision: Some(match m.precision {
                Precision::F32 => raw::Precision::F32,
                Precision::Tf32 => raw::Precision::Tf32,
                Precision::Bf16 => raw::Precision::Bf16,
                Precision::Fp16 => raw::Precision::Fp16,
            }),
            loss_scale: m.loss_scale.map(loss_scale),
            data: Some(data(&m.data)),
            batch: Some(batch(&m.batch)),
            optimizer: Some(optimizer(&m.optimizer)),
            lr: Some(lr(&m.lr)),
            topology: Some(topology(&m.topology)),
            comm: Some(raw::Comm {
                timeout_s: Some(m.comm.timeout_s),
                start_timeout_s: Some(m.comm.start_timeout_s),
                rendezvous: m.comm.rendezvous.clone(),
                gpu_transport: Some(m.comm.gpu_transport),
            }),
            checkpoint: Some(raw::Checkpoint {
                interval: Some(m.checkpoint.interval),
                keep_last: m.checkpoint.keep_last,
                keep_every: m.checkpoint.keep_every,
                in_flight: Some(m.checkpoint.in_flight),
            }),
            log: Some(raw::Log {
                folder: Some(m.log.folder.clone()),
                interval: Some(m.log.interval),
                tensorboard: Some(m.log.tensorboard),
                peak_tflops: m.log.peak_tflops,
            }),
            plan: Some(raw::Plan {
                hardware: m.plan.hardware.clone(),
                framework: m.plan.framework,
                price: m.plan.price,
                budget: m.plan.budget,
                availability: m.plan.availability,
            })
            .filter(|_| m.plan != Plan::default()),
            train: Some(train(&m.train)),
        }
    }
}

fn model(m: &Model) -> raw::Model {
    raw::Model {
        layers: Some(m.layers),
        hidden: Some(m.hidden),
        heads: Some(m.heads),
        ffn_hidden: Some(m.ffn_hidden),
        vocab: Some(m.vocab),
        vocab_multiple: Some(m.vocab_multiple),
        seq_len: Some(m.seq_len),
        position: Some(match m.position {
            Position::Learned => raw::Position::Learned,
            Position::Alibi => raw::Position::Alibi,
        }),
        embedding_layernorm: Some(m.embedding_layernorm),
        tied_head: Some(m.tied_head),
        gelu: Some(match m.gelu {
            Gelu::Tanh => raw::Gelu::Tanh,
            Gelu::Exact => raw::Gelu::Exact,
        }),
        layernorm_eps: Some(m.layernorm_eps),
        dropout: Some(raw::DropoutForm::Each(raw::Dropout {
            embedding: Some(m.dropout.embedding),
            attention: Some(m.dropout.attention),
            residual: Some(m.dropout.residual),
        })),
        init: Some(raw::Init {
            std: Some(m.init_std),
            scale_residual: Some(m.init_scale_residual),
        }),
    }
}

fn loss_scale(scale: LossScale) -> raw::LossScaleForm {
    raw::LossScaleForm::Settings(match scale {
        LossScale::Constant { scale, window, hysteresis } => raw::LossScale {
            constant: Some(scale),
            window: Some(window),
            hysteresis: Some(hysteresis),
            ..Default::default()
        },
        LossScale::Dynamic { initial, min, window, hysteresis } => raw::LossScale {
            initial: Some(initial),
            min: Some(min),
            window: Some(window),
            hysteresis: Some(hysteresis),
            ..Default::default()
        },
    })
}

fn data(d: &Data) -> raw::Data {
    let sets = d.valid.iter().map(|set| (set.name.clone(), blend(&set.datasets)));
    raw::Data {
        seed: Some(d.seed),
        rule: Some(match d.rule {
            DataRule::MegatronCore => raw::DataRule::MegatronCore,
            DataRule::MegatronDeepSpeed => raw::DataRule::MegatronDeepSpeed,
        }),
        split: None,
        train: Some(blend(&d.train)),
        stages: Some(d.stages.iter().map(stage).collect()),
        valid: Some(raw::Named(sets.collect())),
        cache: Some(d.cache.clone()),
        tokenizer: d.tokenizer.clone(),
        eod: d.eod.map(|eod| raw::Eod {
            token: Some(eod.token),
            mask_loss: Some(eod.mask_loss),
            reset_positions: Some(eod.reset_positions),
            reset_attention: Some(eod.reset_attention),
        }),
        objective: Some(match d.objective {
            Objective::Causal => raw::ObjectiveForm::Name(raw::ObjectiveName::Causal),
            Objective::PrefixLm { loss_on_targets_only } => {
                let prefix_lm = raw::PrefixLm { loss_on_targets_only: Some(loss_on_targets_only) };
                raw::ObjectiveForm::Settings(raw::Objective { prefix_lm: Some(prefix_lm) })
            }
        }),
    }
}

fn stage(stage: &DataStage) -> raw::DataStage {
    raw::DataStage {
        from_samples: Some(stage.from),
        from_tokens: None,
        train: Some(blend(&stage.train)),
    }
}

fn blend(datasets: &[Dataset]) -> raw::Blend {
    let full = |dataset: &Dataset| {
        let (split, part, range) = match &dataset.part {
            Part::Split { weights, which } => {
                let parts = [raw::PartName::Train, raw::PartName::Valid, raw::PartName::Test];
                (Some(weights.clone()), Some(parts[*which]), None)
            }
            Part::Range(from, to) => (None, None, Some(format!("{from:?}..{to:?}"))),
        };
        raw::DatasetForm::Full(raw::Dataset {
            prefix: Some(dataset.prefix.clone()),
            weight: Some(dataset.weight),
            split,
            part,
            range,
        })
    };
    raw::Blend::Several(datasets.iter().map(full).collect())
}

fn batch(b: &Batch) -> raw::Batch {
    raw::Batch {
        micro: Some(b.micro),
        global: Some(b.global),
        ramp_up: b.ramp_up.map(|ramp| {
            raw::RampUpForm::Keys(raw::RampUp {
                start: Some(ramp.start),
                increment: Some(ramp.increment),
                samples: Some(ramp.samples),
            })
        }),
    }
}

fn optimizer(o: &Optimizer) -> raw::OptimizerForm {
    let Optimizer::AdamW { beta1, beta2, eps, weight_decay, clip } = o;
    let adamw = raw::AdamW {
        beta1: Some(*beta1),
        beta2: Some(*beta2),
        eps: Some(*eps),
        weight_decay: Some(*weight_decay),
        clip: Some(clip.unwrap_or(0.0)),
    };
    raw::OptimizerForm::Settings(raw::Optimizer { adamw: Some(adamw), ..Default::default() })
}

fn lr(lr: &Lr) -> raw::Lr {
    let span = |samples| raw::Span { samples: Some(samples), tokens: None };
    let mut decay = raw::Decay::default();
    match lr.decay {
        Decay::Constant => {}
        Decay::Linear { samples } => decay.linear = Some(span(samples)),
        Decay::Cosine { samples } => decay.cosine = Some(span(samples)),
        Decay::Wsd { decay_from, samples } => {
            let decay_samples = Some(samples - decay_from);
            let samples = Some(samples);
            decay.wsd = Some(raw::Wsd { decay_samples, samples, ..Default::default() });
        }
    }
    raw::Lr {
        peak: Some(lr.peak),
        min: Some(lr.min),
        warmup_samples: Some(lr.warmup_samples),
        warmup_tokens: None,
        decay: Some(match lr.decay {
            Decay::Constant => raw::DecayForm::Name(raw::DecayName::Constant),
            _ => raw::DecayForm::Lengths(decay),
        }),
    }
}

fn topology(t: &Topology) -> raw::Topology {
    let (schedule, chunks) = match t.schedule {
        Schedule::OneFOneB => (raw::Schedule::OneFOneB, None),
        Schedule::Interleaved { chunks } => (raw::Schedule::Interleaved, Some(chunks)),
        Schedule::GPipe => (raw::Schedule::GPipe, None),
    };
    let rule = raw::LayerSplitForm::Rule;
    raw::Topology {
        tensor: Some(t.tensor),
        pipeline: Some(t.pipeline),
        data: Some(t.data),
        zero: Some(t.zero),
        sequence_parallel: Some(t.sequence_parallel),
        schedule: Some(schedule),
        chunks,
        layer_split: Some(match &t.layer_split {
            LayerSplit::Uniform => rule(raw::LayerSplitName::Uniform),
            LayerSplit::TransformerAndEmbedding => {
                rule(raw::LayerSplitName::TransformerAndEmbedding)
            }
            LayerSplit::Balanced => rule(raw::LayerSplitName::Balanced),
            LayerSplit::Explicit(stages) => {
                let counts = stages.iter().map(|layers| raw::LayerCount(*layers));
                raw::LayerSplitForm::Layers(counts.collect())
            }
        }),
        neighbours: Some(match t.neighbours {
            Neighbours::Data => raw::Neighbours::Data,
            Neighbours::Pipeline => raw::Neighbours::Pipeline,
        }),
        recompute: Some(match t.recompute {
            Recompute::None => raw::Recompute::None,
            Recompute::Selective => raw::Recompute::Selective,
            Recompute::Full => raw::Recompute::Full,
        }),
    }
}

fn train(t: &Train) -> raw::Train {
    raw::Train {
        samples: Some(t.samples),
        tokens: None,
        steps: None,
        eval_interval: Some(t.eval_interval.unwrap_or(0)),
        eval_samples: Some(t.eval_samples),
        audit_interval: Some(t.audit_interval.unwrap_or(0)),
        seed: Some(t.seed),
        threads: t.threads,
        device: Some(match t.device {
            DeviceChoice::Auto => raw::Device::Auto,
            DeviceChoice::Cpu => raw::Device::Cpu,
            DeviceChoice::Cuda => raw::Device::Cuda,
        }),
    }
}
