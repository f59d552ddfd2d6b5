//! A small drawn data set with labels in COCO JSON.

use std::fs;
use std::path::Path;

/// Twelve drawn images with one or two coloured squares each, as COCO JSON with gaps in its ids.
pub fn data_set(folder: &Path) {
    fs::create_dir_all(folder.join("images")).unwrap();
    for (split, from, to) in [("train", 0u64, 8u64), ("val", 8, 12)] {
        let (mut images, mut annotations) = (vec![], vec![]);
        for i in from..to {
            let (w, h) = (96u32, 72u32);
            let mut image = image::RgbImage::from_fn(w, h, |x, y| {
                image::Rgb([(x * 2) as u8, (y * 3) as u8, (i * 20) as u8])
            });
            for k in 0..=(i % 2) {
                let (x, y, side) = (
                    8 + (i * 7 + k * 30) % 50,
                    6 + (i * 11) % 30,
                    16 + (i + k) % 12,
                );
                for dy in 0..side {
                    for dx in 0..side {
                        let colour = if k == 0 { [250, 30, 30] } else { [30, 250, 60] };
                        image.put_pixel((x + dx) as u32, (y + dy) as u32, image::Rgb(colour));
                    }
                }
                annotations.push(serde_json::json!({
                    "id": 100 + i * 2 + k, "image_id": 1000 + i * 3, "category_id": if k == 0 { 7 } else { 42 },
                    "bbox": [x, y, side, side], "area": side * side, "iscrowd": 0,
                }));
            }
            let name = format!("{i:03}.png");
            image.save(folder.join("images").join(&name)).unwrap();
            images.push(
                serde_json::json!({"id": 1000 + i * 3, "file_name": name, "width": w, "height": h}),
            );
        }
        let json = serde_json::json!({
            "images": images, "annotations": annotations,
            "categories": [{"id": 7, "name": "red"}, {"id": 42, "name": "green"}],
        });
        fs::write(folder.join(format!("{split}.json")), json.to_string()).unwrap();
    }
    fs::write(
        folder.join("data.yaml"),
        "path: .\ntrain: train.json\nval: val.json\n",
    )
    .unwrap();
}
