//! CUDA: what the driver and the files of this machine tell, asked without a panic, and made ready for the tensor library.

pub(crate) mod load;
mod nvml;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::result::device as driver;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{DriverError, sys};

use self::load::Loaded;
use super::error::{GpuError, Lack};
use super::place::{Headers, INNER_HEADER, Library, Part, Search, version_text};
use super::select::Gpu;

/// The oldest CUDA that a driver may be for.
const LEAST_DRIVER: i32 = 12_000;

/// Folders beyond the linker's that the driver's library is put into.
const DRIVER_FOLDERS: [&str; 4] = [
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
];

/// All that training on CUDA GPUs needs, as far as it is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// CUDA that the driver is for, as 12040 for 12.4.
    pub driver: Option<i32>,
    pub gpus: Vec<Gpu>,
    pub nvrtc: Part,
    pub headers: Part,
    /// What is missing first of all.
    pub lack: Option<(Lack, String)>,
}

/// The inventory, which is made once; CUDA is ready for the tensor library after it, where nothing is missing.
pub fn inventory() -> &'static Inventory {
    static FOUND: OnceLock<Inventory> = OnceLock::new();
    FOUND.get_or_init(|| Inventory::take(&Search::of_process()))
}

/// The inventory of a machine that lacks nothing for one GPU.
///
/// # Errors
/// [`GpuError::Lacks`]; `text` is what the user wrote.
pub fn ready(text: &str) -> Result<&'static Inventory, GpuError> {
    let found = inventory();
    match &found.lack {
        None => Ok(found),
        Some((lack, reason)) => Err(GpuError::Lacks {
            text: text.into(),
            lack: *lack,
            reason: reason.clone(),
        }),
    }
}

/// A library that not every run needs, loaded by the first call.
///
/// # Errors
/// Why it cannot be loaded.
pub fn library(which: Library) -> Result<&'static Loaded, String> {
    static NCCL: OnceLock<Result<Loaded, String>> = OnceLock::new();
    static CUDNN: OnceLock<Result<Loaded, String>> = OnceLock::new();
    static NVRTC: OnceLock<Result<Loaded, String>> = OnceLock::new();
    let place = match which {
        Library::Nccl => &NCCL,
        Library::Cudnn => &CUDNN,
        Library::Nvrtc => &NVRTC,
    };
    let found = place.get_or_init(|| load::first(&Search::of_process(), which));
    found.as_ref().map_err(Clone::clone)
}

/// A library for a report.
#[must_use]
pub fn part(which: Library) -> Part {
    match library(which) {
        Ok(loaded) => Part {
            path: Some(loaded.path.clone()),
            version: loaded.version(which),
            problem: None,
        },
        Err(problem) => Part::missing(problem),
    }
}

impl Inventory {
    fn take(search: &Search) -> Self {
        let mut found = Inventory::default();
        let mut lacks = vec![];
        match gpus() {
            Ok((driver, gpus)) => (found.driver, found.gpus) = (Some(driver), gpus),
            Err(Trouble {
                lack,
                reason,
                driver,
            }) => {
                found.driver = driver;
                lacks.push((lack, reason));
            }
        }
        let compiler = found.compiler(search);
        if let Some(problem) = &found.nvrtc.problem {
            lacks.push((Lack::Nvrtc, problem.clone()));
        }
        found.find_headers(search, compiler);
        if let Some(problem) = &found.headers.problem {
            lacks.push((Lack::Headers, problem.clone()));
        }
        found.lack = lacks.into_iter().next();
        found
    }

