//! The user's mistakes, collected so that all are reported at once, each with a remedy.

use std::fmt;

/// One mistake: where it is, what is wrong (with the numbers), and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// `run.yaml:12`, `runs/a/step-40`, `--prompt`.
    pub place: String,
    /// "hidden 100 is not a multiple of heads 12".
    pub what: String,
    /// "set model.hidden to 96 or 108"; may be empty where the remedy is in `what`.
    pub remedy: String,
}

/// Every mistake found in one input. As an error it ends the program with exit code 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    pub list: Vec<Problem>,
}

impl Problems {
    /// A list with one entry, ready to be returned as an error.
    pub fn one(
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problems {
        let mut problems = Problems::default();
        problems.add(place, what, remedy);
        problems
    }

    pub fn add(
        &mut self,
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.list.push(Problem { place: place.into(), what: what.into(), remedy: remedy.into() });
    }

    /// Takes the mistakes of a result into the list; other errors are returned at once.
    pub fn collect<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                self.list.extend(error.downcast::<Problems>()?.list);
                Ok(None)
            }
        }
    }

    /// `value` if nothing was found wrong, else all that was, each once.
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
