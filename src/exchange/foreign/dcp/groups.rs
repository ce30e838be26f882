//! AdamW's numbers in a distributed checkpoint: of each parameter, or of a list of groups.

use super::super::super::torch::Node;
use super::metadata::Metadata;
use std::collections::BTreeMap;

/// Locations of the numbers of each parameter's group.
pub struct NumberGroups {
    /// Prefix of a parameter's name.
    before: String,
    /// Index of each parameter's group, if the groups are a list.
    listed: BTreeMap<String, usize>,
}

impl NumberGroups {
    /// `optimizer` comes before the optimizer's names.
    pub fn find(meta: &Metadata, optimizer: &str) -> anyhow::Result<NumberGroups> {
        let before = format!("{optimizer}param_groups.");
        let mut listed = BTreeMap::new();
        for number in 0.. {
            let Some(file) = meta.object(&format!("{before}{number}.params"))? else { break };
            for name in file.root().items()? {
                listed.insert(name.str()?.to_string(), number);
            }
        }
        Ok(NumberGroups { before, listed })
    }

    /// AdamW's numbers of a parameter; None if the checkpoint has none.
    pub fn read(&self, meta: &Metadata, name: &str) -> anyhow::Result<Option<AdamWNumbers>> {
        let group = self
            .listed
            .get(name)
            .map_or(name.to_string(), ToString::to_string);
        AdamWNumbers::read(meta, &format!("{}{group}", self.before))
    }
}

/// AdamW's numbers of a parameter.
pub struct AdamWNumbers {
    pub lr: f64,
    pub initial_lr: Option<f64>,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
}

impl AdamWNumbers {
    fn read(meta: &Metadata, before: &str) -> anyhow::Result<Option<AdamWNumbers>> {
        let key = |what: &str| format!("{before}.{what}");
        let object = |what: &str| meta.object(&key(what));
        let float = |what: &str| meta.number(&key(what));
        let Some(lr) = float("lr")? else { return Ok(None) };
        for (what, wrong, why) in [
            ("amsgrad", true, "gptrain's AdamW keeps no largest second moment"),
            ("maximize", true, "gptrain minimises"),
            ("decoupled_weight_decay", false, "it is Adam with L2, not AdamW"),
        ] {
            let set = object(what)?.is_some_and(|file| {
                !matches!(file.root().node(), Node::None) && file.root().is_true() == wrong
            });
            if set {
                return Err(meta.unsupported(format!("{} is {wrong}: {why}", key(what))));
            }
        }
        let need =
            |what: &str| float(what)?.ok_or_else(|| meta.problem(format!("has no {}", key(what))));
        let betas = match object("betas")? {
            Some(file) => {
                let items = file.root().items()?;
                let [first, second] = items.as_slice() else {
                    return Err(file
                        .root()
                        .problem(format!("{} is not two numbers", key("betas"))));
                };
                [file.number(first)?, file.number(second)?]
            }
            // A pair of tensors is saved as two.
            None => [need("betas.0")?, need("betas.1")?],
        };
        Ok(Some(AdamWNumbers {
            lr,
            initial_lr: float("initial_lr")?,
            betas,
            eps: need("eps")?,
            weight_decay: need("weight_decay")?,
        }))
    }

    /// Whether gptrain can express both. The decay of a `free` parameter is not compared.
    pub fn same(&self, other: &AdamWNumbers, free: bool) -> bool {
        self.lr == other.lr
            && self.betas == other.betas
            && self.eps == other.eps
            && (free || self.weight_decay == other.weight_decay)
    }
}

impl std::fmt::Display for AdamWNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AdamWNumbers { lr, betas: [first, second], eps, weight_decay, .. } = self;
        write!(f, "lr {lr}, betas {first} {second}, eps {eps}, weight_decay {weight_decay}")
    }
}
