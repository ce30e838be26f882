//! Loads a folder's weights on a rank of any grid, without a checkpoint.

use super::{HfTensor, Weights, tensors_of};
use engine::{Frozen, saved_shape};
use manifest::Family;
use model::{Layout, ModelShard, Param};
use std::collections::HashMap;
use std::path::Path;

/// Reads the weights of this rank, parameter by parameter. The error lists all missing and unexpected
/// tensors of the folder. `loaded` is called with the f32 bytes of each part as it is written.
pub fn load_weights(
    folder: &Path,
    family: Family,
    to: &Frozen,
    loaded: &dyn Fn(usize),
) -> anyhow::Result<()> {
    let model = to.model();
    let weights = Weights::open(folder, family)?;
    let layout = Layout::new(model, ModelShard::whole(model));
    let shape = |param: &Param| saved_shape(param, model.vocab);
    let tensors = |param: &Param| tensors_of(family, param, &shape(param), model.heads());
    let needed: Vec<HfTensor> = layout.params().flat_map(tensors).collect();
    weights.check(&needed, model.tied_head)?;
    weights.check_head(&needed, model.tied_head)?;
    let whole: HashMap<&str, &Param> = layout.params().map(|p| (p.name.as_str(), p)).collect();
    let mut name = String::new();
    let mut values = Vec::new();
    for slice in to.slices() {
        // Slices of one parameter follow each other.
        if slice.param.name != name {
            name.clone_from(&slice.param.name);
            let param = whole[name.as_str()];
            values = vec![0.0f32; shape(param).iter().product()];
            for tensor in tensors(param) {
                weights.read(&tensor, &mut values)?;
            }
        }
        let cols = slice.slice.cols();
        let width = slice.shape[1];
        let rows: Vec<f32> = slice
            .slice
            .rows()
            .flat_map(|row| &values[row * width + cols.start..row * width + cols.end])
            .copied()
            .collect();
        to.write(&slice, 0, bytemuck::cast_slice(&rows));
        loaded(size_of_val(&rows[..]));
    }
    Ok(())
}
