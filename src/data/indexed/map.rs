//! Memory-mapped file that is safe if the file shrinks.
//!
//! Access to a page beyond the end of the file (truncated by another process), or to a page that
//! the disk fails to read, raises SIGBUS, which by default kills the process. A signal handler
//! replaces the page by zeros and marks the mapping as broken, and later reads return an error.
//! This is the only unsafe code of the crate.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use memmap2::{Advice, Mmap, MmapOptions};

/// Bytes of a file at the time when it was opened.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    region: &'static Region,
}

/// Access pattern of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The whole file, from its start to its end, soon.
    Whole,
    /// Random: the kernel should not read ahead.
    Scattered,
}

impl Mapped {
    /// Maps `path`. Fails if it cannot be opened or is not a regular file.
    pub fn open(path: &Path, access: Access) -> Result<Mapped> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Mapped::from_file(&file, path, access)
    }

    /// Maps an open file, whatever its `path` refers to by now.
    pub fn from_file(file: &File, path: &Path, access: Access) -> Result<Mapped> {
        let metadata = file
            .metadata()
            .with_context(|| format!("cannot stat {}", path.display()))?;
        if !metadata.is_file() {
            bail!("{} is not a plain file", path.display());
        }
        install_handler();
        if metadata.len() == 0 {
            return Ok(Mapped { path: path.into(), map: None, region: Region::claim(0, 0) });
        }
        let mut options = MmapOptions::new();
        if access == Access::Whole {
            options.populate();
        }
        // SAFETY: only this type has the mapping, and makes no reference into it: `copy` reads by raw
        // pointer, so another process may change the file at any time. If that shrinks it,
        // `on_bus_error` maps zeros there.
        let map = unsafe { options.map(file) }
            .with_context(|| format!("cannot map {} into memory", path.display()))?;
        if access == Access::Scattered {
            map.advise(Advice::Random).ok(); // a hint: a refusal is harmless
        }
        let region = Region::claim(map.as_ptr() as usize, map.len());
        Ok(Mapped { path: path.into(), map: Some(map), region })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file when it was opened.
    pub fn len(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }

    /// Asks the kernel to load `offset .. offset + length` into memory soon; returns at once.
    pub fn will_need(&self, offset: usize, length: usize) {
        if let Some(map) = &self.map
            && offset
                .checked_add(length)
                .is_some_and(|end| end <= map.len())
        {
            map.advise_range(Advice::WillNeed, offset, length).ok();
        }
    }

    /// Copies the bytes at `offset` into `out`. Returns an error if the file has shrunk.
    pub fn copy(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let end = offset
            .checked_add(out.len())
            .filter(|end| *end <= self.len());
        let (Some(map), Some(_)) = (&self.map, end) else {
            if out.is_empty() {
                return Ok(());
            }
            let path = self.path.display();
            let len = self.len();
            bail!("{path} has {len} bytes; {} from byte {offset} on cannot be read", out.len());
        };
        // SAFETY: `offset + out.len() <= map.len()` (above), and `out` is not part of the mapping, to
        // which there is no reference. A page that has gone becomes zeros (`on_bus_error`).
        unsafe {
            std::ptr::copy_nonoverlapping(map.as_ptr().add(offset), out.as_mut_ptr(), out.len())
        };
        self.check_intact()
    }

    /// Fails if the file has shrunk or could not be read since it was opened.
    pub fn check_intact(&self) -> Result<()> {
        if !self.region.broken.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = std::fs::metadata(&self.path)
            .map_or("gone".to_string(), |now| format!("{} bytes", now.len()));
        bail!(
            "{} changed while it was being read: it had {} bytes when opened and is {now} now; \
             put the file back (or rebuild it elsewhere and move it into place) and resume",
            self.path.display(),
            self.len()
        )
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Releases the region before the pages, so that it never covers foreign memory.
        self.region.release();
    }
}

/// Address range of one mapping, in a list that the signal handler can traverse. Entries are leaked
/// and reused, never freed.
#[derive(Debug)]
struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
    taken: AtomicBool,
    broken: AtomicBool,
    next: AtomicPtr<Region>,
}

