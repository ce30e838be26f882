//! What is written becomes what is meant: defaults filled in, and every rule between keys checked.
//! Values stand in for what is missing or wrong; the report decides whether anyone sees them.

mod data;
mod shape;
mod time;

use super::report::{Report, short};
use super::{
    Checkpoint, Comm, DeviceChoice, Log, LossScale, Manifest, Optimizer, Plan, Precision, Train,
    raw,
};
use std::path::{Path, PathBuf};

/// `folder` is where relative paths to data start; `stem` names a manifest without a name.
pub fn manifest(raw: raw::Raw, report: &mut Report, folder: &Path, stem: &str) -> Manifest {
    let name = name(raw.name, report, stem);
    let topology = raw.topology.unwrap_or_default();
    let model = shape::model(raw.model.unwrap_or_default(), &topology, report);
    let batch = time::batch(raw.batch.unwrap_or_default(), &topology, report);
    let topology = shape::topology(topology, &model, &batch, report);
    let train = raw.train.unwrap_or_default();
    let samples = time::samples(&train, &batch, model.seq_len, report);
    let log = log(raw.log.unwrap_or_default(), &name);
    let run = data::Run { model: &model, samples, folder: &log.folder };
    let data = data::data(raw.data.unwrap_or_default(), &run, folder, report);
    let precision = precision(raw.precision, report);
    Manifest {
        name,
        precision,
        loss_scale: loss_scale(raw.loss_scale, precision, report),
        optimizer: optimizer(raw.optimizer, report),
        lr: time::lr(raw.lr.unwrap_or_default(), samples, model.seq_len, report),
        comm: comm(raw.comm.unwrap_or_default(), report),
        checkpoint: checkpoint(raw.checkpoint.unwrap_or_default()),
        log,
        train: Train {
            samples,
            eval_interval: eval_interval(&train, !data.valid.is_empty(), report),
            eval_samples: train.eval_samples.unwrap_or(10 * batch.global as u64),
            audit_interval: Some(train.audit_interval.unwrap_or(100)).filter(|steps| *steps > 0),
            seed: train.seed.unwrap_or(1234),
            threads: train.threads,
            device: match train.device.unwrap_or(raw::Device::Auto) {
                raw::Device::Auto => DeviceChoice::Auto,
                raw::Device::Cpu => DeviceChoice::Cpu,
                raw::Device::Cuda => DeviceChoice::Cuda,
            },
        },
        plan: plan(raw.plan.unwrap_or_default()),
        model,
        data,
        batch,
        topology,
    }
}

fn name(name: Option<String>, report: &mut Report, stem: &str) -> String {
    let name = name.unwrap_or_else(|| stem.to_string());
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(plain) {
        let what = format!("name \"{}\" cannot name a folder", short(&name));
        report.add("name", what, "use letters, digits, `-`, `_` and `.`");
    }
    name
}

fn precision(precision: Option<raw::Precision>, report: &mut Report) -> Precision {
    let known = match precision {
        None | Some(raw::Precision::F32) => return Precision::F32,
        Some(raw::Precision::Tf32) => return Precision::Tf32,
        Some(raw::Precision::Bf16) => return Precision::Bf16,
        Some(raw::Precision::Fp16) => return Precision::Fp16,
        Some(raw::Precision::Fp8) => "fp8",
    };
    let what = format!("precision {known} is not in this version");
    report.add("precision", what, "take bf16, fp16 or f32");
    Precision::Bf16
}

fn loss_scale(
    form: Option<raw::LossScaleForm>,
    precision: Precision,
    report: &mut Report,
) -> Option<LossScale> {
    if precision != Precision::Fp16 {
        if form.is_some() && report.sound(&["precision"]) {
            let what =
                "loss_scale is for precision fp16: f32 and bf16 have a range that needs none";
            report.add("loss_scale", what, "remove it, or set precision: fp16");
        }
        return None;
    }
    let settings = match form {
        None => raw::LossScale::default(),
        Some(raw::LossScaleForm::Constant(scale)) => {
            raw::LossScale { constant: Some(scale.0), ..Default::default() }
        }
        Some(raw::LossScaleForm::Settings(settings)) => settings,
    };
    let raw::LossScale { constant, initial, min, window, hysteresis } = settings;
    let (window, hysteresis) = (window.unwrap_or(1000), hysteresis.unwrap_or(2));
    if let Some(scale) = constant {
        if initial.is_some() || min.is_some() {
            let what = "loss_scale is constant, and has an initial or lowest value";
            report.add("loss_scale.constant", what, "keep constant alone, or remove it");
        }
        return Some(LossScale::Constant { scale, window, hysteresis });
    }
    let (initial, min) = (initial.unwrap_or(4_294_967_296.0), min.unwrap_or(1.0));
    if min > initial {
        let what = format!("loss_scale.min {min} is above loss_scale.initial {initial}");
        report.add("loss_scale.min", what, "lower min, or raise initial");
    }
    Some(LossScale::Dynamic { initial, min, window, hysteresis })
}

