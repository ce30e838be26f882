//! Table of model families: name, and defaults of the architecture.

use super::choices::{Bias, Ffn, NormKind};
use super::rope::{PositionForm, PositionName};

/// Defaults of a family's architecture.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    pub position: PositionName,
    pub ffn: Ffn,
    pub norm: NormKind,
    pub bias: Bias,
    pub layernorm_eps: f32,
    pub tied_head: bool,
    pub qk_norm: bool,
    /// Only if the family is set, not if it follows from the position.
    pub embedding_layernorm: bool,
}

const GPT: Architecture = Architecture {
    position: PositionName::Learned,
    ffn: Ffn::Gelu,
    norm: NormKind::Layer,
    bias: Bias::All,
    layernorm_eps: 1e-5,
    tied_head: true,
    qk_norm: false,
    embedding_layernorm: false,
};

const LLAMA: Architecture = Architecture {
    position: PositionName::Rope,
    ffn: Ffn::Swiglu,
    norm: NormKind::Rms,
    bias: Bias::None,
    tied_head: false,
    ..GPT
};

/// Defines the families from rows `Variant = "name", architecture;`.
macro_rules! families {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $architecture:expr;)*) => {
        base::choices! {
            /// Families of models: each has its defaults, and its names in Hugging Face's folders.
            Family { $($(#[$doc])* $variant = $word,)* }
        }

        impl Family {
            /// Defaults of its architecture.
            pub const fn defaults(self) -> Architecture {
                match self {
                    $(Family::$variant => $architecture,)*
                }
            }
        }
    };
}

families! {
    /// GPT-2: learned positions.
    Gpt2 = "gpt2", GPT;
    /// BLOOM: ALiBi, and a layernorm after the embedding.
    Bloom = "bloom",
        Architecture { position: PositionName::Alibi, embedding_layernorm: true, ..GPT };
    /// Llama 2 and 3: RMS norms, SwiGLU, rotary positions, no biases.
    Llama = "llama", LLAMA;
    /// Mistral: as Llama, often with a window.
    Mistral = "mistral", LLAMA;
    /// Qwen2 and Qwen2.5: as Llama, with biases of queries, keys and values.
    Qwen2 = "qwen2", Architecture { bias: Bias::Qkv, layernorm_eps: 1e-6, ..LLAMA };
    /// Qwen3: as Llama, with norms of queries and keys.
    Qwen3 = "qwen3", Architecture { qk_norm: true, layernorm_eps: 1e-6, ..LLAMA };
}

impl Family {
    /// Default family.
    pub(super) fn for_position(position: Option<&PositionForm>) -> Family {
        match position {
            Some(PositionForm::Name(PositionName::Alibi)) => Family::Bloom,
            _ => Family::Gpt2,
        }
    }

    /// Whether it is Llama or a variant of it.
    pub fn is_llama(self) -> bool {
        self.defaults().ffn == Ffn::Swiglu
    }
}
