//! The engine over MPI, for CPU clusters whose network MPI knows (feature `mpi`).
//!
//! MPI only moves bytes: the collectives are those of the built-in engine, so sums have the same bits.
//! `MPI_Allreduce`, whose order of summation is the library's business, is never called. A panic aborts the whole job.
//!
//! All calls are non-blocking and made under one lock: MPI must offer `MPI_THREAD_SERIALIZED`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::ffi;
use ::mpi::traits::Communicator;
use rustix::event::PollFd;

use super::error::DistError;
use super::group::{Channel, ProcessGroup};
use super::handle::lock;
use super::mesh::Mesh;
use super::mesh::link::{Link, LinkError, PIECE};
use super::mesh::shared::{Control, Shared};

/// Pieces under way between two ranks on a channel, in each direction.
const SLOTS: usize = 4;
const TAG: i32 = 0;
/// Exit code of a job that a panic ended.
const PANICKED: i32 = 101;

/// One thread at a time calls MPI.
static MPI: Mutex<()> = Mutex::new(());

fn mpi() -> MutexGuard<'static, ()> {
    lock(&MPI)
}

/// Joins the ranks that `mpirun` started. To be called once in a process; MPI ends when the group is dropped.
///
/// # Errors
/// [`DistError::System`]: MPI is initialised already or has no support for threads.
pub fn join(deadline: Duration) -> Result<Arc<dyn ProcessGroup>, DistError> {
    let (universe, threading) = ::mpi::initialize_with_threading(Threading::Serialized)
        .ok_or_else(|| DistError::system("start MPI", "it has been started before"))?;
    if threading < Threading::Serialized {
        return Err(DistError::system(
            "start MPI",
            format!("it was built for {threading:?}, not for more threads"),
        ));
    }
    abort_on_panic();
    let world = universe.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let links = Channel::ALL.map(|_| {
        let comm = duplicate();
        (0..size)
            .map(|peer| {
                (peer != rank).then(|| Box::new(MpiLink::new(comm, peer as i32)) as Box<dyn Link>)
            })
            .collect()
    });
    // It ends in `Job::finish`, when all receives are cancelled.
    std::mem::forget(universe);
    let shared = Arc::new(Shared::new(size));
    let job = Arc::new(Job {
        shared: shared.clone(),
    });
    Mesh::start("mpi", rank, links, shared, job, deadline)
}

fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // SAFETY: MPI is initialised and not yet finalised, or this call fails. No lock: another thread of this
        // process may hold it forever, and the process ends here.
        unsafe {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, PANICKED);
        }
    }));
}

#[derive(Clone, Copy)]
struct Comm(ffi::MPI_Comm);

// SAFETY: a communicator is a handle that any thread may use, one at a time (`MPI_THREAD_SERIALIZED`, `mpi()`).
unsafe impl Send for Comm {}

/// A communicator of all ranks of its own, so that channels do not meet. All ranks call it.
fn duplicate() -> Comm {
    let _turn = mpi();
    // SAFETY: MPI is initialised, and the result is written before it is read. Errors end the job (MPI's default).
    unsafe {
        let mut comm = ffi::RSMPI_COMM_WORLD;
        ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &raw mut comm);
        Comm(comm)
    }
}

/// MPI ends as a whole.
struct Job {
    shared: Arc<Shared>,
}

impl Control for Job {
    fn abort(&self, _: &str) {
        // The others find the mismatch themselves, or meet their deadlines.
    }

    fn leave(&self) {}

    fn finish(&self) {
        if self.shared.failure().is_some() {
            // Finalising would wait for ranks that do not come; `mpirun` ends the job when this process ends.
            return;
        }
        let _turn = mpi();
        // SAFETY: MPI is initialised, all requests are complete or cancelled, and nobody calls MPI after this.
        unsafe {
            ffi::MPI_Finalize();
        }
    }
}

/// Memory of a piece and the request that works on it. Words: pieces are aligned for every type of elements.
struct Slot {
    memory: Vec<u64>,
    request: ffi::MPI_Request,
    /// Bytes, once complete.
    done: Option<usize>,
}

impl Slot {
    fn new() -> Self {
        Slot {
            memory: vec![0; PIECE / 8],
            // SAFETY: reads a constant that MPI's start has set.
            request: unsafe { ffi::RSMPI_REQUEST_NULL },
            done: None,
        }
    }

