//! `--set` in the text of a new manifest.

use super::edit::edit;
use super::overrides::from_working_folder;
use super::read::parse;
use base::Problems;
use std::path::Path;

/// The text with `sets` applied, for a manifest that is called `name` and is to be stored in
/// `folder`. Mistakes in the sets are those that `parse` finds. Where the lines cannot be changed
/// (settings written in one line), it is the record of the manifest, without comments. Relative paths
/// of the sets start at the working folder.
pub fn rewrite(text: &str, name: &str, folder: &Path, sets: &[String]) -> Result<String, Problems> {
    let sets = from_working_folder(sets);
    let wanted = parse(text, name, folder, &sets)?;
    Ok(edit(text, &sets, |text: &str| {
        parse(text, name, folder, &[]).is_ok_and(|read| read.manifest == wanted.manifest)
    })
    .unwrap_or_else(|| wanted.record()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
name: a
model: # of a model
  layers: 1
  hidden: 16
  heads: 1
  vocab: 16
  seq_len: 16
precision: f32 # exact

# on data
data:
  train: none
batch: {micro: 1, global: 1}
lr:
  peak: 1e-3 # of the rate
  decay: constant
train:
  steps: 10
";

    fn with(sets: &[&str]) -> Result<String, Problems> {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        rewrite(TEXT, "a.yaml", Path::new("/"), &sets)
    }

    #[test]
    fn the_lines_that_are_set_change_and_comments_stay() {
        let text = with(&[
            "precision=bf16",
            "optimizer.lr=2e-3",
            "train.tokens=3200",
            "lr.decay={linear: {samples: 100}}",
            "data.eod.token=3",
            "optimizer.adamw.beta2=0.95",
        ])
        .unwrap();
        for line in [
            "# a comment\n",
            "model: # of a model\n  layers: 1\n",
            "\nprecision: bf16 # --set\n\n# on data\n",
            "\ndata:\n  eod: {token: 3} # --set\n  train: none\n",
            "\n  peak: 2e-3 # --set\n  decay: {linear: {samples: 100}} # --set\n",
            "\ntrain:\n  tokens: 3200 # --set\n",
            "\noptimizer: {adamw: {beta2: 0.95}} # --set\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in:\n{text}");
        }
    }

    #[test]
    fn a_setting_within_a_line_changes_that_line() {
        let text = with(&["batch.global=4", "data={train: none, eod: {token: 3}}"]).unwrap();
        let line = "\nbatch: {micro: 1, global: 4} # --set\n";
        assert!(text.contains(line) && text.starts_with("# a comment\n"), "{text}");
        let sets = ["batch.micro=2", "data.eod.mask_loss=true"].map(String::from);
        let text = rewrite(&text, "a.yaml", Path::new("/"), &sets).unwrap();
        assert!(text.starts_with("# a comment\n"), "{text}");
        let read = parse(&text, "a.yaml", Path::new("/"), &[])
            .unwrap()
            .manifest;
        assert_eq!((read.batch.micro, read.batch.global, read.train.samples), (2, 4, 40));
        assert!(read.data.eod.unwrap().mask_loss);
        for wrong in ["train.steps=-4", "nonsense.key=1", "precision=bf17"] {
            assert!(with(&[wrong]).is_err(), "{wrong}");
        }
    }
}
