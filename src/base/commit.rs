//! Commit that the program was built from. The program's own crate sets it.

use std::sync::OnceLock;

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit at the start of the program.
pub fn set_commit(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

/// The commit; "unknown" in a test, and in a program that was built without a repository.
pub fn commit() -> &'static str {
    COMMIT.get().unwrap_or(&"unknown")
}
