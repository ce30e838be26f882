//! Comparison of a folder's tensors with the parameters of the model that its settings describe.

use base::Problems;

/// Differences reported in one message, at most.
const MOST: usize = 8;

/// Differences between a folder and a model.
#[derive(Clone)]
pub struct Comparison {
    place: String,
    /// Source of the expected shapes.
    source: &'static str,
    remedy: &'static str,
    problems: Problems,
}

impl Comparison {
    /// `place` is the folder or the file in messages, `source` says what makes the expected shapes.
    pub fn new(place: impl Into<String>, source: &'static str, remedy: &'static str) -> Comparison {
        Comparison { place: place.into(), source, remedy, problems: Problems::default() }
    }

    /// Comparison with the model of Megatron's arguments.
    pub fn with_args(folder: &str) -> Comparison {
        Comparison::new(folder, "args", "is args that of this model?")
    }

    pub fn add(&mut self, what: String) {
        self.problems.add(self.place.clone(), what, self.remedy);
    }

    /// Compares the shape of a tensor that belongs to the model; `found` is None if it is missing.
    pub fn shape(&mut self, name: &str, found: Option<&[usize]>, expected: &[usize]) {
        let source = self.source;
        match found {
            None => self.add(format!("has no {name}")),
            Some(found) if found != expected => {
                self.add(format!("{name} is {found:?}, {source} makes it {expected:?}"));
            }
            Some(_) => {}
        }
    }

    pub fn finish(mut self) -> Result<(), Problems> {
        self.problems.list.truncate(MOST);
        self.problems.or(())
    }
}

/// Shape of a tensor of so many rows and columns that is part of a parameter of `shape`: a vector has no
/// columns.
pub fn like(shape: &[usize], [rows, cols]: [usize; 2]) -> Vec<usize> {
    if shape.len() == 1 { vec![rows] } else { vec![rows, cols] }
}
