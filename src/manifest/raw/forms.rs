//! Values with a short and a long form.

use super::*;

/// Ways to write a thing that has a short form. Each alternative is another kind of YAML node, so
/// that what was meant is always plain.
macro_rules! forms {
    ($($(#[$meta:meta])* $name:ident { $($(#[$why:meta])* $variant:ident($inner:ty),)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
        #[serde(untagged)]
        pub enum $name { $($(#[$why])* $variant($inner),)* }
    )*};
}

forms! {
    /// One rate for all three places, or one each.
    DropoutForm {
        /// One rate for all.
        Same(Rate),
        /// One each.
        Each(Dropout),
    }
    /// A number that stays, or settings.
    LossScaleForm {
        /// One that stays.
        Constant(Factor),
        /// Settings.
        Settings(LossScale),
    }
    /// One dataset or several.
    Blend {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// One dataset.
        One(Dataset),
        /// Several, each with a weight.
        Several(Vec<DatasetForm>),
    }
    /// A dataset, or only its prefix.
    DatasetForm {
        /// PREFIX of PREFIX.bin and PREFIX.idx.
        Prefix(PathBuf),
        /// With a weight, a split or a range.
        Full(Dataset),
    }
    /// What is learned, by name or with settings.
    ObjectiveForm {
        /// By name.
        Name(ObjectiveName),
        /// With settings.
        Settings(Objective),
    }
    /// The ramp-up, by keys or as Megatron writes it.
    RampUpForm {
        /// Megatron's `START INCREMENT SAMPLES`, such as `16 16 9_765_625`.
        Text(String),
        /// By keys.
        Keys(RampUp),
    }
    /// The update rule, by name or with settings.
    OptimizerForm {
        /// By name, with its defaults.
        Name(OptimizerName),
        /// With settings.
        Settings(Optimizer),
    }
    /// The shape after the warm-up, by name or with lengths.
    DecayForm {
        /// By name, over the run.
        Name(DecayName),
        /// With lengths.
        Lengths(Decay),
    }
    /// A rule, or the layers of each stage.
    LayerSplitForm {
        /// By a rule.
        Rule(LayerSplitName),
        /// Layers of each stage, first to last.
        Layers(Vec<LayerCount>),
    }
}

/// A drop rate.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Rate(#[schemars(range(min = 0.0, max = 0.999))] pub f32);

/// A loss scale.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Factor(#[schemars(range(min = 1e-9, max = 1e18))] pub f64);

/// Layers of one stage.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct LayerCount(#[schemars(range(min = 1, max = 10_000))] pub usize);

/// Validation sets by name, in the order written.
#[derive(Clone, Debug, Default)]
pub struct Named(pub Vec<(String, Blend)>);

impl Serialize for Named {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, blend)| (name, blend)))
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Named, D::Error> {
        let sorted = BTreeMap::<String, Blend>::deserialize(deserializer)?;
        Ok(Named(sorted.into_iter().collect()))
    }
}
