use std::sync::Arc;
use yolo_train::config::dataset::{DatasetYaml, SplitName};
use yolo_train::data::loader::{Loader, LoaderConfig};
use yolo_train::data::{IndexOptions, load_split};
fn main() {
    let yaml = DatasetYaml::load(&std::env::args().nth(1).unwrap()).unwrap();
    let (split, _) = load_split(&yaml, SplitName::Train, &IndexOptions::default()).unwrap();
    let val = std::env::args().nth(2).is_some();
    let l = Loader::new(
        Arc::new(split),
        LoaderConfig {
            imgsz: 320,
            batch: 8,
            ..Default::default()
        },
    )
    .unwrap();
    let b = if val {
        l.val_batches(8).next()
    } else {
        l.train_epoch(0, 0).next()
    }
    .unwrap()
    .unwrap();
    let mut img = image::RgbImage::new((b.width * 4) as u32, (b.height * 2) as u32);
    for i in 0..8 {
        let (ox, oy) = (i % 4 * b.width, i / 4 * b.height);
        for y in 0..b.height {
            for x in 0..b.width {
                let p = ((i * b.height + y) * b.width + x) * 3;
                img.put_pixel(
                    (ox + x) as u32,
                    (oy + y) as u32,
                    image::Rgb([b.pixels[p], b.pixels[p + 1], b.pixels[p + 2]]),
                );
            }
        }
        for q in b.boxes.iter().filter(|q| q.image == i) {
            let [x1, y1, x2, y2] = q.xyxy.map(|v| (v as usize).min(b.width - 1));
            let c = image::Rgb([[255, 0, 0], [0, 255, 0], [0, 0, 255]][q.class % 3]);
            for x in x1..=x2 {
                img.put_pixel((ox + x) as u32, (oy + y1) as u32, c);
                img.put_pixel((ox + x) as u32, (oy + y2) as u32, c);
            }
            for y in y1..=y2 {
                img.put_pixel((ox + x1) as u32, (oy + y) as u32, c);
                img.put_pixel((ox + x2) as u32, (oy + y) as u32, c);
            }
        }
    }
    img.save("/tmp/run/look.png").unwrap();
}
