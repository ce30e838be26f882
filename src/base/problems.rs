//! User errors, collected so that all are reported at once, each with a remedy.

use crate::redact;
use std::fmt;

/// User error: its place, what is wrong (with numbers), and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// For example `run.yaml:12`, `runs/a/step-40`, `--prompt`.
    pub place: String,
    /// For example "hidden 100 is not a multiple of heads 12".
    pub what: String,
    /// For example "set model.hidden to 96 or 108"; may be empty if `what` includes the remedy.
    pub remedy: String,
}

/// Every error found in one input. The program then ends with exit code 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    pub list: Vec<Problem>,
}

impl Problems {
    /// List with one entry, for returning as an error.
    pub fn one(
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problems {
        let mut problems = Problems::default();
        problems.add(place, what, remedy);
        problems
    }

    /// Refusal of what a feature of the build would do. `other` is another remedy.
    pub fn without(place: impl Into<String>, feature: &str, other: &str) -> Problems {
        Problems::one(
            place,
            format!("this gptrain was built without {feature}"),
            format!("build with it (`cargo build --release`){other}"),
        )
    }

    pub fn add(
        &mut self,
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let [place, what, remedy] =
            [place.into(), what.into(), remedy.into()].map(|text| redact(&text).into_owned());
        self.list.push(Problem { place, what, remedy });
    }

    /// Moves the `Problems` of a result into the list. Returns other errors at once.
    pub fn collect<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                self.list.extend(error.downcast::<Problems>()?.list);
                Ok(None)
            }
        }
    }

    /// Returns `value` if the list is empty; otherwise fails with the list, without duplicates.
    pub fn or<T>(mut self, value: T) -> Result<T, Problems> {
        let mut said = Vec::new();
        self.list.retain(|problem| {
            let new = !said.contains(problem);
            new.then(|| said.push(problem.clone()));
            new
        });
        if self.list.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.list.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}: {}", problem.place, problem.what)?;
            if !problem.remedy.is_empty() {
                write!(f, "\n    → {}", problem.remedy)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
