//! Examples before a question (few-shot), chosen as lm-evaluation-harness does: by Python's
//! `random.Random(1234).sample`, once for each question in the file's order; for MMLU the first ones of the
//! question's subject. From the task's own file, one more is drawn, and the question itself is left out.

use super::formats::{QuestionText, read_lines};
use crate::random::RandomState;
use anyhow::Result;
use base::Problems;
use std::collections::BTreeSet;
use std::path::Path;

/// Seed of the harness (`fewshot_random_seed`).
const SEED: u32 = 1234;

/// Examples, and the generator that chooses among them.
pub struct Shots {
    count: usize,
    examples: Vec<QuestionText>,
    /// Whether the examples are the task's own questions.
    is_own_file: bool,
    random: RandomState,
}

impl Shots {
    /// Reads the examples of a task: `count` of them come before each question. `from` is another file
    /// than the task's own.
    pub fn read(task: &Path, from: Option<&Path>, count: usize) -> Result<Shots> {
        let path = from.unwrap_or(task);
        let place = path.display().to_string();
        let mut examples = Vec::new();
        let mut problems = Problems::default();
        let bytes = read_lines(path)?;
        for (i, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match QuestionText::parse(line) {
                Ok(text) => examples.push(text),
                Err((what, remedy)) if problems.list.len() < 20 => {
                    problems.add(format!("{place}:{}", i + 1), what, remedy);
                }
                Err(_) => break,
            }
        }
        problems.or(())?;
        let needed = count + usize::from(from.is_none());
        if examples.len() < needed {
            return Err(Problems::one(
                place,
                format!("has {} questions, and {count} examples need {needed}", examples.len()),
                "lower --shots, or name another file",
            )
            .into());
        }
        let random = RandomState::from_key(&[SEED]);
        Ok(Shots { count, examples, is_own_file: from.is_none(), random })
    }

    /// QuestionText before a question: its description and the examples. Call it for every question in order.
    pub fn text_before(&mut self, question: &QuestionText) -> String {
        let drawn = self.count + usize::from(self.is_own_file);
        let chosen: Vec<&QuestionText> = if question.subject.is_some() {
            self.examples
                .iter()
                .filter(|example| example.subject == question.subject)
                .take(drawn)
                .collect()
        } else {
            let numbers = sample(&mut self.random, self.examples.len(), drawn);
            numbers
                .into_iter()
                .map(|number| &self.examples[number])
                .collect()
        };
        let others = chosen
            .into_iter()
            .filter(|example| !self.is_own_file || *example != question);
        let examples = others.take(self.count).map(QuestionText::example);
        question.description() + &examples.collect::<String>()
    }
}

/// Python's `random.sample(range(n), k)`.
fn sample(random: &mut RandomState, n: usize, k: usize) -> Vec<usize> {
    // A list is cheaper than a set for a small population.
    let mut most_listed = 21;
    if k > 5 {
        most_listed += 4usize.pow(((k as f64 * 3.0).ln() / 4f64.ln()).ceil() as u32);
    }
    if n <= most_listed {
        let mut pool: Vec<usize> = (0..n).collect();
        return (0..k)
            .map(&mut |i: usize| {
                let j = draw_below(random, n - i);
                let chosen = pool[j];
                pool[j] = pool[n - i - 1];
                chosen
            })
            .collect();
    }
    let mut seen = BTreeSet::new();
    let mut chosen = Vec::new();
    while chosen.len() < k {
        let j = draw_below(random, n);
        if seen.insert(j) {
            chosen.push(j);
        }
    }
    chosen
}

/// Python's `random.randrange(n)`: the bits that n has, until they are below it.
fn draw_below(random: &mut RandomState, n: usize) -> usize {
    let bits = usize::BITS - n.leading_zeros();
    loop {
        let word = (random.word() >> (32 - bits)) as usize;
        if word < n {
            return word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected numbers from CPython 3: `r = random.Random(1234); r.sample(range(n), k)` in this order.
    #[test]
    fn samples_are_pythons() {
        let mut random = RandomState::from_key(&[SEED]);
        for (n, k, expected) in PYTHON {
            assert_eq!(sample(&mut random, *n, *k), *expected, "{n}, {k}");
        }
    }

    const PYTHON: &[(usize, usize, &[usize])] = &[
        (10, 3, &[7, 1, 0]),
        (21, 5, &[2, 18, 1, 20, 3]),
        (100, 5, &[98, 45, 30, 2, 3]),
        (100, 6, &[2, 44, 82, 79, 61, 78]),
        (85, 6, &[59, 19, 11, 23, 14, 1]),
        (86, 6, &[64, 62, 31, 8, 85, 69]),
        (
            1000,
            25,
            &[
                934, 477, 70, 615, 691, 91, 527, 592, 47, 276, 844, 569, 64, 660, 309, 492, 870,
                363, 272, 255, 671, 955, 204, 464, 897,
            ],
        ),
        (7, 7, &[4, 5, 0, 6, 3, 1, 2]),
    ];
}
