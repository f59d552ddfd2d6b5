//! A communicator of NCCL: made, polled and aborted without a call that could block for ever.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use cudarc::nccl::sys;

use super::api::{Api, Config, IN_PROGRESS, SUCCESS};
use crate::dist::error::DistError;
use crate::dist::handle::lock;

/// Between looks at a call that goes on.
const LOOK: Duration = Duration::from_micros(50);
/// For an abort to come back; it goes on by itself after that.
const ABORT: Duration = Duration::from_secs(5);
/// For a call of another thread to come back before an abort; it does, unless NCCL itself hangs.
const TURN: Duration = Duration::from_secs(1);
/// For the others to close a communicator with this rank.
const FAREWELL: Duration = Duration::from_secs(2);

/// Says why waiting is in vain, if it is.
pub(super) type Trouble<'a> = &'a dyn Fn() -> Option<DistError>;

pub(super) struct Comm {
    api: &'static Api,
    raw: AtomicPtr<c_void>,
    /// One thread at a time calls NCCL.
    turn: Mutex<()>,
}

impl Comm {
    /// Comes together with the other ranks of `id`. The GPU's context is the current one of this thread.
    pub(super) fn join(
        api: &'static Api,
        id: [u8; 128],
        (rank, size): (usize, usize),
        max_ctas: Option<c_int>,
        deadline: Duration,
        trouble: Trouble<'_>,
    ) -> Result<Self, DistError> {
        let cannot = |reason: String| DistError::System {
            what: format!("connect {size} ranks over NCCL"),
            reason,
        };
        let id = sys::ncclUniqueId {
            internal: id.map(|byte| byte as _),
        };
        let mut raw = std::ptr::null_mut();
        let mut config = Config::non_blocking(max_ctas);
        // SAFETY: pointers to live values; NCCL copies the configuration.
        let code = unsafe {
            (api.init)(
                &raw mut raw,
                size as c_int,
                id,
                rank as c_int,
                &raw mut config,
            )
        };
        let comm = Comm {
            api,
            raw: AtomicPtr::new(raw),
            turn: Mutex::new(()),
        };
        if code != SUCCESS && code != IN_PROGRESS {
            let text = api.text(code, std::ptr::null_mut());
            comm.abort();
            return Err(cannot(format!("{text}; NCCL_DEBUG=INFO says more")));
        }
        let end = Instant::now() + deadline;
        loop {
            match comm.state() {
                Ok(true) => return Ok(comm),
                Ok(false) => {}
                Err(text) => {
                    comm.abort();
                    return Err(cannot(format!("{text}; NCCL_DEBUG=INFO says more")));
                }
            }
            if let Some(error) = trouble() {
                comm.abort();
                return Err(error);
            }
            if Instant::now() >= end {
                comm.abort();
                return Err(cannot(format!(
                    "not done after {:.1} s; NCCL_DEBUG=INFO says more, NCCL_SOCKET_IFNAME chooses the network interface",
                    deadline.as_secs_f64()
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether no call is in progress; the error that the communicator met.
    pub(super) fn state(&self) -> Result<bool, String> {
        let _turn = lock(&self.turn);
        self.state_now()
    }

    fn state_now(&self) -> Result<bool, String> {
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() {
            return Err("the communicator was aborted".into());
        }
        let mut state = SUCCESS;
        // SAFETY: the communicator is live: only `abort` and `drop` end it, and take the pointer away first.
        let code = unsafe { (self.api.async_error)(raw, &raw mut state) };
        match (code, state) {
            (SUCCESS, SUCCESS) => Ok(true),
            (SUCCESS, IN_PROGRESS) => Ok(false),
            (SUCCESS, code) | (code, _) => Err(self.api.text(code, raw)),
        }
    }

    /// Hands collectives to the GPU: `enqueue` calls NCCL once, or as a group. Waits until NCCL has taken them, which the
    /// first time needs the other ranks.
    ///
    /// # Errors
    /// NCCL's text, or what `trouble` tells.
    pub(super) fn call(
        &self,
        trouble: Trouble<'_>,
        enqueue: impl FnOnce(&Api, *mut c_void) -> c_int,
    ) -> Result<(), CallError> {
        let turn = lock(&self.turn);
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() {
            return Err(CallError::Nccl("the communicator was aborted".into()));
        }
        let code = enqueue(self.api, raw);
        if code != SUCCESS && code != IN_PROGRESS {
            return Err(CallError::Nccl(self.api.text(code, raw)));
        }
        drop(turn);
        loop {
            match self.state() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(text) => return Err(CallError::Nccl(text)),
            }
            if let Some(error) = trouble() {
                return Err(CallError::Group(error));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends all that is under way: kernels that wait for other ranks give up. Comes back in bounded time.
    pub(super) fn abort(&self) {
        let end = Instant::now() + TURN;
        let mut turn = self.turn.try_lock();
        while turn.is_err() && Instant::now() < end {
            std::thread::sleep(LOOK);
            turn = self.turn.try_lock();
        }
        let raw = self.raw.swap(std::ptr::null_mut(), Ordering::AcqRel);
        drop(turn);
        if raw.is_null() {
            return;
        }
        let (done, wait) = mpsc::channel();
        let (api, raw) = (self.api, raw as usize);
        let abort = move || {
            // SAFETY: the pointer was taken, so this is the last call with it.
            unsafe { (api.abort)(raw as *mut c_void) };
            // Nobody may be waiting any more.
            let _ = done.send(());
        };
        let started = std::thread::Builder::new()
            .name("dist-nccl-abort".into())
            .spawn(abort);
        if started.is_ok() {
            let _ = wait.recv_timeout(ABORT);
        }
    }
}

/// Why a call did not go through.
pub(super) enum CallError {
    Nccl(String),
    Group(DistError),
}

impl Drop for Comm {
    /// Closes it with the other ranks; where they do not come, without them.
    fn drop(&mut self) {
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() {
            return;
        }
        // SAFETY: the communicator is live, and nobody else has it any more.
        let code = unsafe { (self.api.finalize)(raw) };
        let end = Instant::now() + FAREWELL;
        let mut closed = code == SUCCESS || code == IN_PROGRESS;
        while closed {
            match self.state_now() {
                Ok(true) => break,
                Ok(false) if Instant::now() < end => std::thread::sleep(LOOK),
                _ => closed = false,
            }
        }
        match closed {
            true => {
                self.raw.store(std::ptr::null_mut(), Ordering::Release);
                // SAFETY: finalised, and the last call with it.
                unsafe { (self.api.destroy)(raw) };
            }
            false => self.abort(),
        }
    }
}
