//! Launch order of communicators in use at once. Two ranks that launch two of them in different orders
//! can wait for each other for ever, unless NCCL orders the launches on each GPU.

use device::cuda::{LAUNCH_ORDER, SERIAL};

/// First NCCL that reads `LAUNCH_ORDER`, and first CUDA whose driver lets communicators overlap under it.
const NCCL: i32 = 22_600;
const DRIVER: i32 = 12_030;

/// Warning for a run that uses several communicators at once; None if NCCL orders their launches.
/// `nccl` and `driver` are versions as the libraries count. `implicit` is the value of `LAUNCH_ORDER`.
pub fn warning(nccl: i32, driver: i32, implicit: Option<&str>) -> Option<String> {
    let may_hang = "and this run uses several at once: it may hang";
    let serial = format!("set {SERIAL}=1, which is slower");
    let what = if nccl < NCCL {
        let major = nccl / 10_000;
        let minor = nccl % 10_000 / 100;
        format!(
            "NCCL {major}.{minor} does not order the launches of communicators, {may_hang}. Update NCCL \
             to 2.26 or newer, or {serial}"
        )
    } else if implicit != Some("1") {
        format!(
            "{LAUNCH_ORDER} is not 1, so NCCL does not order the launches of communicators, {may_hang}. \
             Set it to 1, or {serial}"
        )
    } else if driver < DRIVER {
        let major = driver / 1000;
        let minor = driver % 1000 / 10;
        format!(
            "with this driver, for CUDA {major}.{minor}, NCCL runs one communicator at a time: sums do \
             not overlap, and topology.overlap_p2p hangs. Update the driver to CUDA 12.3 or newer, \
             or set topology.overlap_p2p to false"
        )
    } else {
        return None;
    };
    Some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_without_an_order_are_named_with_a_remedy() {
        let says = |nccl, driver, implicit, words: [&str; 2]| {
            let line = warning(nccl, driver, implicit).expect("a warning");
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        };
        assert_eq!(warning(22_602, 12_030, Some("1")), None);
        says(22_105, 13_000, Some("1"), ["NCCL 2.21 ", "GPTRAIN_NCCL_SERIAL=1"]);
        says(22_602, 13_000, None, ["NCCL_LAUNCH_ORDER_IMPLICIT is not 1", "may hang"]);
        says(22_602, 13_000, Some("0"), ["NCCL_LAUNCH_ORDER_IMPLICIT is not 1", "may hang"]);
        says(22_602, 12_020, Some("1"), ["for CUDA 12.2", "topology.overlap_p2p to false"]);
    }
}