fn optimizer(form: Option<raw::OptimizerForm>, report: &mut Report) -> Optimizer {
    use raw::OptimizerName::{Adafactor, Adam8bit, Adamw};
    let (names, adamw) = match form {
        None => (vec![Adamw], None),
        Some(raw::OptimizerForm::Name(name)) => (vec![name], None),
        Some(raw::OptimizerForm::Settings(all)) => {
            let given = [
                all.adamw.is_some().then_some(Adamw),
                all.adam8bit.is_some().then_some(Adam8bit),
                all.adafactor.is_some().then_some(Adafactor),
            ];
            (given.into_iter().flatten().collect(), all.adamw)
        }
    };
    for (name, written) in [(Adam8bit, "adam8bit"), (Adafactor, "adafactor")] {
        if names.contains(&name) {
            let path = format!("optimizer.{written}");
            report.add(&path, format!("optimizer {written} is not in this version"), "take adamw");
        }
    }
    if names.len() > 1 && report.sound(&["optimizer"]) {
        report.add("optimizer", "optimizer has more than one kind", "keep one");
    }
    let adamw = adamw.unwrap_or_default();
    let clip = adamw.clip.unwrap_or(1.0);
    Optimizer::AdamW {
        beta1: adamw.beta1.unwrap_or(0.9),
        beta2: adamw.beta2.unwrap_or(0.95),
        eps: adamw.eps.unwrap_or(1e-8),
        weight_decay: adamw.weight_decay.unwrap_or(0.1),
        clip: (clip > 0.0).then_some(clip),
    }
}

fn comm(raw: raw::Comm, report: &mut Report) -> Comm {
    if let Some(given) = &raw.rendezvous {
        let port = given.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            let what = format!("comm.rendezvous \"{}\" is not host:port", short(given));
            report.add("comm.rendezvous", what, "as in n01:29500, or remove it");
        }
    }
    Comm {
        timeout_s: raw.timeout_s.unwrap_or(300.0),
        start_timeout_s: raw.start_timeout_s.unwrap_or(120.0),
        rendezvous: raw.rendezvous,
        gpu_transport: raw.gpu_transport.unwrap_or(raw::GpuTransport::Nccl),
    }
}

fn checkpoint(raw: raw::Checkpoint) -> Checkpoint {
    Checkpoint {
        interval: raw.interval.unwrap_or(1000),
        keep_last: raw.keep_last,
        keep_every: raw.keep_every,
        in_flight: raw.in_flight.unwrap_or(1),
    }
}

fn plan(raw: raw::Plan) -> Plan {
    let raw::Plan { hardware, framework, price, budget, availability } = raw;
    Plan { hardware, framework, price, budget, availability }
}

fn log(raw: raw::Log, name: &str) -> Log {
    Log {
        folder: raw.folder.unwrap_or_else(|| PathBuf::from("runs").join(name)),
        interval: raw.interval.unwrap_or(1),
        tensorboard: raw.tensorboard.unwrap_or(true),
        peak_tflops: raw.peak_tflops,
    }
}

fn eval_interval(train: &raw::Train, has_valid: bool, report: &mut Report) -> Option<u64> {
    match train.eval_interval {
        Some(0) => None,
        Some(interval) => {
            if !has_valid && report.sound(&["data", "train.eval_interval"]) {
                let what = format!("evaluation every {interval} steps, but no validation set");
                let remedy = "add data.valid, or a split with a second share, or set it to 0";
                report.add("train.eval_interval", what, remedy);
            }
            Some(interval)
        }
        None => has_valid.then_some(1000),
    }
}
