//! `yolo-train info`.

use super::outcome::{Outcome, print};
use crate::config::Settings;
use crate::config::model::ModelSpec;
use crate::model::Network;
use crate::report::tables::table;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let network = Network::new(ModelSpec::resolve(&settings.model)?, settings.nc);
    let layers = network.table(settings.imgsz);
    let from = |f: &[usize]| {
        f.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let dash = |n: usize| if n == 0 { "-".into() } else { n.to_string() };
    let rows: Vec<Vec<String>> = layers
        .iter()
        .map(|l| {
            vec![
                format!("{} {}", l.index, l.block),
                from(&l.from),
                l.repeats.to_string(),
                dash(l.out),
                l.parameters.to_string(),
                format!("{:.3}", l.flops as f64 / 1e9),
            ]
        })
        .collect();
    let mut text = table(
        &[
            "layer",
            "from",
            "repeats",
            "channels",
            "parameters",
            "GFLOPs",
        ],
        &rows,
    );
    let flops: u64 = layers.iter().map(|l| l.flops).sum();
    text += &format!(
        "{}: {} layers, {} parameters, {:.1} GFLOPs at {size}x{size} with {} classes\n",
        network.spec.name,
        layers.len(),
        network.parameters(),
        flops as f64 / 1e9,
        network.classes,
        size = settings.imgsz,
    );
    print(&text)?;
    Ok(Outcome::Finished)
}
