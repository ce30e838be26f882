//! Counting device without memory or arithmetic: it records the bytes that an engine reserves, and
//! the FLOPs and memory traffic of each op. The planner runs the trainer's own step on it.

use super::{
    ATTENTION, ATTENTION_BACKWARD, Adafactor, AdafactorOps, AdamW, AdamWUpdate, Attend, Backend,
    COPIES, Coded, Dropout, Epilogue, FP8_PRODUCT, Fp8Ops, Fp8Scaling, FusedMatrix, Gelu, Gemm,
    Home, LOGITS_CHUNK, Logits, MatrixPart, Momentum, MuonOps, Norm, Out, OutOfMemory, Quantized,
    QueryKey, Scaler, Scaling, SecondMoment, Section, StepLimits, Tally, Tensor, Transfer, Visible,
    Work, ZLoss, cuda,
};
use base::Bytes;
use std::cell::{Cell, OnceCell, RefCell};
use std::time::Instant;

/// Counting device; see the module.
#[derive(Default)]
pub struct Dry {
    gpu: bool,
    reserved: Cell<usize>,
    section: Cell<Section>,
    tally: RefCell<Tally>,
    host: OnceCell<Box<Dry>>,
}

/// First address; no tensor has address 0.
const BASE: usize = 256;

impl Dry {
    /// Counts like a GPU; the default counts like a CPU.
    pub fn gpu() -> Dry {
        Dry { gpu: true, ..Dry::default() }
    }

    /// Bytes reserved so far.
    pub fn reserved(&self) -> usize {
        self.reserved.get()
    }

    /// Work of all ops since the last `take`.
    pub fn take(&self) -> Tally {
        self.tally.take()
    }

    /// Device that counts the host's work and reservations.
    pub fn host_device(&self) -> &Dry {
        self.host.get_or_init(Box::default)
    }

    fn note(&self, name: &'static str, flops: usize, tensors: &[Tensor]) {
        let bytes = tensors.iter().map(|x| x.bytes() as f64).sum();
        let name = self.section.get().op(name);
        *self.tally.borrow_mut().entry(name).or_default() +=
            Work { calls: 1.0, flops: flops as f64, bytes, flops_by_side: 0.0 };
    }

    /// Counts a product of matrices with these sides.
    fn product(&self, name: &'static str, sides: [usize; 3], tensors: &[Tensor]) {
        let flops = 2 * sides.iter().product::<usize>();
        self.note(name, flops, tensors);
        let side = sides.into_iter().min().unwrap_or(1).max(1);
        let name = self.section.get().op(name);
        let mut tally = self.tally.borrow_mut();
        tally.entry(name).or_default().flops_by_side += flops as f64 / side as f64;
    }

    /// Counts attention: `products` products of the scores' size. A causal mask halves them, a
    /// window keeps those within it.
    fn attend(
        &self,
        name: &'static str,
        products: usize,
        qkv: Tensor,
        how: &Attend,
        io: &[Tensor],
    ) {
        let (seq, window) = (how.seq, how.window.unwrap_or(how.seq).min(how.seq));
        // Under a causal window of w, a query sees w − w²/2T keys of T on average.
        let halves = match how.visible {
            Visible::Causal => window * (2 * seq - window),
            Visible::Ranges(_) => 2 * seq * seq.min(2 * window),
        };
        self.note(name, products * qkv.rows * halves / seq * how.heads.query_width(), io);
    }
}

/// Tensors that an output moves. An accumulating output is read and written.
fn out(y: Out) -> [Tensor; 2] {
    [y.to, if y.add { y.to } else { y.to.span(0, 0) }]
}

/// Additional matrix that an epilogue moves, if it has one.
fn aux(then: Epilogue, c: Out) -> Tensor {
    match then {
        Epilogue::Nothing | Epilogue::Bias(_) | Epilogue::BiasBackward(_) => c.to.span(0, 0),
        Epilogue::BiasGelu { pre, .. } | Epilogue::GeluBackward { pre, .. } => pre,
    }
}