    /// Loads the newest NVRTC whose code the driver takes; its version as 12040 for 12.4.
    fn compiler(&mut self, search: &Search) -> Option<i32> {
        let mut newer = None;
        let mut problem = None;
        for file in search.library(Library::Nvrtc) {
            let loaded = match Loaded::open(&file) {
                Ok(loaded) => loaded,
                Err(_) if !file.is_absolute() => continue,
                Err(reason) => {
                    problem.get_or_insert(reason);
                    continue;
                }
            };
            let Some((major, minor)) = loaded.nvrtc_version() else {
                continue;
            };
            let version = major * 1000 + minor * 10;
            let text = version_text(version);
            // PTX that is newer than the driver is refused by it
            if self.driver.is_some_and(|driver| version > driver) {
                newer.get_or_insert((text, loaded.path));
                continue;
            }
            self.nvrtc = Part {
                path: Some(loaded.path),
                version: Some(text),
                problem: None,
            };
            // SAFETY: the call only opens libraries by name.
            if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
                self.nvrtc.problem =
                    Some(format!("{} is found, but not by its name", file.display()));
            }
            return Some(version);
        }
        self.nvrtc = match (newer, self.driver) {
            (Some((version, path)), Some(driver)) => Part {
                problem: Some(format!(
                    "NVRTC {version} is newer than the driver, which is for CUDA {}",
                    version_text(driver)
                )),
                path: Some(path),
                version: Some(version),
            },
            _ => Part::missing(match problem {
                Some(reason) => format!("no NVRTC can be loaded ({reason})"),
                None => format!("no NVRTC ({})", Library::Nvrtc.names().join(" or ")),
            }),
        };
        None
    }

    /// Headers of the compiler's version, or of another one of its series; `CUDA_PATH` leads to them afterwards.
    fn find_headers(&mut self, search: &Search, compiler: Option<i32>) {
        let all = search.headers();
        let series = |h: &&Headers| {
            let (Some(compiler), Some(own)) = (compiler, h.version) else {
                return true;
            };
            own / 1000 == compiler / 1000
        };
        let fitting: Vec<&Headers> = all.iter().filter(series).collect();
        let complete = || fitting.iter().filter(|h| h.are_complete());
        let exact = complete().find(|h| compiler.is_some() && h.version == compiler);
        let Some(headers) = exact.or_else(|| complete().next()) else {
            if let Some(incomplete) = fitting.first() {
                let folder = incomplete.folders[0].display();
                let problem = format!("the CUDA headers in {folder} lack {INNER_HEADER}");
                self.headers = Part::missing(problem);
                return;
            }
            let others: Vec<_> = all
                .iter()
                .filter_map(|h| h.version)
                .map(version_text)
                .collect();
            self.headers = Part::missing(match (others.is_empty(), compiler) {
                (false, Some(compiler)) => format!(
                    "no CUDA headers of NVRTC's version {} (there are those of {})",
                    version_text(compiler),
                    others.join(", ")
                ),
                _ => format!("no CUDA headers ({})", super::place::HEADER),
            });
            return;
        };
        self.headers.version = headers.version.map(version_text);
        match headers.home(&cache()) {
            Ok(home) => {
                set_home(&home);
                self.headers.path = Some(home);
            }
            Err(error) => {
                self.headers.problem = Some(format!("CUDA headers cannot be put together: {error}"))
            }
        }
    }
}

/// Tells the tensor library's compiler where headers are.
fn set_home(home: &Path) {
    if std::env::var_os("CUDA_PATH").is_some_and(|set| Path::new(&set) == home) {
        return;
    }
    // SAFETY: changing the environment is a race with threads that read it outside of Rust's lock (`getenv` in C). The
    // inventory is taken where `--device` is read, before this process starts threads of its own; the driver has been
    // initialised by then, which starts none that read variables.
    unsafe { std::env::set_var("CUDA_PATH", home) };
}

/// For links to headers.
fn cache() -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("yolo-train")
}

struct Trouble {
    lack: Lack,
    reason: String,
    driver: Option<i32>,
}

