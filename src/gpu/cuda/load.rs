//! Loads libraries by their full path, so that whoever asks for them by name later gets the same ones.
//!
//! The tensor library's CUDA runtime opens `libnvrtc.so.12` and so on by name, which finds those of the linker's folders
//! and of `LD_LIBRARY_PATH` as it was when the process started. A library that is loaded already is found by its own
//! name (`SONAME`) wherever it lies, so opening it once by path, for all to see, is enough. The alternative, starting this
//! program again with another `LD_LIBRARY_PATH`, would change process numbers under launchers and the first process.

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gpu::place::{Library, Search};

/// A library that is loaded for the rest of the process.
#[derive(Debug)]
pub struct Loaded {
    /// Where it lies; its name where the system does not tell.
    pub path: PathBuf,
    handle: &'static Handle,
}

impl Loaded {
    /// Opens a file, or asks the linker for a name.
    ///
    /// # Errors
    /// The linker's text.
    pub fn open(file: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers. These are NVIDIA's own libraries, or what the user put in their
        // place; they are never unloaded, so nothing of them dangles.
        let handle =
            unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| chain(&e))?;
        let path = match file.is_absolute() {
            true => file.to_owned(),
            false => mapped(file).unwrap_or_else(|| file.to_owned()),
        };
        Ok(Loaded {
            path,
            handle: Box::leak(Box::new(handle)),
        })
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the type of a function pointer that fits the symbol.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller knows the type; the library stays loaded.
        let symbol = unsafe { self.handle.get::<F>(name.as_bytes()) };
        symbol.ok().map(|symbol| *symbol)
    }

    /// Version as its own function tells it.
    pub(super) fn version(&self, library: Library) -> Option<String> {
        match library {
            Library::Nvrtc => self.nvrtc_version().map(|(a, b)| format!("{a}.{b}")),
            Library::Nccl => self.nccl_version().map(nccl_text),
            Library::Cudnn => {
                // SAFETY: `size_t cudnnGetVersion(void)`.
                let ask =
                    unsafe { self.function::<unsafe extern "C" fn() -> usize>("cudnnGetVersion") }?;
                // SAFETY: it takes nothing and needs no state.
                let v = unsafe { ask() };
                Some(format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100))
            }
        }
    }

    pub(super) fn nvrtc_version(&self) -> Option<(i32, i32)> {
        type Ask = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        // SAFETY: `nvrtcResult nvrtcVersion(int *major, int *minor)`.
        let ask = unsafe { self.function::<Ask>("nvrtcVersion") }?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        (unsafe { ask(&raw mut major, &raw mut minor) } == 0).then_some((major, minor))
    }

    /// As a number: 21803 for 2.18.3.
    pub(crate) fn nccl_version(&self) -> Option<i32> {
        type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
        // SAFETY: `ncclResult_t ncclGetVersion(int *version)`.
        let ask = unsafe { self.function::<Ask>("ncclGetVersion") }?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        (unsafe { ask(&raw mut version) } == 0).then_some(version)
    }
}

/// `2.18.3` of 21803.
pub(crate) fn nccl_text(version: i32) -> String {
    format!(
        "{}.{}.{}",
        version / 10_000,
        version % 10_000 / 100,
        version % 100
    )
}

/// The first file of a library that can be loaded; otherwise what the linker said of each.
pub(super) fn first(search: &Search, library: Library) -> Result<Loaded, String> {
    let mut reasons: Vec<String> = vec![];
    for file in search.library(library) {
        match Loaded::open(&file) {
            Ok(loaded) => return Ok(loaded),
            // that the linker knows no such name is no news
            Err(_) if !file.is_absolute() => {}
            Err(reason) => reasons.push(reason),
        }
    }
    let names = library.names().join(" or ");
    Err(match reasons.is_empty() {
        true => format!("{names} not found"),
        false => format!("{names} cannot be loaded ({})", reasons.join("; ")),
    })
}

/// Where a loaded library lies, by the process's memory map.
fn mapped(name: &Path) -> Option<PathBuf> {
    let name = name.to_str()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = Path::new(&line[line.find('/')?..]);
        // the file behind a link has a longer name: libnvrtc.so.12.4.127
        path.file_name()?
            .to_str()?
            .starts_with(name)
            .then_some(path)
    })?;
    Some(path.to_owned())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    if let Some(source) = error.source() {
        text = source.to_string();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_loaded_is_found_with_its_path() {
        let c = Loaded::open(Path::new("libc.so.6")).unwrap();
        assert!(c.path.is_absolute(), "{}", c.path.display());
        // SAFETY: `int getpid(void)` of the C library.
        let id = unsafe { c.function::<unsafe extern "C" fn() -> c_int>("getpid") }.unwrap();
        // SAFETY: it takes nothing.
        assert_eq!(unsafe { id() } as u32, std::process::id());
        assert!(Loaded::open(Path::new("/nowhere/libnccl.so.2")).is_err());
    }

    #[test]
    fn a_version_of_nccl_is_written_as_people_do() {
        assert_eq!(nccl_text(21803), "2.18.3");
        assert_eq!(nccl_text(23007), "2.30.7");
    }
}
