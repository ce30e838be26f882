//! Note on a name that says another size than the model has.

use super::weights::{Module, parameters, table};
use base::Count;
use manifest::Model;

/// Factor between the parameters that the name says and those of the model above which it is noted.
const NEAR: f64 = 1.25;

/// Note if the name says a size, such as 104B, that the model is far from. Embeddings may count or not:
/// published names differ in that.
pub fn named_size_note(name: &str, m: &Model) -> Option<String> {
    let (word, named) = named_size(name)?;
    let all = parameters(m) as f64;
    if (layer_parameters(m) / NEAR..all * NEAR).contains(&named) {
        return None;
    }
    let ratio = m.ffn_hidden as f64 / m.hidden as f64;
    Some(format!(
        "the name says {word}, and the model has {:.1} B parameters ({} × {}, feed-forward {ratio:.1} × \
         hidden)\n    → check model.layers, model.hidden and model.ffn_hidden, or change the name",
        all / 1e9,
        Count(m.layers as u64).with_noun("layer"),
        Count(m.hidden as u64),
    ))
}

fn layer_parameters(m: &Model) -> f64 {
    let blocks = table(m)
        .into_iter()
        .filter(|spec| spec.module == Module::Block);
    blocks
        .map(|spec| (m.layers * spec.rows * spec.cols) as f64)
        .sum()
}

/// First word of the name that is a size, and its parameters: "104B", "1.3b", "124m", "7b1".
fn named_size(name: &str) -> Option<(&str, f64)> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    words
        .filter_map(|word| Some((word, size(&word.to_ascii_lowercase())?)))
        .next()
}

fn size(word: &str) -> Option<f64> {
    let unit = word.find(['m', 'b', 't'])?;
    let (whole, rest) = word.split_at(unit);
    let (scale, decimals) = rest.split_at(1);
    let is_digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if !whole.starts_with(|c: char| c.is_ascii_digit()) || !is_digits(decimals) {
        return None;
    }
    let number = match decimals {
        "" => whole.parse::<f64>().ok()?,
        _ if whole.contains('.') => return None,
        _ => format!("{whole}.{decimals}").parse().ok()?,
    };
    let scale = match scale {
        "m" => 1e6,
        "b" => 1e9,
        _ => 1e12,
    };
    Some(number * scale).filter(|size| *size > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use manifest::{Family, Sizes};

    #[test]
    fn sizes_are_found_in_names() {
        let all = [
            ("tr8-104B-wide", Some(104e9)),
            ("bloom-7b1-adafactor", Some(7.1e9)),
            ("gpt2_124m", Some(124e6)),
            ("opt-1.3b", Some(1.3e9)),
            ("tr8b", None),
            ("quickstart-8bit", None),
            ("run-2026.11", None),
            ("b", None),
            ("0b", None),
        ];
        for (name, expected) in all {
            assert_eq!(named_size(name).map(|(_, size)| size), expected, "{name}");
        }
    }

    /// 64 layers of 11,600 have 103.9 billion parameters with a feed-forward layer four times as wide,
    /// and 52 with one that is not wider.
    #[test]
    fn a_narrow_feed_forward_layer_contradicts_the_name() {
        let sizes = Sizes { layers: 64, hidden: 11_600, heads: 80, vocab: 50_257, seq_len: 2048 };
        let mut m = Model::with_defaults(Family::Gpt2, sizes, 1);
        assert_eq!(named_size_note("tr8-104b", &m), None);
        m.ffn_hidden = 11_600;
        let note = named_size_note("tr8-104b", &m).unwrap();
        assert!(note.contains("says 104b") && note.contains("has 52."), "{note}");
        assert!(note.contains("1.0 × hidden"), "{note}");
        assert_eq!(named_size_note("mine", &m), None);
    }
}