/// Version of the driver, and the GPUs that it shows.
fn gpus() -> Result<(i32, Vec<Gpu>), Trouble> {
    let trouble = |lack, reason: String| Trouble {
        lack,
        reason,
        driver: None,
    };
    if !driver_is_loaded() {
        return Err(trouble(
            Lack::Driver,
            "no NVIDIA driver (libcuda.so.1 not found)".into(),
        ));
    }
    let mut version = 0;
    // SAFETY: the driver's library is loaded; the pointer is to a live integer. It may be called before `cuInit`.
    let known = unsafe { sys::cuDriverGetVersion(&raw mut version) } == sys::CUresult::CUDA_SUCCESS;
    let version = known.then_some(version);
    if let Some(version) = version.filter(|&v| v < LEAST_DRIVER) {
        return Err(Trouble {
            driver: Some(version),
            ..trouble(
                Lack::Driver,
                format!(
                    "the NVIDIA driver is for CUDA {}, {} is needed",
                    version_text(version),
                    version_text(LEAST_DRIVER)
                ),
            )
        });
    }
    let with_version = |t: Trouble| Trouble {
        driver: version,
        ..t
    };
    cudarc::driver::result::init().map_err(|error| with_version(start(error)))?;
    let failed = |what: &str, error: DriverError| {
        with_version(trouble(
            Lack::Gpu,
            format!("{what} failed: {}", name(error)),
        ))
    };
    let count = driver::get_count().map_err(|e| failed("cuDeviceGetCount", e))?;
    let mut found = vec![];
    for index in 0..count {
        found.push(gpu(index).map_err(|e| failed(&format!("asking for GPU {index}"), e))?);
    }
    if found.is_empty() {
        return Err(with_version(trouble(
            Lack::Gpu,
            "the driver shows no GPU".into(),
        )));
    }
    let uuids: Vec<String> = found.iter().map(|gpu: &Gpu| gpu.uuid.clone()).collect();
    let mut uses = nvml::uses(&uuids);
    for gpu in &mut found {
        if let Some(used) = uses.remove(&gpu.uuid) {
            (gpu.used_bytes, gpu.processes) = (used.bytes, used.processes);
        }
    }
    Ok((version.unwrap_or_default(), found))
}

fn driver_is_loaded() -> bool {
    // SAFETY: the call only opens libraries by name.
    let known = || unsafe { sys::is_culib_present() };
    known()
        || DRIVER_FOLDERS.iter().any(|folder| {
            let file = Path::new(folder).join("libcuda.so.1");
            file.is_file() && Loaded::open(&file).is_ok() && known()
        })
}

/// Why the driver does not start.
fn start(error: DriverError) -> Trouble {
    let (lack, why) = match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => (Lack::Gpu, "the driver shows no GPU"),
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => (
            Lack::Driver,
            "the driver's library is of another version than the kernel's module: restart the machine after an update, or install matching ones",
        ),
        sys::CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => (
            Lack::Driver,
            "the CUDA compatibility library does not fit this GPU or the kernel's module",
        ),
        sys::CUresult::CUDA_ERROR_SYSTEM_NOT_READY => (
            Lack::Driver,
            "the system is not ready (is nvidia-fabricmanager running?)",
        ),
        _ => (Lack::Driver, "the NVIDIA driver does not start"),
    };
    Trouble {
        lack,
        reason: format!("{why} (cuInit: {})", name(error)),
        driver: None,
    }
}

/// `CUDA_ERROR_NO_DEVICE (100)`.
pub(crate) fn name(error: DriverError) -> String {
    let code = error.0 as u32;
    let name = error.error_name().ok().and_then(|name| name.to_str().ok());
    match name {
        Some(name) => format!("{name} ({code})"),
        None => format!("error {code}"),
    }
}

fn gpu(index: i32) -> Result<Gpu, DriverError> {
    let device = driver::get(index)?;
    let uuid = driver::get_uuid(device)?.bytes.map(|b| b as u8);
    // SAFETY: `device` is one of the driver's.
    let (memory, major, minor) = unsafe {
        (
            driver::total_mem(device)?,
            driver::get_attribute(
                device,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            )?,
            driver::get_attribute(
                device,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )?,
        )
    };
    Ok(Gpu {
        index: index as u32,
        name: driver::get_name(device)?,
        uuid: uuid_text(&uuid),
        memory_bytes: memory as u64,
        used_bytes: None,
        capability: (major, minor),
        processes: None,
    })
}

/// `GPU-01234567-89ab-…`, as NVML and nvidia-smi write it.
fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(
            uuid_text(&bytes),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
    }

    #[test]
    fn asking_for_cuda_never_panics() {
        let found = inventory();
        assert_eq!(found.lack.is_none(), ready("0").is_ok());
        for library in [Library::Nccl, Library::Cudnn] {
            let part = part(library);
            assert_ne!(part.path.is_some(), part.problem.is_some(), "{part:?}");
        }
    }
}
