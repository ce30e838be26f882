//! Memory of the device, and the ways of bytes to it and back.

use super::driver::{Address, Device, Handle, OUT_OF_MEMORY};
use crate::base::Bytes;
use crate::device::{OutOfMemory, Tensor};
use std::cell::{Cell, RefCell};

/// Pieces in which bytes travel, and how many may be under way. A micro-batch's inputs are a few
/// pieces, so the host can be some micro-batches ahead.
const PIECE: usize = 1 << 20;
const PIECES: usize = 16;
/// Pieces of device memory that host bytes land in, while earlier ones are being read.
const LANDINGS: usize = 4;
pub const LANDED: usize = LANDINGS * PIECE;

/// Results that may be on their way to the host while more work is queued.
const MAIL: usize = 2;

/// Host memory that the device reads and writes by itself.
struct Piece {
    memory: *mut u8,
    /// Done when the last copy out of this piece, or into it, is.
    event: Handle,
}

impl Piece {
    fn take(device: &Device) -> Piece {
        let mut memory = std::ptr::null_mut();
        device.call("page-locked host memory", |api| unsafe {
            (api.cuMemHostAlloc)(&mut memory, PIECE, 0)
        });
        Piece { memory, event: device.event() }
    }

    /// Asks for a copy of at most `PIECE` bytes at an address into this piece, and marks its end.
    fn fill(&self, device: &Device, address: usize, bytes: usize) {
        assert!(bytes <= PIECE, "{bytes} bytes in one piece");
        device.call("download", |api| unsafe {
            (api.cuMemcpyDtoHAsync_v2)(self.memory, address as Address, bytes, device.stream)
        });
        device.record(self.event, device.stream);
    }
}

/// Device memory of one piece.
struct Landing {
    address: usize,
    /// Done when its bytes have been taken out.
    left: Handle,
}

/// All memory of a backend.
pub struct Memory {
    regions: RefCell<Vec<Address>>,
    pieces: Vec<Piece>,
    next: Cell<usize>,
    /// Pieces of their own, and how many were sent and received: nothing else may use them between.
    mail: Vec<Piece>,
    sent: Cell<usize>,
    received: Cell<usize>,
    landings: Vec<Landing>,
    next_landing: Cell<usize>,
    /// Scratch of ops: work in one stream uses it in turn.
    pub workspace: usize,
}

impl Memory {
    /// Takes the scratch and the pieces.
    pub fn new(device: &Device, workspace: usize) -> Result<Memory, OutOfMemory> {
        let mut memory = Memory {
            regions: RefCell::default(),
            pieces: Vec::new(),
            next: Cell::new(0),
            mail: Vec::new(),
            sent: Cell::new(0),
            received: Cell::new(0),
            landings: Vec::new(),
            next_landing: Cell::new(0),
            workspace: 0,
        };
        memory.workspace = memory.reserve(device, workspace)?;
        memory.pieces = (0..PIECES).map(|_| Piece::take(device)).collect();
        memory.mail = (0..MAIL).map(|_| Piece::take(device)).collect();
        for _ in 0..LANDINGS {
            let address = memory.reserve(device, PIECE)?;
            let left = device.event();
            device.record(left, device.stream);
            memory.landings.push(Landing { address, left });
        }
        Ok(memory)
    }

    /// A fresh zeroed region.
    pub fn reserve(&self, device: &Device, bytes: usize) -> Result<usize, OutOfMemory> {
        let mut address = 0;
        let code =
            device.try_call(|api| unsafe { (api.cuMemAlloc_v2)(&mut address, bytes.max(1)) });
        if code == OUT_OF_MEMORY {
            let available = Some(Bytes(device.memory().0 as u64));
            return Err(OutOfMemory { asked: Bytes(bytes as u64), available });
        }
        device.call("reserving memory", |_| code);
        if code == 0 {
            self.regions.borrow_mut().push(address);
        }
        self.clear(device, address as usize, bytes);
        Ok(address as usize)
    }

    /// Zero bytes.
    pub fn clear(&self, device: &Device, address: usize, bytes: usize) {
        if bytes > 0 {
            device.call("zero", |api| unsafe {
                (api.cuMemsetD8Async)(address as Address, 0, bytes, device.stream)
            });
        }
    }

    /// Host to device, in order with all ops; returns once the bytes are taken.
    pub fn upload(&self, device: &Device, from: &[u8], to: Tensor) {
        assert_eq!(from.len(), to.bytes(), "bytes uploaded");
        for (i, bytes) in from.chunks(PIECE).enumerate() {
            let Some(piece) = self.loaded(device, bytes) else { return };
            let address = (to.addr() + i * PIECE) as Address;
            device.call("upload", |api| unsafe {
                (api.cuMemcpyHtoDAsync_v2)(address, piece.memory, bytes.len(), device.stream)
            });
            device.record(piece.event, device.stream);
        }
    }

