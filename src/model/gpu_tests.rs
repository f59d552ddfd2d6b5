//! A whole network on a GPU against the CPU.

use super::init::{self, uniform};
use super::{Heads, Network, Tensors};
use crate::config::model::ModelSpec;
use crate::ops::cpu::lanes::Lanes;
use crate::ops::gpu::testing::device;
use burn::tensor::{DType, Device, Tensor, TensorData};

fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    let data = t.inner().into_data().convert::<f32>();
    data.try_to_vec().unwrap()
}

/// Raw outputs, gradients of all parameters and of the image, and running statistics.
struct Pass {
    outputs: Vec<Vec<f32>>,
    gradients: Vec<f32>,
    image: Vec<f32>,
    running: Vec<f32>,
}

fn pass(network: &Network, device: &Device, frozen: bool, dtype: DType) -> Pass {
    let layout = &network.layout;
    let state = init::init(network, 0);
    let on = device.clone().autodiff();
    let buffers: Tensor<1> = Tensor::from_data(state.buffers.as_slice(), (device, DType::F32));
    let mut tensors = Tensors::new(layout, &state.params, &on, dtype)
        .with_lanes(Lanes::whole(4))
        .with_device_stats(layout, &buffers, 0.03);
    if frozen {
        tensors = tensors.with_running_stats(layout, &state.buffers);
    }
    let shape = [2, 64, 64, 3];
    let draw = |seed: u64, n: usize| -> Vec<f32> {
        (0..n).map(|i| uniform(seed, i as u64) as f32).collect()
    };
    let pixels = TensorData::new(draw(3, shape.iter().product()), shape);
    let image = Tensor::<4>::from_data(pixels, (&on, dtype)).require_grad();
    let heads = Heads {
        many: true,
        one: true,
    };
    let out = network.forward(&tensors, image.clone(), heads);
    let mut outputs = vec![];
    let mut total: Option<Tensor<1>> = None;
    for head in [&out.one_to_many, &out.one_to_one].into_iter().flatten() {
        for (i, t) in [&head.boxes, &head.scores].into_iter().enumerate() {
            outputs.push(host(t.clone()));
            let n = t.dims().iter().product();
            let weights = TensorData::new(draw(7 + i as u64, n), t.dims());
            let weights = TensorData::convert_dtype(weights, dtype);
            let term = (t.clone() * Tensor::from_data(weights, (&on, dtype))).sum();
            total = Some(match total {
                Some(all) => all + term,
                None => term,
            });
        }
    }
    let mut grads = total.unwrap().backward();
    let mut gradients = vec![0.0; layout.param_len];
    tensors.drain_gradients(layout, &mut grads, |id, values| {
        gradients[layout.params[id].range()].copy_from_slice(values);
    });
    let mut running = state.buffers.clone();
    if out.collected.stats.is_empty() {
        running = host(buffers);
    } else {
        out.collected.update_running(layout, &mut running, 0.03);
    }
    Pass {
        outputs,
        gradients,
        image: host(image.grad(&grads).unwrap()),
        running,
    }
}

/// Norm of the difference, of the wanted values' norm.
fn difference(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut got.iter().zip(want).map(|(a, b)| f64::from(a - b)));
    d / norm(&mut want.iter().map(|&v| f64::from(v))).max(1e-12)
}

#[test]
fn a_network_and_its_gradients_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (model, frozen) in [("yolo26n", false), ("yolo26n", true), ("yolov8n", false)] {
        let network = Network::new(ModelSpec::resolve(model).unwrap(), 3);
        let want = pass(&network, &Device::flex(), frozen, DType::F32);
        let got = pass(&network, &device, frozen, DType::F32);
        for (i, (a, b)) in got.outputs.iter().zip(&want.outputs).enumerate() {
            let d = difference(a, b);
            assert!(d < 1e-4, "{model}: output {i} differs by {d:.1e}");
        }
        let d = difference(&got.running, &want.running);
        assert!(d < 1e-5, "{model}: running statistics differ by {d:.1e}");
        let d = difference(&got.image, &want.image);
        assert!(d < 1e-3, "{model}: the image's gradient differs by {d:.1e}");
        let whole = want
            .gradients
            .iter()
            .map(|&g| f64::from(g).powi(2))
            .sum::<f64>();
        for p in network.layout.params.iter().filter(|p| p.trained()) {
            let (a, b) = (&got.gradients[p.range()], &want.gradients[p.range()]);
            let own = b.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
            // of what is next to nothing, nothing but noise is left
            if own > 1e-10 * whole {
                let d = difference(a, b);
                assert!(
                    d < 2e-3,
                    "{model}: gradient of {} differs by {d:.1e}",
                    p.name
                );
            }
        }
    }
}

#[test]
fn a_network_in_half_precision_is_near_float32() {
    let Some(device) = device() else { return };
    if !device.supports_dtype(DType::F16) {
        eprintln!("skipped: the adapter has no float16");
        return;
    }
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3);
    // given statistics: those of eight elements, as the last maps have here, would amplify what float16 rounds off
    let want = pass(&network, &device, true, DType::F32);
    let got = pass(&network, &device, true, DType::F16);
    for (i, (a, b)) in got.outputs.iter().zip(&want.outputs).enumerate() {
        let d = difference(a, b);
        assert!(d < 1e-2, "output {i} differs by {d:.1e}");
    }
    // not the image's: so deep and without a scaled loss it lies below float16's smallest number
    let d = difference(&got.gradients, &want.gradients);
    assert!(d < 5e-2, "the gradient differs by {d:.1e}");
}
