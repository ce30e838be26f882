//! Marker of errors that the user's input causes.

use std::fmt::{self, Display};
use std::io::{self, ErrorKind};

/// Error, or context of one, that wrong input causes: a file that is missing, damaged or of another
/// kind. Printed as one line with its causes; the program then ends with exit code 2.
#[derive(Clone, Debug)]
pub struct WrongInput(pub String);

impl WrongInput {
    /// Adds `what` to an error of reading a file: as context of wrong input, or of a failure if a
    /// sound file could have given the error too.
    pub fn reading(error: io::Error, what: String) -> anyhow::Error {
        use ErrorKind::*;
        let kinds_of_input = [
            NotFound,
            NotADirectory,
            IsADirectory,
            InvalidInput,
            InvalidData,
            UnexpectedEof,
            FileTooLarge,
        ];
        let kind = error.kind();
        let error = anyhow::Error::new(error);
        if kinds_of_input.contains(&kind) {
            error.context(WrongInput(what))
        } else {
            error.context(what)
        }
    }
}

impl Display for WrongInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongInput {}

/// `ensure!` whose error is `WrongInput`.
#[macro_export]
macro_rules! ensure_input {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::WrongInput(format!($($message)+)).into());
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_file_is_wrong_input_and_one_of_the_disk_is_not() {
        let wrong = |kind: ErrorKind| {
            let error = WrongInput::reading(kind.into(), "cannot read a".into()).context("later");
            assert!(format!("{error:#}").starts_with("later: cannot read a: "), "{error:#}");
            error.is::<WrongInput>()
        };
        assert!(wrong(ErrorKind::NotFound) && wrong(ErrorKind::UnexpectedEof));
        assert!(!wrong(ErrorKind::PermissionDenied) && !wrong(ErrorKind::Other));
    }
}
