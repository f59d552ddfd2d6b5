//! Losses and norms on their way from the device: they are read while later work runs, so that the device never waits for
//! the host.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use burn::tensor::Bytes;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::ServerError;

use super::DeviceError;

type Read = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, ServerError>> + Send>>;

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Of a micro-batch.
    Losses,
    /// Of a step's gradient.
    Norm,
}

/// Numbers that come, in order.
pub(super) struct Numbers {
    client: &'static Client,
    reads: VecDeque<(What, Read)>,
}

impl Numbers {
    /// From a device. Its client is kept for good: reads that are under way borrow it.
    pub(super) fn new(device: &CubeDevice) -> Self {
        Self {
            client: Box::leak(Box::new(device.client())),
            reads: VecDeque::new(),
        }
    }

    /// Starts to read a float32 tensor.
    pub(super) fn read(&mut self, what: What, t: &CubeTensor) {
        let read = self.client.read_async(vec![t.handle.clone()]);
        self.reads.push_back((what, Box::pin(read)));
    }

    /// Waits for the oldest, where more than `behind` are under way.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn next(&mut self, behind: usize) -> Result<Option<(What, Vec<f32>)>, DeviceError> {
        if self.reads.len() <= behind {
            return Ok(None);
        }
        let Some((what, read)) = self.reads.pop_front() else {
            return Ok(None);
        };
        let bytes = cubecl::future::block_on(read)?;
        let values = bytes.first().map(|b| bytemuck::pod_collect_to_vec(b));
        Ok(Some((what, values.unwrap_or_default())))
    }

    /// Forgets what is under way.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
    }
}