static REGIONS: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());

impl Region {
    fn claim(start: usize, length: usize) -> &'static Region {
        let region = Region::find_unused().unwrap_or_else(Region::append);
        region.broken.store(false, Ordering::Release);
        region.start.store(start, Ordering::Release);
        region.end.store(start + length, Ordering::Release);
        region
    }

    /// End of the range, if that contains an address. `end` is read before and after `start`: an entry
    /// that is released and claimed meanwhile must not mix the ranges of two mappings.
    fn end_if_contains(&self, address: usize) -> Option<usize> {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let same = end == self.end.load(Ordering::Acquire);
        (same && start != 0 && start <= address && address < end).then_some(end)
    }

    fn release(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }

    fn find_unused() -> Option<&'static Region> {
        Region::find(|region| (!region.taken.swap(true, Ordering::AcqRel)).then_some(region))
    }

    fn append() -> &'static Region {
        let region: &'static Region = Box::leak(Box::new(Region {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            taken: AtomicBool::new(true),
            broken: AtomicBool::new(false),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }));
        let address = std::ptr::from_ref(region).cast_mut();
        let mut head = REGIONS.load(Ordering::Acquire);
        loop {
            region.next.store(head, Ordering::Release);
            match REGIONS.compare_exchange(head, address, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return region,
                Err(newer) => head = newer,
            }
        }
    }

    /// First result of `search` over the regions of the list. Allowed in a signal handler.
    fn find<T>(search: impl Fn(&'static Region) -> Option<T>) -> Option<T> {
        let mut next = REGIONS.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or one of the boxes that `append` leaked: they are never freed, and changed
            // through atomics only.
            let region = unsafe { next.as_ref() }?;
            if let Some(found) = search(region) {
                return Some(found);
            }
            next = region.next.load(Ordering::Acquire);
        }
    }
}

/// Previous action for SIGBUS; a fault outside our mappings is passed to it.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the handler, once per process.
fn install_handler() {
    static ONCE: Once = Once::new();
    // SAFETY: zeros are a valid `sigaction`, which both calls read or write whole; `previous` is never
    // freed. The handler has the signature of SA_SIGINFO, and does what is allowed in one: atomics,
    // `sysconf`, and the system calls mmap and sigaction.
    ONCE.call_once(|| unsafe {
        let previous = Box::leak(Box::new(std::mem::zeroed::<libc::sigaction>()));
        libc::sigaction(libc::SIGBUS, std::ptr::null(), previous);
        PREVIOUS.store(previous, Ordering::Release);
        let mut ours = std::mem::zeroed::<libc::sigaction>();
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut());
    });
}

extern "C" fn on_bus_error(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `info` with SA_SIGINFO. The replaced pages, from that of the
    // fault to the end, are of a mapping that `copy` is reading, as it raised the fault: its `Mapped`
    // is borrowed, so neither the pages nor the region are released meanwhile. `PREVIOUS` was stored
    // before this handler was installed.
    unsafe {
        let address = (*info).si_addr() as usize;
        if let Some((region, end)) =
            Region::find(|region: &'static Region| Some((region, region.end_if_contains(address)?)))
        {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let first = address / page * page;
            let length = end - first;
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let zeros = libc::mmap(first as *mut _, length, libc::PROT_READ, flags, -1, 0);
            if zeros != libc::MAP_FAILED {
                region.broken.store(true, Ordering::Release);
                return;
            }
        }
        // The fault is not in our mappings: the instruction runs again under the previous handler.
        libc::sigaction(libc::SIGBUS, PREVIOUS.load(Ordering::Acquire), std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handler replaces pages up to the end that this returns: of no entry that is free.
    #[test]
    fn a_region_contains_its_addresses_while_it_is_claimed() {
        let region = Region::claim(4096, 100);
        let ends = |region: &Region| [4095, 4096, 4195, 4196].map(|at| region.end_if_contains(at));
        assert_eq!(ends(region), [None, Some(4196), Some(4196), None]);
        region.release();
        assert_eq!(ends(region), [None; 4]);
        assert_eq!(region.end_if_contains(0), None);
    }
}
