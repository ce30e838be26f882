//! Kinds of layers (`model.pattern`): what differs from layer to layer.

use super::choices::LayerAttention;
use super::define::{Written, checked, forms, read, sections, settings, written};
use super::rope::{self, Rope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
#[derive(Copy)]
/// Kind of a layer.
LayerKind(raw) {
    /// Keys that a query attends to: full, or window, the last model.window keys. Default: full.
    attention: LayerAttention = LayerAttention::Full;
    /// Rotary embedding of these layers. Default: that of model.position.
    rope: rope::raw::Rope => Option<Rope> = raw.rope.map(Rope::read);
}
}

forms! {
    /// Kind of a layer, by name or with settings.
    LayerForm {
        /// By name.
        Name(LayerAttention),
        /// With settings.
        Settings(raw::LayerKind),
    }
}

/// Kinds of a written pattern; none if all layers are alike.
pub fn pattern(forms: Option<Vec<LayerForm>>) -> Vec<LayerKind> {
    forms
        .unwrap_or_default()
        .into_iter()
        .map(|form| match form {
            LayerForm::Name(attention) => LayerKind { attention, rope: None },
            LayerForm::Settings(raw) => LayerKind::read(raw),
        })
        .collect()
}

/// Written form of a pattern.
pub fn written(pattern: &[LayerKind]) -> Option<Vec<LayerForm>> {
    (!pattern.is_empty()).then(|| {
        pattern
            .iter()
            .filter_map(|kind| match kind.rope {
                None => Some(LayerForm::Name(kind.attention)),
                Some(_) => kind.written().map(LayerForm::Settings),
            })
            .collect()
    })
}
