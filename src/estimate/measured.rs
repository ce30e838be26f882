//! Measurements of a machine by `gptrain bench`: the document that it prints with `--json`, and that
//! `estimate --calibrate` reads.

use base::Problems;
use manifest::Precision;
use serde::{Deserialize, Serialize};

/// First field of the document; a document of another version is refused.
pub const FORMAT: &str = "gptrain bench 1";

/// Bytes of the messages whose time is a link's latency.
pub const LATENCY_BYTES: u64 = 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Always `FORMAT`.
    pub format: String,
    /// Name of the manifest whose shapes, grid and precision were measured.
    pub manifest: String,
    pub precision: Precision,
    /// The manifest's plan.hardware.
    pub hardware: Option<String>,
    pub quick: bool,
    /// Seconds of the measurements.
    pub seconds: f64,
    pub ranks: Vec<RankSpeeds>,
    pub groups: Vec<GroupSpeed>,
    /// Members of the pairs: "nodes", or "ranks" on a single node.
    pub units: String,
    pub pairs: Vec<PairSpeed>,
    /// Slow parts; empty if there are none.
    pub slow: Vec<Slow>,
    /// Measurements that are missing, and the reason.
    pub notes: Vec<String>,
    /// Largest share of a node's processors, or of a GPU, that other programs had at the start; 0 if all
    /// were idle.
    #[serde(default, skip_serializing_if = "is_idle")]
    pub busy_share: f64,
    /// Figures that differ from an earlier measurement (`--since`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Collectives of a step, repeated for some time (`--soak`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub soak: Vec<SoakSpeed>,
}

fn is_idle(busy_share: &f64) -> bool {
    *busy_share == 0.0
}

/// Figure that differs from an earlier measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Node, pair of nodes, or group.
    pub who: String,
    /// For example "links".
    pub what: String,
    pub then: f64,
    pub now: f64,
    /// "GB/s" or "TFLOP/s".
    pub unit: String,
}

/// Speed of a collective that was repeated for some time; bandwidths in GB/s, of the slowest group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakSpeed {
    /// Kind of group: "tensor", "pipeline edge", "data", "shard" or "copies".
    pub group: String,
    pub op: String,
    /// Bytes of the whole array, or of a message: those of a step.
    pub bytes: u64,
    /// Ranks of a group.
    pub size: usize,
    /// Mean, and that of the worst window.
    pub busbw_gb_s: f64,
    pub worst_busbw_gb_s: f64,
    /// Seconds of a window, and from the start of the soak to the worst one.
    pub window_s: f64,
    pub worst_from_s: f64,
    /// Ranks of the world in the group that was slowest in the worst window.
    pub slowest: Vec<usize>,
}

/// Local measurements of a rank, made on all ranks at once. GB are 10⁹ bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankSpeeds {
    pub rank: usize,
    pub node: String,
    /// Coordinates, such as "TP1 PP0 DP3".
    pub place: String,
    /// Device, such as "CPU, 8 threads".
    pub device: String,
    /// The four products of a transformer block.
    pub products: Vec<Product>,
    pub cube: Product,
    /// Bytes read and bytes written.
    pub device_copy_gb_s: f64,
    pub host_copy_gb_s: f64,
    /// Copies to and from a device with its own memory.
    pub upload_gb_s: Option<f64>,
    pub download_gb_s: Option<f64>,
    pub file_write_gb_s: f64,
    pub file_read_gb_s: f64,
    /// Method by which the page cache was avoided.
    pub file_access: String,
    /// Ops of a step, timed within steps of one or two layers. Empty on a GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<Op>,
}

/// All calls of an op in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    pub name: String,
    pub calls: f64,
    /// As the planner counts them.
    pub flops: f64,
    pub bytes: f64,
    pub seconds: f64,
}

/// Product C [m, n] = A [m, k] · Bᵀ, B [n, k].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    pub name: String,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub tflops: f64,
}

/// Kinds of groups of two levels of replicas (`topology.shard`).
pub const SHARD_GROUPS: &str = "shard";
pub const COPY_GROUPS: &str = "copies";

