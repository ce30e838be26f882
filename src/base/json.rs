//! JSON has no NaN and no infinity: serde writes them as `null`.

use serde::{Deserialize, Deserializer};

/// Reads a number, with `null` as NaN.
pub fn null_is_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}
