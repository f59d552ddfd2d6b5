//! The device that tests run on.

use burn::tensor::Device;
use burn_cubecl::CubeDevice;

/// The GPU that `YOLO_TRAIN_TEST_DEVICE` names (`cuda:0`), otherwise the first adapter of Vulkan's; `None`, and a line that says so, where
/// there is none.
///
/// # Panics
/// If there is none and `YOLO_TRAIN_REQUIRE_WGPU=1` is set, as in CI, or the variable names one that cannot be used.
pub(crate) fn device() -> Option<Device> {
    if let Ok(text) = std::env::var("YOLO_TRAIN_TEST_DEVICE") {
        let request = crate::config::DeviceRequest::parse(&text).expect("a device");
        let found = crate::gpu::resolve(&request, &text).unwrap_or_else(|e| panic!("{e}"));
        return Some(found.devices[0].burn_device());
    }
    #[cfg(feature = "wgpu")]
    let device = crate::gpu::wgpu::adapters().into_iter().next();
    #[cfg(not(feature = "wgpu"))]
    let device: Option<Device> = None;
    if device.is_none() {
        assert!(
            std::env::var_os("YOLO_TRAIN_REQUIRE_WGPU").is_none_or(|v| v != "1"),
            "YOLO_TRAIN_REQUIRE_WGPU=1 is set, and no Vulkan adapter was found"
        );
        eprintln!("skipped: no Vulkan adapter");
    }
    device
}

/// As [`device`], as kernels know it.
pub(crate) fn cube_device() -> Option<CubeDevice> {
    super::flat::cube_device(&device()?)
}

/// While it lives, a library's convolutions have the bits of each lane by itself, as in a run with `--deterministic`. It holds
/// for the process: where there is such a library, tests run one after the other.
pub(crate) struct SameBits;

impl SameBits {
    pub(crate) fn new() -> Self {
        super::precision::set_deterministic(true);
        Self
    }
}

impl Drop for SameBits {
    fn drop(&mut self) {
        super::precision::set_deterministic(false);
    }
}