/// Number of elements of queries and keys, and the moved part of qkv: in place, values are not
/// moved.
fn turned(qkv: Tensor, how: &QueryKey, in_place: bool) -> (usize, Tensor) {
    let turned = qkv.rows * (how.heads.query + how.heads.kv) * how.heads.dim;
    (turned, if in_place { qkv.span(0, turned) } else { qkv })
}

impl Backend for Dry {
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        let at = BASE + self.reserved.get().next_multiple_of(BASE);
        self.reserved.set(self.reserved.get() + bytes);
        Ok(at)
    }
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory> {
        self.host_device().reserve(bytes)
    }
    fn host(&self) -> &dyn Backend {
        self.host_device()
    }
    fn beside(&self, work: &mut (dyn FnMut(&dyn Backend) + Send), meanwhile: &mut dyn FnMut()) {
        meanwhile();
        work(self.host_device());
    }
    /// Counted as work of the host, because the device computes meanwhile.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer {
        let [to_host, to_device] = COPIES;
        let name = if to.home() == Home::Host { to_host } else { to_device };
        self.host_device().note(name, 0, &[from]);
        Transfer(0)
    }
    fn join_transfer(&self, _: Transfer) {}
    fn finish_transfer(&self, _: Transfer) {}
    fn workspace(&self) -> Bytes {
        if self.gpu { cuda::WORKSPACE } else { Bytes(0) }
    }
    fn logits_chunk(&self) -> Bytes {
        if self.gpu { cuda::LOGITS_CHUNK } else { LOGITS_CHUNK }
    }
    fn has_contents(&self) -> bool {
        false
    }
    fn enter(&self, section: Section) {
        self.section.set(section);
    }
    fn sync(&self) -> anyhow::Result<()> {
        Ok(())
    }
    fn upload(&self, _: &[u8], _: Tensor) {}
    fn download(&self, _: Tensor, to: &mut [u8]) {
        to.fill(0);
    }
    fn download_async(&self, _: Tensor) {}
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Instant> {
        to.fill(0);
        Ok(Instant::now())
    }

    fn zero(&self, x: Tensor) {
        self.note("zero", 0, &[x]);
    }
    fn copy(&self, x: Tensor, y: Out) {
        self.note("copy", 0, &[&[x][..], &out(y)].concat());
    }
    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
        let inner = if kind == Gemm::TN { a.rows } else { a.cols };
        // Column sums count as one more column.
        let cols = c.to.cols + matches!(then, Epilogue::BiasBackward(_)) as usize;
        let moved = [&[a, b, aux(then, c)][..], &out(c)].concat();
        self.product("gemm", [c.to.rows, cols, inner], &moved);
    }
    fn embed(&self, _: Tensor, _: Tensor, _: usize, y: Out) {
        self.note("embed", 0, &[y.to, y.to]);
    }
    fn embed_backward(&self, dy: Tensor, _: Tensor, _: usize, _: Out) {
        self.note("embed backward", dy.numel(), &[dy, dy, dy]);
    }
    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out) {
        if drop.rate > 0.0 || x.addr() != y.to.addr() {
            self.note("dropout", x.numel(), &[&[x][..], &out(y)].concat());
        }
    }
    fn residual(&self, x: Tensor, branch: Tensor, bias: Option<Tensor>, _: &Dropout, y: Out) {
        let sums = 2 + bias.is_some() as usize;
        self.note("residual", sums * x.numel(), &[x, branch, y.to]);
    }
    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Option<Out>) {
        let in_place = drop.rate == 0.0 && dy.addr() == dbranch.to.addr();
        let written = if in_place { dy.span(0, 0) } else { dbranch.to };
        if !in_place || dbias.is_some() {
            let sums = 1 + dbias.is_some() as usize;
            self.note("residual backward", sums * dy.numel(), &[dy, written]);
        }
    }
    fn gelu(&self, x: Tensor, _: Gelu, y: Out) {
        self.note("gelu", 8 * x.numel(), &[x, y.to]);
    }
    fn swiglu(&self, x: Tensor, y: Out) {
        self.note("swiglu", 8 * y.to.numel(), &[x, y.to]);
    }
    fn swiglu_backward(&self, dy: Tensor, x: Tensor, dx: Out) {
        self.note("swiglu backward", 14 * dy.numel(), &[dy, x, dx.to]);
    }
    fn layernorm(&self, x: Tensor, _: &Norm, y: Out, stats: Out) {
        self.note("layernorm", 8 * x.numel(), &[x, y.to, stats.to]);
    }
    fn layernorm_backward(
        &self,
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        _: Tensor,
        dx: Out,
        _: Out,
        _: Option<Out>,
    ) {
        let all = [&[dy, x, stats][..], &out(dx)].concat();
        self.note("layernorm backward", 12 * x.numel(), &all);
    }
    fn residual_norm(
        &self,
        x: Tensor,
        branch: Tensor,
        bias: Option<Tensor>,
        _: &Dropout,
        y: Out,
        _: &Norm,
        h: Out,
        stats: Out,
    ) {
        let flops = (10 + bias.is_some() as usize) * x.numel();
        self.note("residual and layernorm", flops, &[x, branch, y.to, h.to, stats.to]);
    }
    fn norm_residual_backward(
        &self,
        [dy, x, stats, _]: [Tensor; 4],
        [dx, _]: [Out; 2],
        _: Option<Out>,
        _: &Dropout,
        dbranch: Out,
        dbias: Option<Out>,
    ) {
        let own = if dbranch.to == dx.to { dx.to.span(0, 0) } else { dbranch.to };
        let all = [&[dy, x, stats, own][..], &out(dx)].concat();
        let flops = (13 + dbias.is_some() as usize) * x.numel();
        self.note("layernorm and residual backward", flops, &all);
    }
    fn query_key(&self, qkv: Tensor, how: &QueryKey, y: Out) {
        let (turned, moved) = turned(qkv, how, y.to == qkv);
        self.note("queries and keys", 10 * turned, &[moved, moved]);
    }
    fn query_key_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        how: &QueryKey,
        dx: Out,
        _: Option<[Out; 2]>,
    ) {
        let (turned, moved) = turned(qkv, how, dx.to == dy);
        let read = if how.norm.is_some() { moved } else { moved.span(0, 0) };
        self.note("queries and keys backward", 16 * turned, &[moved, moved, read]);
    }
    fn attention(&self, qkv: Tensor, how: &Attend, y: Out, lse: Out) {
        self.attend(ATTENTION, 2, qkv, how, &[qkv, y.to, lse.to]);
    }
    fn attention_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        y: Tensor,
        lse: Tensor,
        how: &Attend,
        dqkv: Out,
    ) {
        // Scores are rebuilt: five products, compared to two in forward.
        self.attend(ATTENTION_BACKWARD, 5, qkv, how, &[dy, qkv, y, lse, dqkv.to]);
    }
    fn cross_entropy_stats(&self, logits: &Logits, _: Tensor, stats: Out) {
        self.note("cross entropy", 4 * logits.x.numel(), &[logits.x, stats.to]);
    }
    fn cross_entropy(
        &self,
        logits: &Logits,
        _: Tensor,
        _: Tensor,
        stats: Tensor,
        losses: Out,
        _: Option<ZLoss>,
        dlogits: Option<(Tensor, Out)>,
    ) {
        let whole = match dlogits {
            Some((_, d)) => vec![logits.x, d.to, stats, losses.to],
            None => vec![stats, losses.to],
        };
        self.note("cross entropy", 4 * logits.x.numel(), &whole);
    }
    fn cross_entropy_unsplit(
        &self,
        logits: &Logits,
        _: Tensor,
        _: Tensor,
        _: Tensor,
        losses: Out,
        _: Option<ZLoss>,
        dlogits: Option<(Tensor, Out)>,
    ) {
        let slopes = dlogits.map_or(logits.x.span(0, 0), |(_, d)| d.to);
        self.note("cross entropy", 8 * logits.x.numel(), &[logits.x, slopes, losses.to]);
    }
    fn sum(&self, x: Tensor, y: Out) {
        self.note("sum", x.numel(), &[x, y.to]);
    }
    fn axpy(&self, _: f32, _: Tensor, x: Tensor, y: Out) {
        self.note("axpy", 2 * x.numel(), &[&[x][..], &out(y)].concat());
    }
    fn orthogonalize(&self, xs: &[Tensor]) {
        // Each column against those before it, twice: a product and an update of each row.
        let flops = xs.iter().map(|x| 4 * x.cols * x.numel()).sum();
        let passes: Vec<Tensor> = xs.iter().flat_map(|x| vec![*x; 2 * x.cols]).collect();
        self.note("orthogonalize", flops, &passes);
    }
    fn square_sums(&self, xs: &[Tensor], y: Out) {
        let flops = 2 * xs.iter().map(|x| x.numel()).sum::<usize>();
        self.note("square sums", flops, &[xs, &[y.to]].concat());
    }
    fn digests(&self, xs: &[Tensor], y: Out) {
        let flops = 8 * xs.iter().map(|x| x.numel()).sum::<usize>();
        self.note("digests", flops, &[xs, &[y.to]].concat());
    }
    fn clip(&self, sums: Tensor, _: Tensor, _: f32, to: Out) {
        self.note("clip", 4, &[sums, to.to]);
    }
    fn loss_scale_step(&self, _: &Scaling, _: Scaler, factor: Tensor, status: Tensor) {
        self.note("loss scale step", 4, &[factor, status]);
    }
    fn skip_above(
        &self,
        _: StepLimits,
        [loss, norm]: [Tensor; 2],
        _: Scaler,
        factor: Tensor,
        status: Tensor,
    ) {
        self.note("skip above", 2, &[loss, norm, factor, status]);
    }
    fn adam_scalars(&self, _: &AdamW, updates: Tensor, out: Out) {
        self.note("adam scalars", 8, &[updates, out.to]);
    }
    fn adamw(
        &self,
        _: &AdamW,
        _: Tensor,
        grad: Tensor,
        master: Tensor,
        m: Tensor,
        v: Tensor,
        weight: Tensor,
    ) {
        let written = if weight.addr() == master.addr() { weight.span(0, 0) } else { weight };
        self.note("adamw", 14 * grad.numel(), &[grad, master, master, m, m, v, v, written]);
    }
    fn adamw_all(&self, scalars: Tensor, updates: &[AdamWUpdate]) {
        for AdamWUpdate { rule, grad, master, m, v, weight } in updates {
            self.adamw(rule, scalars, *grad, *master, *m, *v, *weight);
        }
        if let Some(work) = self.tally.borrow_mut().get_mut("adamw") {
            work.calls -= updates.len().saturating_sub(1) as f64;
        }
    }
    fn adam8bit(
        &self,
        _: &AdamW,
        _: Tensor,
        grad: Tensor,
        master: Tensor,
        moments: [Coded; 2],
        weight: Tensor,
    ) {
        let written = if weight.addr() == master.addr() { weight.span(0, 0) } else { weight };
        let both = moments.into_iter().flat_map(|Coded { codes, scales }| [codes, scales]);
        let coded: Vec<Tensor> = both.flat_map(|x| [x, x]).collect();
        let all = [&[grad, master, master, written][..], &coded].concat();
        self.note("adam8bit", 24 * grad.numel(), &all);
    }
}

