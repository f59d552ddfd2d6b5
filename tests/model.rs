//! Sizes and names of the networks.

use burn::tensor::{DType, Device, Distribution, Tensor};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use yolo_train::config::model::ModelSpec;
use yolo_train::model::{Heads, Network, Tensors, init};
use yolo_train::ops::ranks::Ranks;

fn network(name: &str, classes: usize) -> Network {
    Network::new(ModelSpec::resolve(name).unwrap(), classes)
}

#[test]
fn all_fifteen_parameter_counts_are_the_published_ones() {
    for (name, parameters) in [
        ("yolov8n", 3_157_200),
        ("yolov8s", 11_166_560),
        ("yolov8m", 25_902_640),
        ("yolov8l", 43_691_520),
        ("yolov8x", 68_229_648),
        ("yolo11n", 2_624_080),
        ("yolo11s", 9_458_752),
        ("yolo11m", 20_114_688),
        ("yolo11l", 25_372_160),
        ("yolo11x", 56_966_176),
        ("yolo26n", 2_572_280),
        ("yolo26s", 10_009_784),
        ("yolo26m", 21_896_248),
        ("yolo26l", 26_299_704),
        ("yolo26x", 58_993_368),
    ] {
        assert_eq!(network(name, 80).parameters(), parameters, "{name}");
    }
}

#[test]
fn the_layer_table_adds_up_to_the_published_operations() {
    // at 640 px, training graph; published with one decimal and including a few per cent of element-wise work
    for (name, gflops) in [
        ("yolov8n", 8.9),
        ("yolov8s", 28.8),
        ("yolov8m", 79.3),
        ("yolov8l", 165.7),
        ("yolov8x", 258.5),
        ("yolo11n", 6.6),
        ("yolo11s", 21.7),
        ("yolo11m", 68.5),
        ("yolo26n", 6.1),
        ("yolo26s", 22.8),
        ("yolo26m", 75.4),
        ("yolo26x", 209.5),
    ] {
        let n = network(name, 80);
        let rows = n.table(640);
        let ours = rows.iter().map(|r| r.flops).sum::<u64>() as f64 / 1e9;
        println!("{name} {ours:.2} {gflops}");
        assert!(
            (ours / gflops - 1.0).abs() < 0.05,
            "{name}: {ours:.2} against {gflops}"
        );
        assert_eq!(
            rows.iter().map(|r| r.parameters).sum::<usize>(),
            n.parameters()
        );
    }
}

#[test]
fn names_are_unique_and_those_of_checkpoints() {
    let n = network("yolo26n", 80);
    let names: HashSet<_> = n.layout.params.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), n.layout.params.len());
    for name in [
        "model.0.conv.weight",
        "model.2.m.0.cv1.bn.weight",
        "model.6.m.0.m.1.cv2.conv.weight",
        "model.10.m.0.attn.pe.conv.weight",
        "model.22.m.0.1.ffn.1.bn.bias",
        "model.23.cv2.0.2.bias",
        "model.23.one2one_cv3.2.1.1.conv.weight",
    ] {
        assert!(names.contains(name), "{name}");
    }
    // parameters, and mean, variance, counter of each batch norm
    assert_eq!(n.layout.params.len() + 3 * n.layout.norms.len(), 708);
    assert!(
        network("yolov8n", 3)
            .layout
            .params
            .iter()
            .any(|p| p.name == "model.22.dfl.conv.weight")
    );
}

#[test]
fn both_heads_start_equal_and_seeds_differ() {
    let n = network("yolo26n", 3);
    let state = init::init(&n, 0);
    let find = |name: &str| n.layout.params.iter().find(|p| p.name == name).unwrap();
    for p in n
        .layout
        .params
        .iter()
        .filter(|p| p.name.contains("one2one_"))
    {
        let twin = find(&p.name.replace("one2one_", ""));
        assert_eq!(
            state.params[p.range()],
            state.params[twin.range()],
            "{}",
            p.name
        );
    }
    assert_ne!(state.params, init::init(&n, 1).params);
    assert_eq!(state.params, init::init(&n, 0).params);
    let w = find("model.0.conv.weight");
    let bound = 1.0 / 27.0f32.sqrt();
    assert!(state.params[w.range()].iter().all(|v| v.abs() <= bound));
    let spread = state.params[w.range()]
        .iter()
        .fold(0.0f32, |a, v| a.max(v.abs()));
    assert!(spread > 0.9 * bound);
}

/// One rank; it keeps what its passes exchange.
#[derive(Debug, Default)]
struct Exchanges(Mutex<Vec<(String, &'static str)>>);

impl Ranks for Exchanges {
    fn size(&self) -> usize {
        1
    }
    fn gather(&self, of: &str, what: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>> {
        self.0.lock().unwrap().push((of.into(), what));
        Some(vec![own])
    }
}

#[test]
fn norms_of_branches_share_an_exchange_over_ranks() {
    // of yolo26n 36 norms are those of two heads, 3 levels and 2 branches each, at 4 depths, and of each C3k block's 7 two read
    // the same
    for (name, norms, exchanges) in [
        ("yolo26n", 114, 77),
        ("yolov8n", 57, 47),
        ("yolo11n", 81, 64),
    ] {
        let n = network(name, 3);
        let state = init::init(&n, 0);
        let device = Device::flex().autodiff();
        let seen = Arc::new(Exchanges::default());
        let ranks: Arc<dyn Ranks> = seen.clone();
        let tensors = Tensors::new(&n.layout, &state.params, &device, DType::F32)
            .with_ranks(&n.layout, &ranks);
        let x = Tensor::<4>::random(
            [2, 64, 64, 3],
            Distribution::Uniform(0.0, 1.0),
            (&device, DType::F32),
        );
        let both = Heads {
            many: true,
            one: n.spec.one_to_one,
        };
        let out = n.forward(&tensors, x, both);
        assert_eq!(out.collected.stats.len(), n.layout.norms.len());
        let heads = [out.one_to_many, out.one_to_one];
        let sums = heads
            .into_iter()
            .flatten()
            .map(|h| h.boxes.sum() + h.scores.sum());
        sums.reduce(|a, b| a + b).unwrap().backward();
        let seen = seen.0.lock().unwrap();
        let of = |what| {
            seen.iter()
                .filter(|c| c.1 == what)
                .map(|c| &c.0)
                .collect::<Vec<_>>()
        };
        let (forward, backward) = (of("statistics"), of("gradient sums"));
        assert_eq!(
            forward.iter().collect::<HashSet<_>>(),
            backward.iter().collect()
        );
        assert_eq!(
            (n.layout.norms.len(), forward.len(), backward.len()),
            (norms, exchanges, exchanges),
            "{name}"
        );
    }
}
