use super::*;
use rayon::prelude::*;

#[test]
fn a_scene_is_a_pure_function_of_its_number() {
    let scene = Scene::draw(0, 7);
    assert_eq!(scene, Scene::draw(0, 7));
    assert_ne!(scene.pixels, Scene::draw(0, 8).pixels);
    assert_ne!(scene.pixels, Scene::draw(1, 7).pixels);
}

#[test]
fn the_set_has_its_range_of_sizes_classes_and_empty_images() {
    let scenes: Vec<Scene> = (0..200)
        .into_par_iter()
        .map(|n| Scene::draw(0, n))
        .collect();
    let empty = scenes.iter().filter(|s| s.objects.is_empty()).count();
    assert!((4..=36).contains(&empty), "{empty} empty");
    let objects: Vec<&Object> = scenes.iter().flat_map(|s| &s.objects).collect();
    let mean = objects.len() as f64 / 200.0;
    assert!((5.0..12.0).contains(&mean), "{mean} objects per image");
    for class in 0..CLASSES.len() {
        let n = objects.iter().filter(|o| o.class == class).count();
        assert!(n * 16 > objects.len(), "{n} of class {class}");
    }
    for scene in &scenes {
        assert_eq!(scene.pixels.len(), scene.width * scene.height * 3);
        for object in &scene.objects {
            let [x1, y1, x2, y2] = object.bounds;
            assert!(x1 + 6 <= x2 && x2 <= scene.width && y1 + 6 <= y2 && y2 <= scene.height);
            assert!(object.area <= (x2 - x1) * (y2 - y1));
        }
    }
    let side = |o: &&Object| (o.bounds[2] - o.bounds[0]).max(o.bounds[3] - o.bounds[1]);
    assert!(objects.iter().map(side).min() <= Some(10));
    assert!(objects.iter().map(side).max() >= Some(220));
}

#[test]
fn a_box_is_tight_around_the_pixels_of_its_figure() {
    // An isolated disc: its bounds are its centre plus and minus its radius, to half a pixel.
    let pose = Pose {
        centre: [50.3, 40.7],
        radius: 20.0,
        stretch: 1.0,
        angle: 1.0,
    };
    let mask = Mask::render(&Form::Disc, &pose, 0.0);
    let (bounds, area) = mask.bounds(200, 100).expect("seen");
    for (got, want) in bounds.iter().zip([30.3, 20.7, 70.3, 60.7]) {
        assert!((*got as f64 - want).abs() <= 0.8, "{bounds:?}");
    }
    assert!((area as f64 - PI * 400.0).abs() < 15.0);
    // Cut by the canvas.
    let (bounds, _) = mask.bounds(60, 50).expect("seen");
    assert_eq!((bounds[2], bounds[3]), (60, 50));
}