impl AdafactorOps for Dry {
    fn factor_sums(&self, x: Tensor, _: Tensor, _: &MatrixPart, rows: Option<Out>, cols: Out) {
        let rows = rows.map_or(x.span(0, 0), |rows| rows.to);
        self.note("factor sums", 4 * x.numel(), &[x, rows, cols.to]);
    }
    fn fused_square_sums(&self, x: Tensor, _: &MatrixPart, _: Out) {
        self.note("square sums", 2 * x.numel(), &[x]);
    }
    fn adafactor_scalars(&self, _: &Adafactor, updates: Tensor, out: Out) {
        self.note("adafactor scalars", 8, &[updates, out.to]);
    }
    fn move_second_moment(
        &self,
        _: Tensor,
        _: &MatrixPart,
        rows: Option<Tensor>,
        cols: Tensor,
        v: &SecondMoment,
    ) {
        let sums = [rows.unwrap_or(cols.span(0, 0)), cols];
        let [row, col] = match *v {
            SecondMoment::Full(v) => [v.span(0, 0), v],
            SecondMoment::Factored { row, col, .. } => [row, col],
        };
        let flops = 4 * (sums[0].numel() + cols.numel());
        self.note("second moment", flops, &[sums[0], cols, row, row, col, col]);
    }
    fn adafactor_square_sums(
        &self,
        _: &Adafactor,
        _: Tensor,
        grad: Tensor,
        _: &MatrixPart,
        _: &SecondMoment,
        _: Out,
    ) {
        self.note("adafactor square sums", 6 * grad.numel(), &[grad]);
    }
    fn adafactor(
        &self,
        _: &Adafactor,
        _: Tensor,
        grad: Tensor,
        _: &MatrixPart,
        _: &SecondMoment,
        _: (Tensor, Option<Tensor>),
        master: Tensor,
        weight: Tensor,
    ) {
        let written = if weight.addr() == master.addr() { weight.span(0, 0) } else { weight };
        self.note("adafactor", 8 * grad.numel(), &[grad, master, master, written]);
    }
}

