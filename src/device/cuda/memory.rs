//! Device memory, and copies between it and the host through page-locked staging buffers.

use super::device::Device;
use super::driver::{CUevent, OUT_OF_MEMORY};
use super::library::call;
use crate::{MemoryKind, OutOfMemory, Tensor, Transfer};
use base::Bytes;
use cudarc::driver::sys::{self, CUdeviceptr};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes of a staging buffer, and how many copies may be in flight. A micro-batch's inputs are a
/// few buffers, so the host can be some micro-batches ahead.
const STAGING_BYTES: usize = 1 << 20;
const STAGING_BUFFERS: usize = 16;
/// Staging buffers in device memory: `upload_async` fills one while ops still read the destination.
const DEVICE_BUFFERS: usize = 4;
pub const DEVICE_STAGING: usize = DEVICE_BUFFERS * STAGING_BYTES;

/// Downloads that may be in flight.
const MAX_DOWNLOADS: usize = 2;

/// Page-locked host memory, which the device reads and writes directly.
struct StagingBuffer {
    memory: *mut u8,
    /// Recorded after the last copy into or out of this buffer.
    event: CUevent,
}

impl StagingBuffer {
    fn take(device: &Device) -> StagingBuffer {
        let mut memory = null_mut();
        // SAFETY: the driver writes an address to the live variable; it is null only if the device
        // has failed, and then no buffer is used.
        device.call("page-locked host memory", |api| unsafe {
            call!(api, cuMemHostAlloc(&mut memory, STAGING_BYTES, 0))
        });
        StagingBuffer { memory: memory.cast(), event: device.event() }
    }

    /// Enqueues a copy of at most `STAGING_BYTES` bytes of device memory into this buffer.
    fn fill(&self, device: &Device, address: usize, bytes: usize) {
        assert!(bytes <= STAGING_BYTES, "{bytes} bytes in one buffer");
        // SAFETY: the buffer has room for the bytes (above) until `Memory::free`; they are a tensor's, or
        // a piece of one, in device memory. No copy uses the buffer: its event was waited for.
        device.call("download", |api| unsafe {
            let to = self.memory.cast();
            let stream = device.stream;
            call!(api, cuMemcpyDtoHAsync_v2(to, address as CUdeviceptr, bytes, stream))
        });
        device.record(self.event, device.stream);
    }
}

/// Staging buffer in device memory.
struct DeviceBuffer {
    address: usize,
    /// Recorded after the last copy out of it.
    free: CUevent,
}

impl Device {
    /// Copies to host memory in order with the ops, and waits.
    ///
    /// # Safety
    /// Device memory at `from` has the bytes, and host memory at `to` has room for them.
    pub unsafe fn copy_to_host(&self, from: usize, to: *mut c_void, bytes: usize) {
        let from = from as CUdeviceptr;
        let stream = self.stream;
        // SAFETY: both memories have the bytes, as the caller promises, until the stream is waited for.
        self.call("staging", |api| unsafe {
            match call!(api, cuMemcpyDtoHAsync_v2(to, from, bytes, stream)) {
                0 => call!(api, cuStreamSynchronize(stream)),
                code => code,
            }
        });
    }

    /// Copies from host memory in order with the ops, and waits.
    ///
    /// # Safety
    /// Host memory at `from` has the bytes, and device memory at `to` has room for them.
    pub unsafe fn copy_to_device(&self, from: *const c_void, to: usize, bytes: usize) {
        let to = to as CUdeviceptr;
        let stream = self.stream;
        // SAFETY: both memories have the bytes, as the caller promises, until the stream is waited for.
        self.call("staging", |api| unsafe {
            match call!(api, cuMemcpyHtoDAsync_v2(to, from, bytes, stream)) {
                0 => call!(api, cuStreamSynchronize(stream)),
                code => code,
            }
        });
    }
}

