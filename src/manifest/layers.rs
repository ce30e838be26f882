//! Kinds of layers (`model.pattern`): what differs from layer to layer.

use super::choices::LayerAttention;
use super::define::{Written, checked, forms, read, sections, settings, written};
use super::rope::{self, Rope};
use super::{Model, Position};
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
    let kind = |form| match form {
        LayerForm::Name(attention) => LayerKind { attention, rope: None },
        LayerForm::Settings(raw) => LayerKind::read(raw),
    };
    forms.unwrap_or_default().into_iter().map(kind).collect()
}

/// Written form of a pattern.
pub fn written(pattern: &[LayerKind]) -> Option<Vec<LayerForm>> {
    let form = |kind: &LayerKind| match kind.rope {
        None => Some(LayerForm::Name(kind.attention)),
        Some(_) => kind.written().map(LayerForm::Settings),
    };
    (!pattern.is_empty()).then(|| pattern.iter().filter_map(form).collect())
}

impl Model {
    /// Kind of a layer; None if all layers are alike.
    pub fn kind(&self, layer: usize) -> Option<&LayerKind> {
        self.pattern.get(layer % self.pattern.len().max(1))
    }

    /// Window of a layer; None if its queries attend to all keys.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let full = |kind: &LayerKind| kind.attention == LayerAttention::Full;
        self.window.filter(|_| !self.kind(layer).is_some_and(full))
    }

    /// Rotary embedding of a layer.
    pub fn rope_of(&self, layer: usize) -> Option<Rope> {
        let Position::Rope(rope) = self.position else { return None };
        Some(self.kind(layer).and_then(|kind| kind.rope).unwrap_or(rope))
    }

    /// Different rotary embeddings of the layers, in the order of their first layers.
    pub fn ropes(&self) -> Vec<Rope> {
        let mut ropes = Vec::new();
        for layer in 0..self.layers.min(self.pattern.len().max(1)) {
            let new = self.rope_of(layer).filter(|rope| !ropes.contains(rope));
            ropes.extend(new);
        }
        ropes
    }

    /// The same model with the cheapest of its kinds of layers in all layers.
    pub fn lightest(&self) -> Model {
        let windowed = (0..self.layers).any(|layer| self.window_of(layer).is_some());
        let window = self.window.filter(|_| windowed);
        Model { window, pattern: Vec::new(), ..self.clone() }
    }
}
