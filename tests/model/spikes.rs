//! A step above its limits leaves every state as it was, to the bit, whatever the optimizer: a loss
//! that is too high, a gradient that was corrupted.

use crate::common;
use gptrain::data::Batch;
use gptrain::device::StepLimits;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups};
use gptrain::model::Inputs;

const LOOSE: StepLimits = StepLimits { loss: 100.0, norm: 100.0 };

#[test]
fn a_step_above_its_limits_changes_nothing() {
    let rules = ["adamw: {}", "adafactor: {}", "muon: {}", "adam8bit: {}"];
    let offload = ["none", "optimizer"];
    let cases = rules
        .iter()
        .flat_map(|rule| offload.map(|offload| (rule, offload)));
    for (rule, offload) in cases.filter(|(rule, to)| *to == "none" || rule.starts_with("adamw")) {
        let sets = [format!("optimizer={{{rule}}}"), format!("topology.offload={offload}")];
        let sets = sets.each_ref().map(String::as_str);
        let (cpu, m) = (Cpu::new(Some(1)), common::manifest(&sets));
        let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
        engine.init();
        let step = |limits, gradients: f32| {
            engine.set_limits(limits);
            let load = &mut |inputs: &Inputs| {
                let tokens = common::tokens(4, 24, 128, 5);
                inputs.upload(&cpu, &Batch::causal(&tokens, 4, 0, gradients / (4.0 * 24.0)));
                Ok(())
            };
            engine.step(load, 1, 3e-3).unwrap()
        };
        let first = step(Some(LOOSE), 1.0);
        assert!(!first.spiked && !first.skipped, "{first:?}");
        let before = (common::states(&engine), engine.scale().updates);
        let low = step(Some(StepLimits { loss: 0.1, ..LOOSE }), 1.0);
        // A gradient 1000 times what it should be, under a limit of 100.
        let corrupted = step(Some(StepLimits { loss: 1e9, ..LOOSE }), 1000.0);
        for outcome in [low, corrupted] {
            assert!(outcome.spiked && outcome.skipped && !outcome.stuck, "{rule}: {outcome:?}");
        }
        assert!(corrupted.grad_norm > 100.0, "{corrupted:?}");
        assert!((common::states(&engine), engine.scale().updates) == before, "{rule} {offload}");
        assert_eq!(engine.scale().skipped, 2);
        assert!(!step(None, 1.0).skipped);
        assert!(common::states(&engine) != before.0, "{rule}: the next step updates");
    }
}