/// All memory of a backend.
pub struct Memory {
    regions: RefCell<Vec<CUdeviceptr>>,
    /// Bytes of `regions`.
    reserved: Cell<usize>,
    /// Page-locked regions of the host.
    host_regions: RefCell<Vec<*mut c_void>>,
    /// Events of transfers: all of them, and those not in use.
    transfers: RefCell<[Vec<CUevent>; 2]>,
    buffers: Vec<StagingBuffer>,
    next: Cell<usize>,
    /// Buffers of `download_async` alone, and how many downloads were begun and finished.
    downloads: Vec<StagingBuffer>,
    begun: Cell<usize>,
    finished: Cell<usize>,
    device_buffers: Vec<DeviceBuffer>,
    next_device_buffer: Cell<usize>,
    /// Address of the ops' scratch: ops of one stream use it in turn.
    pub workspace: usize,
}

impl Memory {
    /// Reserves the scratch and the staging buffers.
    pub fn new(device: &Device, workspace: usize) -> Result<Memory, OutOfMemory> {
        let mut memory = Memory {
            regions: RefCell::default(),
            reserved: Cell::new(0),
            host_regions: RefCell::default(),
            transfers: RefCell::default(),
            buffers: Vec::new(),
            next: Cell::new(0),
            downloads: Vec::new(),
            begun: Cell::new(0),
            finished: Cell::new(0),
            device_buffers: Vec::new(),
            next_device_buffer: Cell::new(0),
            workspace: 0,
        };
        memory.workspace = memory.reserve(device, workspace)?;
        memory.buffers = (0..STAGING_BUFFERS)
            .map(|_| StagingBuffer::take(device))
            .collect();
        memory.downloads = (0..MAX_DOWNLOADS)
            .map(|_| StagingBuffer::take(device))
            .collect();
        for _ in 0..DEVICE_BUFFERS {
            let address = memory.reserve(device, STAGING_BYTES)?;
            let free = device.event();
            device.record(free, device.stream);
            memory.device_buffers.push(DeviceBuffer { address, free });
        }
        Ok(memory)
    }

    /// Reserves a zeroed region.
    pub fn reserve(&self, device: &Device, bytes: usize) -> Result<usize, OutOfMemory> {
        let mut address = 0;
        // SAFETY: the driver writes an address to the live variable.
        let code =
            device.try_call(|api| unsafe { call!(api, cuMemAlloc_v2(&mut address, bytes.max(1))) });
        if code == OUT_OF_MEMORY {
            let available = Some(Bytes(device.memory().0 as u64));
            let memory = MemoryKind::Device;
            let asked = Bytes(bytes as u64);
            return Err(OutOfMemory { memory, asked, available });
        }
        device.call("reserving memory", |_| code);
        if code == 0 {
            self.regions.borrow_mut().push(address);
            self.reserved.set(self.reserved.get() + bytes);
        }
        self.clear(device, address as usize, bytes);
        Ok(address as usize)
    }