/// Collective of all groups of a kind at once. Figures are those of the slowest group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpeed {
    /// Kind of group: "tensor", "pipeline edge", "data", "shard", "copies" or "world".
    pub group: String,
    /// Ranks of a group, and number of groups.
    pub size: usize,
    pub groups: usize,
    /// Whether each group is within one node.
    pub in_node: bool,
    /// Operation: "all_reduce", "reduce_scatter", "all_gather" or "send_recv".
    pub op: String,
    /// Bytes of the whole array, or of a message.
    pub bytes: u64,
    pub seconds: f64,
    pub algbw_gb_s: f64,
    pub busbw_gb_s: f64,
    /// Ranks of the world in the slowest group.
    pub slowest: Vec<usize>,
}

/// Messages between two nodes (or ranks) in both directions at once, by all their ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSpeed {
    pub a: String,
    pub b: String,
    /// Bandwidth in each direction.
    pub gb_s: f64,
}

/// Slow part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Kind: "node", "rank" (if ranks were paired), "link", "compute" or "network".
    pub what: String,
    /// Names of nodes or ranks.
    pub who: Vec<String>,
    /// Share of the usual value.
    pub share: f64,
    /// Message for the user.
    pub text: String,
}

impl Product {
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl RankSpeeds {
    /// TFLOP/s over all products of a block.
    pub fn block_tflops(&self) -> f64 {
        RankSpeeds::tflops(&self.products)
    }

    /// TFLOP/s of products one after another.
    pub fn tflops(products: &[Product]) -> f64 {
        let flops: f64 = products.iter().map(Product::flops).sum();
        flops
            / products
                .iter()
                .map(|one| one.flops() / one.tflops)
                .sum::<f64>()
    }
}

impl Measured {
    /// Whether a text is meant to be a document of gptrain bench: one JSON object, not one a line.
    pub fn is_document(text: &str) -> bool {
        let whole = serde_json::from_str::<serde_json::Value>(text);
        let first = text.trim_start().lines().next().unwrap_or("");
        match whole {
            Ok(value) => value.get("format").is_some() || value.get("step").is_none(),
            Err(_) => first == "{" || first.contains("\"format\"") && first.starts_with('{'),
        }
    }

    /// Reads the document in a file of that name.
    pub fn read(text: &str, name: &str) -> Result<Measured, Problems> {
        let foreign = |what: String| {
            Problems::one(
                name,
                what,
                "give what `gptrain bench --json` printed, or the metrics.jsonl or log of a \
                 run of this manifest",
            )
        };
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|error| foreign(format!("is not a document of gptrain bench: {error}")))?;
        match value.get("format").and_then(serde_json::Value::as_str) {
            Some(FORMAT) => {}
            Some(other) => return Err(foreign(format!("its format is {other:?}, not {FORMAT:?}"))),
            None => return Err(foreign("is JSON, but no document of gptrain bench".into())),
        }
        let read: Measured = serde_json::from_value(value)
            .map_err(|error| foreign(format!("is damaged: {error}")))?;
        match read.find_impossible_figure() {
            None => Ok(read),
            Some(what) => Err(foreign(format!("is damaged: {what}"))),
        }
    }

    /// First impossible figure.
    fn find_impossible_figure(&self) -> Option<String> {
        let good = |figure: f64| figure.is_finite() && figure > 0.0;
        if self.ranks.is_empty() {
            return Some("it has no ranks".into());
        }
        if !(0.0..=1.0).contains(&self.busy_share) {
            return Some(format!("busy_share {} is not a share", self.busy_share));
        }
        for rank in &self.ranks {
            let products = rank.products.iter().chain([&rank.cube]);
            let mut figures = products.map(|one| one.tflops.min(one.flops()));
            let mut ops = rank.ops.iter().map(|op| op.seconds.min(op.calls));
            let copies = [rank.device_copy_gb_s, rank.host_copy_gb_s];
            if rank.products.is_empty()
                || !figures.all(good)
                || !ops.all(good)
                || !copies.into_iter().all(good)
            {
                return Some(format!("rank {} reported invalid figures", rank.rank));
            }
        }
        let row = self
            .groups
            .iter()
            .find(|row| !(good(row.seconds) && good(row.busbw_gb_s)))?;
        Some(format!("{} of group {} has no speed", row.op, row.group))
    }

    /// Largest number of ranks on a node. Fails for a single node, which may have space for more.
    pub fn per_node(&self) -> Result<usize, usize> {
        let on = |node: &str| self.ranks.iter().filter(|rank| rank.node == node).count();
        let most = self
            .ranks
            .iter()
            .map(|rank| on(&rank.node))
            .max()
            .unwrap_or(1);
        if most < self.ranks.len() { Ok(most) } else { Err(most) }
    }
}
