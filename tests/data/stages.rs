//! A run whose mixture changes on the way, by one manifest or by several.

use crate::common::binary::Lab;
use std::fs;

#[test]
fn one_manifest_with_stages_is_a_manifest_changed_at_a_resume() {
    let lab = Lab::new();
    for end in ["bin", "idx"] {
        let from = lab.path("corpus").with_extension(end);
        fs::copy(from, lab.path("more").with_extension(end)).unwrap();
    }
    // 4 samples a step: the mixture changes before step 7.
    let mixture = "[{prefix: corpus, weight: 3}, {prefix: more, weight: 1, split: '9,1'}]";
    let stages = format!("data.stages=[{{from_tokens: 384, train: {mixture}}}]"); // 24 of 16
    let staged = [&stages, "checkpoint.interval=3", "log.folder=runs/staged"];
    lab.run(&staged).expect(0, &[]);

    let changed = format!("data.train={mixture}");
    lab.run(&["checkpoint.interval=6"]).expect(0, &[]);
    let before = lab.losses("runs/a");
    let valid = "data.valid={valid: {prefix: corpus, split: '80,20,0'}}";
    let args = ["run", "run.yaml", "--resume-from", "step-00000006", "--set", &changed];
    let by_hand = lab.gptrain(&[&args[..], &["--set", valid]].concat());
    by_hand.expect(0, &[]);
    assert!(
        by_hand
            .out
            .contains("another mixture of datasets from sample 24 on")
    );
    let losses = lab.losses("runs/staged");
    assert_eq!(losses.len(), 12);
    assert_eq!(lab.losses("runs/a"), losses);
    assert!(before[..6] == losses[..6] && before[6..] != losses[6..], "the stage changes nothing");

    // From before the change, at it and after it: the same losses again, and nothing to be told.
    for step in ["step-00000003", "step-00000006", "step-00000009"] {
        let sets = staged.iter().flat_map(|set| ["--set", set]);
        let args = ["run", "run.yaml", "--resume-from", step]
            .into_iter()
            .chain(sets);
        let again = lab.gptrain(&args.collect::<Vec<_>>());
        again.expect(0, &[]);
        assert!(!again.out.contains(", is "), "{}", again.out);
        assert_eq!(lab.losses("runs/staged"), losses, "{step}");
    }
}
