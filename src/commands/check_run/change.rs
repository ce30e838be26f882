//! Differences between two computations of the same steps: of settings, of the state they begin with, of
//! rules of the update, of the loss's mean and of the place in the data.

use exchange::foreign::Decayed;

/// Departures of a computation from the manifest that an import would write.
#[derive(Clone, Debug)]
pub struct Change {
    /// `KEY=VALUE`.
    pub sets: Vec<String>,
    /// Whether the softmax leaves out the rows that pad the vocabulary.
    pub mask_padding: bool,
    pub state: StateChange,
    pub mean: LossMean,
    /// First sample, if it is not the one after the checkpoint's.
    pub first_sample: Option<u64>,
    /// Steps by which the rate is late; early if negative.
    pub rate_delay: i64,
    pub update: UpdateChange,
}

/// Change of the weights and moments that the first step begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChange {
    None,
    /// Queries and keys whose neighbouring columns turn.
    FromNeighbours,
    /// Queries and keys whose halves turn, which the import took for neighbours.
    FromHalves,
    /// Each tensor rank computes with its own copies of norms and biases.
    OwnCopies,
}

/// Mean of the tokens' losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossMean {
    /// Over the tokens of each sample, then over samples.
    Samples,
    /// Over the tokens of each micro-batch, then over micro-batches.
    MicroBatches,
    /// Over the tokens of the global batch.
    Tokens,
}

/// Changed rules of the update.
#[derive(Clone, Copy, Debug)]
pub struct UpdateChange {
    pub decayed: Decayed,
    /// Part of the gradient in the norm, which is logged and clips.
    pub counted: Counted,
    pub tied: TiedGradients,
}

/// Part of the gradient in its norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Whole,
    /// Shares of one tensor rank of several.
    TensorRank {
        rank: usize,
        ranks: usize,
    },
    /// Norms and biases once for each tensor rank, which has a copy.
    EveryCopy {
        ranks: usize,
    },
    WithoutStage(usize),
    OnlyStage(usize),
    WithoutEmbedding,
    WithoutVectors,
}

/// Gradients of an embedding that is also the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedGradients {
    Summed,
    /// Two copies, each updated by its own gradient.
    Separate,
    /// Only the gradient of the lookup updates the weight.
    OnlyLookup,
    /// Only the gradient of the logits updates the weight.
    OnlyHead,
}

impl Change {
    /// None, for a trainer that decays these parameters and takes this mean.
    pub fn none(decayed: Decayed, mean: LossMean) -> Change {
        let counted = Counted::Whole;
        let tied = TiedGradients::Summed;
        Change {
            sets: Vec::new(),
            mask_padding: false,
            state: StateChange::None,
            mean,
            first_sample: None,
            rate_delay: 0,
            update: UpdateChange { decayed, counted, tied },
        }
    }

    pub fn with_sets(mut self, sets: &[&str]) -> Change {
        self.sets.extend(sets.iter().map(ToString::to_string));
        self
    }

    pub fn with_update(self, update: UpdateChange) -> Change {
        Change { update, ..self }
    }

    /// Whether the head is computed as a weight by itself, though the model ties it.
    pub fn unties(&self) -> bool {
        self.update.tied != TiedGradients::Summed
    }
}
