//! NCCL's functions, from the library that [`crate::gpu`] has found.
//!
//! cudarc's own loader knows no `libnccl.so.2`, the only name that the library has in PyPI wheels and runtime packages, and
//! panics where it finds none; types and constants are cudarc's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys;

use crate::dist::buffer::{DType, ReduceOp};
use crate::dist::device::DeviceType;
use crate::dist::error::DistError;
use crate::gpu::Lack;
use crate::gpu::cuda::load::{Loaded, nccl_text};
use crate::gpu::place::Library;

/// What communicators without blocking calls, and their abort, need.
const LEAST: c_int = 21_800;

pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

pub(super) type RawComm = *mut c_void;
type Stream = *mut c_void;

/// The beginning of `ncclConfig_t` that all versions from 2.18 on know. The library takes what it does not get from its
/// defaults (`size` tells).
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once. `max_ctas`: most thread blocks that it takes.
    pub(super) fn non_blocking(max_ctas: Option<c_int>) -> Self {
        let undefined = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: LEAST as u32,
            blocking: 0,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: max_ctas.unwrap_or(undefined),
            net_name: std::ptr::null(),
            split_share: undefined,
        }
    }
}

macro_rules! functions {
    ($($name:ident: $symbol:literal fn($($arg:ty),*) -> $result:ty;)*) => {
        /// Pointers to the library's functions; the library stays loaded.
        pub(super) struct Api {
            pub(super) version: c_int,
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Api {
            fn of(library: &Loaded, version: c_int) -> Result<Self, String> {
                Ok(Api {
                    version,
                    $(
                        // SAFETY: the type is that of nccl.h, the same since version 2.18.
                        $name: unsafe { library.function($symbol) }
                            .ok_or_else(|| format!("{} has no {}", library.path.display(), $symbol))?,
                    )*
                })
            }
        }
    };
}

functions! {
    get_unique_id: "ncclGetUniqueId" fn(*mut sys::ncclUniqueId) -> c_int;
    init: "ncclCommInitRankConfig" fn(*mut RawComm, c_int, sys::ncclUniqueId, c_int, *mut Config) -> c_int;
    async_error: "ncclCommGetAsyncError" fn(RawComm, *mut c_int) -> c_int;
    abort: "ncclCommAbort" fn(RawComm) -> c_int;
    finalize: "ncclCommFinalize" fn(RawComm) -> c_int;
    destroy: "ncclCommDestroy" fn(RawComm) -> c_int;
    all_reduce: "ncclAllReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;
    all_gather: "ncclAllGather" fn(*const c_void, *mut c_void, usize, c_int, RawComm, Stream) -> c_int;
    broadcast: "ncclBroadcast" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;
    send: "ncclSend" fn(*const c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;
    recv: "ncclRecv" fn(*mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;
    group_start: "ncclGroupStart" fn() -> c_int;
    group_end: "ncclGroupEnd" fn() -> c_int;
    error_string: "ncclGetErrorString" fn(c_int) -> *const c_char;
    last_error: "ncclGetLastError" fn(RawComm) -> *const c_char;
}

impl Api {
    /// The library, loaded by the first call.
    ///
    /// # Errors
    /// [`DistError::System`]: there is none, or it is too old.
    pub(super) fn load() -> Result<&'static Self, DistError> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let load = || -> Result<Api, String> {
            let library = crate::gpu::cuda::library(Library::Nccl)
                .map_err(|reason| format!("{reason}; {}", Lack::Nccl.remedy()))?;
            let version = library.nccl_version().ok_or("it tells no version")?;
            if version < LEAST {
                return Err(format!(
                    "{} is NCCL {}, {} is needed; {}",
                    library.path.display(),
                    nccl_text(version),
                    nccl_text(LEAST),
                    Lack::Nccl.remedy()
                ));
            }
            Api::of(library, version)
        };
        let api = API.get_or_init(load);
        api.as_ref().map_err(|reason| DistError::System {
            what: "use NCCL".into(),
            reason: reason.clone(),
        })
    }

    /// A code in words, with what the library adds.
    pub(super) fn text(&self, code: c_int, comm: RawComm) -> String {
        // SAFETY: both give static or thread-local texts, or null; a null communicator is allowed.
        let (text, last) = unsafe { ((self.error_string)(code), (self.last_error)(comm)) };
        let read = |text: *const c_char| {
            // SAFETY: not null, and ended by a zero.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.map(|t| t.to_string_lossy().trim().to_owned())
                .unwrap_or_default()
        };
        let (text, last) = (read(text), read(last));
        match last.is_empty() {
            true => format!("{text} (NCCL {})", nccl_text(self.version)),
            false => format!("{text}: {last} (NCCL {})", nccl_text(self.version)),
        }
    }

    /// The name under which ranks meet.
    pub(super) fn unique_id(&self) -> Result<[u8; 128], DistError> {
        let mut id = sys::ncclUniqueId { internal: [0; 128] };
        // SAFETY: the pointer is to a live id.
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        match code {
            SUCCESS => Ok(id.internal.map(|byte| byte as u8)),
            code => Err(DistError::system(
                "make a unique id of NCCL",
                self.text(code, std::ptr::null_mut()),
            )),
        }
    }
}

/// NCCL's number of a type.
pub(super) fn device_type(dtype: DeviceType) -> c_int {
    use sys::ncclDataType_t as T;
    (match dtype {
        DeviceType::F32 => T::ncclFloat32,
        DeviceType::F64 => T::ncclFloat64,
        DeviceType::F16 => T::ncclFloat16,
        DeviceType::Bf16 => T::ncclBfloat16,
        DeviceType::I32 => T::ncclInt32,
        DeviceType::U32 => T::ncclUint32,
        DeviceType::I64 => T::ncclInt64,
        DeviceType::U64 => T::ncclUint64,
        DeviceType::U8 => T::ncclUint8,
    }) as c_int
}

/// The same type on a GPU.
pub(super) fn on_device(dtype: DType) -> DeviceType {
    match dtype {
        DType::F32 => DeviceType::F32,
        DType::F64 => DeviceType::F64,
        DType::I32 => DeviceType::I32,
        DType::I64 => DeviceType::I64,
        DType::U64 => DeviceType::U64,
        DType::U8 => DeviceType::U8,
    }
}

/// NCCL's number of an operation.
pub(super) fn operation(op: ReduceOp) -> c_int {
    use sys::ncclRedOp_t as O;
    (match op {
        ReduceOp::Sum => O::ncclSum,
        ReduceOp::Max => O::ncclMax,
        ReduceOp::Min => O::ncclMin,
    }) as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_the_beginning_of_the_librarys_own() {
        let theirs = |field: usize| field;
        use std::mem::offset_of;
        assert_eq!(
            offset_of!(Config, blocking),
            theirs(offset_of!(sys::ncclConfig_t, blocking))
        );
        assert_eq!(
            offset_of!(Config, max_ctas),
            theirs(offset_of!(sys::ncclConfig_t, maxCTAs))
        );
        assert_eq!(
            offset_of!(Config, split_share),
            theirs(offset_of!(sys::ncclConfig_t, splitShare))
        );
    }

    #[test]
    fn numbers_of_types_and_operations_are_those_of_nccl_h() {
        assert_eq!(device_type(DeviceType::F32), 7);
        assert_eq!(device_type(DeviceType::Bf16), 9);
        assert_eq!(
            [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min].map(operation),
            [0, 2, 3]
        );
    }
}