impl MuonOps for Dry {
    fn momentum(&self, _: &Momentum, _: Tensor, grad: Tensor, m: Tensor, out: Out) {
        self.note("momentum", 5 * grad.numel(), &[grad, m, m, out.to]);
    }
    fn unfuse(&self, _: Tensor, _: &FusedMatrix, one: Out) {
        self.note("fused rows", 0, &[one.to, one.to]);
    }
    fn fuse(&self, one: Tensor, _: &FusedMatrix, _: Out) {
        self.note("fused rows", 0, &[one, one]);
    }
    fn scale_to_norm_1(&self, x: Tensor, _: Tensor, _: f32) {
        self.note("scale to norm 1", x.numel(), &[x, x]);
    }
    fn blend(&self, _: f32, x: Tensor, _: f32, y: Tensor) {
        self.note("blend", 3 * x.numel(), &[x, y, y]);
    }
    fn descend(&self, _: [f32; 2], _: Tensor, direction: Tensor, master: Tensor, weight: Tensor) {
        let written = if weight.addr() == master.addr() { weight.span(0, 0) } else { weight };
        self.note("descend", 3 * direction.numel(), &[direction, master, master, written]);
    }
}

/// Scales as on Hopper: one per line.
impl Fp8Ops for Dry {
    fn fp8_scaling(&self) -> Fp8Scaling {
        Fp8Scaling::RowWise
    }
    fn line_maxima(&self, x: Tensor, out: [Option<Out>; 2]) {
        let moved = out.into_iter().flatten().map(|out| out.to).chain([x]).collect::<Vec<_>>();
        self.note("quantize", (moved.len() - 1) * x.numel(), &moved);
    }
    fn quantize(&self, x: Tensor, to: [Option<(Tensor, Quantized)>; 2]) {
        let each = to.into_iter().flatten();
        let written = each.flat_map(|(maxima, to)| [maxima, to.scales, to.codes]);
        let moved: Vec<Tensor> = written.chain([x]).collect();
        self.note("quantize", moved.len() / 3 * x.numel(), &moved);
    }
    fn quantize_rows(&self, x: Tensor, to: &Quantized, columns: Option<Out>) {
        let columns = columns.map_or(x.span(0, 0), |out| out.to);
        self.note("quantize", 2 * x.numel(), &[x, to.scales, to.codes, columns]);
    }
    fn fp8_gemm(&self, a: &Quantized, b: &Quantized, c: Out, then: Epilogue) {
        let moved = [&[a.codes, b.codes, aux(then, c)][..], &out(c)].concat();
        self.product(FP8_PRODUCT, [c.to.rows, c.to.cols, a.codes.cols], &moved);
    }
    fn column_sums(&self, x: Tensor, sums: Out) {
        self.note("column sums", x.numel(), &[x, sums.to]);
    }
}