    /// Bytes of device memory that `reserve` has reserved.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved.get() as u64)
    }

    /// Reserves a page-locked region of the host with any content. None if the driver refuses it.
    pub fn reserve_host(&self, device: &Device, bytes: usize) -> Option<usize> {
        let mut memory = null_mut();
        // SAFETY: the driver writes an address to the live variable.
        let code = device
            .try_call(|api| unsafe { call!(api, cuMemHostAlloc(&mut memory, bytes.max(1), 0)) });
        if code != 0 {
            return None;
        }
        self.host_regions.borrow_mut().push(memory);
        Some(memory as usize)
    }

    /// Starts a copy between the device and page-locked memory, on the stream of its direction.
    pub fn transfer(&self, device: &Device, from: Tensor, to: Tensor) -> Transfer {
        assert_eq!((from.bytes(), from.dtype), (to.bytes(), to.dtype), "bytes copied");
        assert_ne!(from.memory(), to.memory(), "a transfer is between two memories");
        let event = self.free_event(device);
        let to_host = to.memory() == MemoryKind::Host;
        let bytes = from.bytes();
        let stream = if to_host { device.d2h_stream } else { device.h2d_stream };
        device.after(event, device.stream, stream);
        // SAFETY: both tensors have `bytes` bytes (above), one in each memory (above), which their
        // backend keeps; until the transfer is joined or finished, no op writes them.
        device.call("copying to and from the host", |api| unsafe {
            let from = from.addr();
            let to = to.addr();
            if to_host {
                call!(api, cuMemcpyDtoHAsync_v2(to as *mut c_void, from as u64, bytes, stream))
            } else {
                let from = from as *const c_void;
                call!(api, cuMemcpyHtoDAsync_v2(to as u64, from, bytes, stream))
            }
        });
        device.record(event, stream);
        Transfer(event as usize)
    }

    pub fn join_transfer(&self, device: &Device, transfer: Transfer) {
        let event = transfer.0 as CUevent;
        device.wait(device.stream, event);
        self.transfers.borrow_mut()[1].push(event);
    }

    pub fn finish_transfer(&self, device: &Device, transfer: Transfer) {
        let event = transfer.0 as CUevent;
        device.wait_event("copying to and from the host", event);
        self.transfers.borrow_mut()[1].push(event);
    }

    fn free_event(&self, device: &Device) -> CUevent {
        let [all, free] = &mut *self.transfers.borrow_mut();
        free.pop().unwrap_or_else(|| {
            all.push(device.event());
            all[all.len() - 1]
        })
    }

    /// Fills bytes with zeros.
    pub fn clear(&self, device: &Device, address: usize, bytes: usize) {
        if bytes > 0 {
            // SAFETY: the bytes are a region's (`reserve`) or a tensor's, in device memory.
            device.call("zero", |api| unsafe {
                call!(api, cuMemsetD8Async(address as CUdeviceptr, 0, bytes, device.stream))
            });
        }
    }

    /// Host to device, in order with all ops; returns once the bytes are in a staging buffer.
    pub fn upload(&self, device: &Device, from: &[u8], to: Tensor) {
        assert_eq!(from.len(), to.bytes(), "bytes uploaded");
        for (i, bytes) in from.chunks(STAGING_BYTES).enumerate() {
            let Some(buffer) = self.filled_buffer(device, bytes) else { return };
            let address = (to.addr() + i * STAGING_BYTES) as CUdeviceptr;
            // SAFETY: the buffer has these bytes, until its event below; the tensor has room for all
            // chunks (above).
            device.call("upload", |api| unsafe {
                let from = buffer.memory.cast();
                let stream = device.stream;
                call!(api, cuMemcpyHtoDAsync_v2(address, from, bytes.len(), stream))
            });
            device.record(buffer.event, device.stream);
        }
    }

    /// Host to device, in order with all ops; returns once the bytes are in a staging buffer. They
    /// cross the bus on the h2d stream while earlier ops still compute; only the copy from the
    /// device's staging buffer to the destination is in the ops' stream, so earlier ops read the
    /// old contents.
    pub fn upload_async(&self, device: &Device, from: &[u8], to: Tensor) {
        assert_eq!(from.len(), to.bytes(), "bytes uploaded");
        for (i, bytes) in from.chunks(STAGING_BYTES).enumerate() {
            let Some(buffer) = self.filled_buffer(device, bytes) else { return };
            let staged = &self.device_buffers[self.next_device_buffer.get()];
            self.next_device_buffer
                .set((self.next_device_buffer.get() + 1) % DEVICE_BUFFERS);
            let staged_at = staged.address as CUdeviceptr;
            let address = (to.addr() + i * STAGING_BYTES) as CUdeviceptr;
            device.wait(device.h2d_stream, staged.free);
            // SAFETY: the buffer has these bytes, until its event below; the device's buffer has room
            // for `STAGING_BYTES`, and the stream waits until no copy reads it.
            device.call("upload", |api| unsafe {
                let from = buffer.memory.cast();
                let stream = device.h2d_stream;
                call!(api, cuMemcpyHtoDAsync_v2(staged_at, from, bytes.len(), stream))
            });
            device.after(buffer.event, device.h2d_stream, device.stream);
            // SAFETY: the device's buffer has the bytes, after the event above; the tensor has room for
            // all chunks (above).
            device.call("upload", |api| unsafe {
                call!(api, cuMemcpyDtoDAsync_v2(address, staged_at, bytes.len(), device.stream))
            });
            device.record(staged.free, device.stream);
        }
    }

    /// Device to host, after everything enqueued so far; waits.
    pub fn download(&self, device: &Device, from: Tensor, to: &mut [u8]) {
        assert_eq!(to.len(), from.bytes(), "bytes downloaded");
        let mut in_flight = std::collections::VecDeque::new();
        for (i, bytes) in to.chunks_mut(STAGING_BYTES).enumerate() {
            if in_flight.len() == STAGING_BUFFERS
                && let Some((buffer, to)) = in_flight.pop_front()
            {
                self.finish_copy(device, buffer, to);
            }
            let Some(buffer) = self.free_buffer(device) else { return };
            buffer.fill(device, from.addr() + i * STAGING_BYTES, bytes.len());
            in_flight.push_back((buffer, bytes));
        }
        for (buffer, to) in in_flight {
            self.finish_copy(device, buffer, to);
        }
    }

    /// Starts a copy to the host, for `finish_download`.
    pub fn download_async(&self, device: &Device, from: Tensor) {
        let begun = self.begun.get();
        assert!(begun - self.finished.get() < MAX_DOWNLOADS, "more than {MAX_DOWNLOADS} downloads");
        self.downloads[begun % MAX_DOWNLOADS].fill(device, from.addr(), from.bytes());
        self.begun.set(begun + 1);
    }

    /// Waits for the oldest download in flight and takes its bytes.
    pub fn finish_download(&self, device: &Device, to: &mut [u8]) {
        let finished = self.finished.get();
        assert!(finished < self.begun.get(), "no download was begun");
        assert!(to.len() <= STAGING_BYTES, "{} bytes in one buffer", to.len());
        self.finish_copy(device, &self.downloads[finished % MAX_DOWNLOADS], to);
        self.finished.set(finished + 1);
    }

    fn finish_copy(&self, device: &Device, buffer: &StagingBuffer, to: &mut [u8]) {
        device.wait_event("download", buffer.event);
        if !device.failed() {
            // SAFETY: the copy into the buffer has ended (its event), and `to` is at most the bytes of
            // one: callers cut or check it.
            unsafe { std::ptr::copy_nonoverlapping(buffer.memory, to.as_mut_ptr(), to.len()) };
        }
    }

    /// Free buffer filled with these bytes, at most `STAGING_BYTES`. None if the device has failed.
    fn filled_buffer(&self, device: &Device, bytes: &[u8]) -> Option<&StagingBuffer> {
        let buffer = self.free_buffer(device)?;
        // SAFETY: the bytes are a chunk of `STAGING_BYTES`, and no copy uses the buffer any more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.memory, bytes.len()) };
        Some(buffer)
    }

    /// Waits for the least recently used buffer. None if the device has failed.
    fn free_buffer(&self, device: &Device) -> Option<&StagingBuffer> {
        let buffer = &self.buffers[self.next.get()];
        self.next.set((self.next.get() + 1) % STAGING_BUFFERS);
        device.wait_event("waiting for a copy", buffer.event);
        (!device.failed()).then_some(buffer)
    }

    /// Releases everything. Called once, when the backend is dropped.
    pub fn free(&self, device: &Device) {
        for buffer in self.buffers.iter().chain(&self.downloads) {
            device.destroy_event(buffer.event);
            // SAFETY: `take` had it from the driver, and the backend uses it no more.
            device.try_call(|api| unsafe { call!(api, cuMemFreeHost(buffer.memory.cast())) });
        }
        for staged in &self.device_buffers {
            device.destroy_event(staged.free);
        }
        for event in &self.transfers.borrow()[0] {
            device.destroy_event(*event);
        }
        for region in self.host_regions.borrow().iter() {
            // SAFETY: `reserve_host` had it from the driver, and the backend uses it no more.
            device.try_call(|api| unsafe { call!(api, cuMemFreeHost(*region)) });
        }
        for region in self.regions.borrow().iter() {
            // SAFETY: `reserve` had it from the driver, and the backend uses it no more.
            device.try_call(|api| unsafe { call!(api, cuMemFree_v2(*region)) });
        }
    }
}