    /// Host to device, in order with all ops; returns once the bytes are taken. They cross the bus
    /// while earlier ops still compute, and only the way from where they landed is in the ops' order:
    /// whatever the ops read until then is left alone.
    pub fn feed(&self, device: &Device, from: &[u8], to: Tensor) {
        assert_eq!(from.len(), to.bytes(), "bytes fed");
        for (i, bytes) in from.chunks(PIECE).enumerate() {
            let Some(piece) = self.loaded(device, bytes) else { return };
            let landing = &self.landings[self.next_landing.get()];
            self.next_landing.set((self.next_landing.get() + 1) % LANDINGS);
            let (landed, address) =
                (landing.address as Address, (to.addr() + i * PIECE) as Address);
            device.wait(device.feeding, landing.left);
            device.call("feeding", |api| unsafe {
                (api.cuMemcpyHtoDAsync_v2)(landed, piece.memory, bytes.len(), device.feeding)
            });
            device.after(piece.event, device.feeding, device.stream);
            device.call("feeding", |api| unsafe {
                (api.cuMemcpyDtoDAsync_v2)(address, landed, bytes.len(), device.stream)
            });
            device.record(landing.left, device.stream);
        }
    }

    /// Device to host, after everything asked so far.
    pub fn download(&self, device: &Device, from: Tensor, to: &mut [u8]) {
        assert_eq!(to.len(), from.bytes(), "bytes downloaded");
        let mut under_way = std::collections::VecDeque::new();
        for (i, bytes) in to.chunks_mut(PIECE).enumerate() {
            if under_way.len() == PIECES {
                self.arrive(device, under_way.pop_front().expect("some are under way"));
            }
            let Some(piece) = self.free_piece(device) else { return };
            piece.fill(device, from.addr() + i * PIECE, bytes.len());
            under_way.push_back((piece, bytes));
        }
        for one in under_way {
            self.arrive(device, one);
        }
    }

    /// Device to host, for `receive` to take.
    pub fn send(&self, device: &Device, from: Tensor) {
        assert!(self.sent.get() - self.received.get() < MAIL, "more than {MAIL} are under way");
        self.mail[self.sent.get() % MAIL].fill(device, from.addr(), from.bytes());
        self.sent.set(self.sent.get() + 1);
    }

    /// Waits for the oldest tensor sent and takes it.
    pub fn receive(&self, device: &Device, to: &mut [u8]) {
        assert!(self.received.get() < self.sent.get(), "nothing was sent");
        assert!(to.len() <= PIECE, "{} bytes in one piece", to.len());
        self.arrive(device, (&self.mail[self.received.get() % MAIL], to));
        self.received.set(self.received.get() + 1);
    }

    fn arrive(&self, device: &Device, (piece, to): (&Piece, &mut [u8])) {
        device.call("download", |api| unsafe { (api.cuEventSynchronize)(piece.event) });
        if !device.failed() {
            // SAFETY: the copy into the piece has ended.
            unsafe { std::ptr::copy_nonoverlapping(piece.memory, to.as_mut_ptr(), to.len()) };
        }
    }

    /// A free piece with these bytes in it, at most `PIECE`; none if the device has failed.
    fn loaded(&self, device: &Device, bytes: &[u8]) -> Option<&Piece> {
        let piece = self.free_piece(device)?;
        // SAFETY: the bytes are a chunk of `PIECE`, and no copy uses the piece any more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.memory, bytes.len()) };
        Some(piece)
    }

    /// The piece used longest ago, once it is free; none if the device has failed.
    fn free_piece(&self, device: &Device) -> Option<&Piece> {
        let piece = &self.pieces[self.next.get()];
        self.next.set((self.next.get() + 1) % PIECES);
        device.call("waiting for a copy", |api| unsafe { (api.cuEventSynchronize)(piece.event) });
        (!device.failed()).then_some(piece)
    }

    pub fn free(&self, device: &Device) {
        for piece in self.pieces.iter().chain(&self.mail) {
            device.try_call(|api| unsafe { (api.cuEventDestroy_v2)(piece.event) });
            device.try_call(|api| unsafe { (api.cuMemFreeHost)(piece.memory) });
        }
        for landing in &self.landings {
            device.try_call(|api| unsafe { (api.cuEventDestroy_v2)(landing.left) });
        }
        for region in self.regions.borrow().iter() {
            device.try_call(|api| unsafe { (api.cuMemFree_v2)(*region) });
        }
    }
}
