//! Comparison of a folder's tensors with the parameters of the model that its settings describe.

use base::Problems;
use model::Param;
use std::collections::BTreeSet;

/// Differences reported in one message, at most.
const MOST: usize = 8;

/// Differences between a folder and a model.
pub struct Comparison {
    place: String,
    remedy: &'static str,
    problems: Problems,
    known: BTreeSet<String>,
}

impl Comparison {
    /// `place` is the folder or the file in messages, `remedy` the advice of each.
    pub fn new(place: impl Into<String>, remedy: &'static str) -> Comparison {
        let (problems, known) = Default::default();
        Comparison { place: place.into(), remedy, problems, known }
    }

    /// Comparison with the model of Megatron's arguments.
    pub fn with_args(folder: &str) -> Comparison {
        Comparison::new(folder, "is args that of this model?")
    }

    pub fn add(&mut self, what: String) {
        self.problems.add(self.place.clone(), what, self.remedy);
    }

    /// Adds that the folder has nothing for a parameter.
    pub fn missing(&mut self, param: &Param) {
        self.add(format!("has no parameter for {}", param.name));
    }

    /// Compares the shape of a tensor that belongs to the model; `found` is None if it is missing.
    /// `said` is the source of the expected shape.
    pub fn shape(&mut self, name: &str, found: Option<&[usize]>, expected: &[usize], said: &str) {
        self.known.insert(name.to_string());
        match found {
            None => self.add(format!("has no {name}")),
            Some(found) if found != expected => {
                self.add(format!("{name} is {found:?}, {said} makes it {expected:?}"));
            }
            Some(_) => {}
        }
    }

    /// Marks a tensor as one of the model's.
    pub fn mark(&mut self, name: &str) {
        self.known.insert(name.to_string());
    }

    /// Adds the tensors whose shapes were not compared: the model has none of them.
    pub fn others<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let others: Vec<&str> = names.filter(|name| !self.known.contains(*name)).collect();
        for name in others {
            self.add(format!("{name} is not in gptrain's model"));
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
