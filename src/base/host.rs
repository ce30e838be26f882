//! Name of this machine.

/// Host name, as in `uname -n`.
pub fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
