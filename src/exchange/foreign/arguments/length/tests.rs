//! DeepSpeed's configuration as a warm-up of the length.

use super::super::super::Choices;
use super::super::pickled_arguments;
use super::*;

const BLOCK: &str = "curriculum_type=seqlen schedule_type=fixed_linear min_difficulty=64 \
                     max_difficulty=128";
const STEPS: &str = "difficulty_step=8 total_curriculum_step=50";

fn read(args: &str, with_config: bool, schedule: &str) -> (Option<String>, String) {
    let args = format!("{args} seq_length=128 curriculum_learning=True");
    let tree = pickled_arguments(&args);
    let config = nested(schedule);
    let choices = Choices { dry: true, ..Choices::default() };
    let args = Arguments::new(tree.root(), "x".into(), "mcore", &choices);
    let mut settings = Settings::default();
    let mut notes = Vec::new();
    let config = with_config.then(|| config.root());
    args.length_ramp_up(config, &mut settings, &mut notes)
        .unwrap();
    let said = format!("{} {}", notes.join(" "), args.refusals());
    (settings.get(KEY).map(str::to_string), said)
}

/// DeepSpeed's configuration with the block, pickled: a dict of a dict of a dict.
fn nested(schedule: &str) -> super::super::super::super::torch::Tree {
    let mut pickle = b"\x80\x02}".to_vec();
    let text =
        |word: &str| [b"X", &(word.len() as u32).to_le_bytes()[..], word.as_bytes()].concat();
    let pairs = |pickle: &mut Vec<u8>, words: &str| {
        for (name, value) in words
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
        {
            pickle.extend(text(name));
            match value.parse::<u8>() {
                Ok(number) => pickle.extend([b'K', number]),
                Err(_) => pickle.extend(text(value)),
            }
        }
    };
    pickle.extend([&text("curriculum_learning")[..], b"}("].concat());
    let other = |pair: &&str| !schedule.starts_with(pair.split('=').next().unwrap_or(pair));
    let block: Vec<&str> = BLOCK.split_whitespace().filter(other).collect();
    pairs(&mut pickle, &format!("{} {schedule}", block.join(" ")));
    pickle.extend([&text("schedule_config")[..], b"}("].concat());
    pairs(&mut pickle, STEPS);
    pickle.extend(b"uus.");
    super::super::super::super::torch::pickled(&pickle, "x").unwrap()
}

#[test]
fn the_block_of_deepspeeds_configuration_is_a_ramp_in_samples() {
    let constant = "global_batch_size=16";
    let (ramp, said) = read(constant, true, "");
    assert_eq!(ramp.as_deref(), Some("64 8 800"), "{said}");
    // A step is rounded down to a multiple of the increment, as DeepSpeed does it.
    let (ramp, _) = read(constant, true, "min_difficulty=70");
    assert_eq!(ramp.as_deref(), Some("64 8 800"));
    let (ramp, said) = read(constant, false, "");
    assert!(ramp.is_none() && said.contains("set batch.length_ramp_up"), "{said}");
    for (other, says) in [
        ("schedule_type=fixed_root", "schedule_type is fixed_root"),
        ("curriculum_type=vocab", "curriculum_type is vocab"),
        ("max_difficulty=100", "max_difficulty is 100"),
    ] {
        let (_, said) = read(constant, true, other);
        assert!(said.contains(says), "{said}");
    }
}