    /// Whether the request is complete; with its number of bytes.
    fn test(&mut self) -> bool {
        if self.done.is_none() {
            let _turn = mpi();
            // SAFETY: `request` is null or was made by `Isend` or `Irecv`; its memory is `self.memory`, whose heap
            // block stays where it is until the request is complete. An all-zero status is a valid one to write to.
            unsafe {
                let (mut flag, mut count) = (0, 0);
                let mut status: ffi::MPI_Status = std::mem::zeroed();
                ffi::MPI_Test(&raw mut self.request, &raw mut flag, &raw mut status);
                if flag != 0 {
                    ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut count);
                    self.done = Some(count.max(0) as usize);
                }
            }
        }
        self.done.is_some()
    }
}

struct MpiLink {
    comm: Comm,
    peer: i32,
    sending: VecDeque<Slot>,
    free: Vec<Slot>,
    /// In the order in which pieces come.
    receiving: VecDeque<Slot>,
    wants_read: bool,
    wants_write: bool,
}

// SAFETY: requests are handles like communicators (`Comm`); a link is used by one thread at a time.
unsafe impl Send for MpiLink {}

impl MpiLink {
    fn new(comm: Comm, peer: i32) -> Self {
        let mut link = MpiLink {
            comm,
            peer,
            sending: VecDeque::new(),
            free: (0..SLOTS).map(|_| Slot::new()).collect(),
            receiving: VecDeque::new(),
            wants_read: false,
            wants_write: false,
        };
        for _ in 0..SLOTS {
            link.receive(Slot::new());
        }
        link
    }

    /// Lets the next piece come into a slot.
    fn receive(&mut self, mut slot: Slot) {
        slot.done = None;
        {
            let _turn = mpi();
            // SAFETY: `memory` has room for `PIECE` bytes, is not touched until the request is complete, and its heap
            // block does not move with the slot.
            unsafe {
                ffi::MPI_Irecv(
                    slot.memory.as_mut_ptr().cast(),
                    PIECE as i32,
                    ffi::RSMPI_UINT8_T,
                    self.peer,
                    TAG,
                    self.comm.0,
                    &raw mut slot.request,
                );
            }
        }
        self.receiving.push_back(slot);
    }

    /// Takes back the slots whose pieces are sent.
    fn reap(&mut self) {
        while self.sending.front_mut().is_some_and(Slot::test) {
            self.free.extend(self.sending.pop_front());
        }
    }
}

impl Link for MpiLink {
    fn push(&mut self, parts: &[&[u8]]) -> Result<bool, LinkError> {
        if self.free.is_empty() {
            self.reap();
        }
        let Some(mut slot) = self.free.pop() else {
            self.wants_write = true;
            return Ok(false);
        };
        self.wants_write = false;
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut slot.memory);
        let mut len = 0;
        for part in parts {
            memory[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        slot.done = None;
        {
            let _turn = mpi();
            // SAFETY: `len` bytes of `memory` are initialised, are not changed until the request is complete, and
            // their heap block does not move with the slot.
            unsafe {
                ffi::MPI_Isend(
                    slot.memory.as_ptr().cast(),
                    len as i32,
                    ffi::RSMPI_UINT8_T,
                    self.peer,
                    TAG,
                    self.comm.0,
                    &raw mut slot.request,
                );
            }
        }
        self.sending.push_back(slot);
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        // MPI moves nothing unless it is called, so all must be gone before the collective ends.
        self.reap();
        self.wants_write = !self.sending.is_empty();
        Ok(!self.wants_write)
    }

    fn fill(&mut self, len: usize) -> Result<bool, LinkError> {
        let front = self.receiving.front_mut().expect("receives are posted");
        self.wants_read = !front.test();
        match front.done {
            Some(count) if count != len => Err(LinkError::Corrupt(format!(
                "a piece of {count} bytes in place of {len}"
            ))),
            done => Ok(done.is_some()),
        }
    }

    fn piece(&self, len: usize) -> &[u8] {
        let front = self.receiving.front().expect("receives are posted");
        let memory: &[u8] = bytemuck::cast_slice(&front.memory);
        &memory[..len]
    }

    fn pop(&mut self, _: usize) {
        let slot = self.receiving.pop_front().expect("receives are posted");
        self.receive(slot);
    }

    fn blocked(&self) -> bool {
        self.wants_read || self.wants_write
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        None
    }
}

impl Drop for MpiLink {
    fn drop(&mut self) {
        for slot in &mut self.receiving {
            if slot.test() {
                continue;
            }
            let _turn = mpi();
            // SAFETY: an active receive; it is complete after the wait, and its memory lives until then.
            unsafe {
                let mut status: ffi::MPI_Status = std::mem::zeroed();
                ffi::MPI_Cancel(&raw mut slot.request);
                ffi::MPI_Wait(&raw mut slot.request, &raw mut status);
            }
        }
        for mut slot in self.sending.drain(..) {
            if !slot.test() {
                // Only after an error: MPI may still read this memory.
                std::mem::forget(slot);
            }
        }
    }
}
