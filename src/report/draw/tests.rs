use super::*;
use proptest::prelude::*;

fn mark(xyxy: [f32; 4], class: usize, name: &str, score: Option<f32>) -> Mark {
    Mark {
        xyxy,
        class,
        name: name.into(),
        score,
    }
}

fn at(c: &Canvas, x: usize, y: usize) -> Colour {
    let i = (y * c.width + x) * 3;
    [c.pixels[i], c.pixels[i + 1], c.pixels[i + 2]]
}

const GREY: Colour = [114; 3];

#[test]
fn a_box_has_lines_of_its_width_along_its_edges_and_nothing_inside() {
    let mut c = Canvas::new(40, 30, GREY);
    let pen = Pen { line: 2, font: 10 };
    c.mark(
        &[mark([10.0, 5.0, 30.0, 25.0], 3, "", None)],
        pen,
        &Lettering::new(),
    );
    let ink = class_colour(3);
    for y in 0..30 {
        for x in 0..40 {
            let within = |x0: usize, x1: usize, y0: usize, y1: usize| {
                (x0..x1).contains(&x) && (y0..y1).contains(&y)
            };
            let lined = within(9, 31, 4, 26) && !within(11, 29, 6, 24);
            assert_eq!(at(&c, x, y), if lined { ink } else { GREY }, "{x} {y}");
        }
    }
}

#[test]
fn the_label_stands_above_the_box_and_moves_in_where_the_image_ends() {
    let lettering = Lettering::new();
    let pen = Pen { line: 1, font: 10 };
    let ground = class_colour(0);
    // rows and columns that have the label's ground and letters
    let changed = |xyxy| {
        let mut plain = Canvas::new(120, 80, GREY);
        plain.mark(&[mark(xyxy, 0, "", None)], pen, &lettering);
        let mut c = Canvas::new(120, 80, GREY);
        c.mark(&[mark(xyxy, 0, "cell", Some(0.5))], pen, &lettering);
        let mut area = (usize::MAX, usize::MAX, 0, 0);
        for y in 0..80 {
            for x in 0..120 {
                if at(&c, x, y) != at(&plain, x, y) {
                    area = (area.0.min(x), area.1.min(y), area.2.max(x), area.3.max(y));
                }
            }
        }
        assert!((0..120).any(|x| (0..80).any(|y| at(&c, x, y) == ink_on(ground))));
        area
    };
    let (x0, _, _, y1) = changed([20.0, 40.0, 100.0, 70.0]);
    assert_eq!((x0, y1), (20, 39), "above, flush left");
    let (_, y0, ..) = changed([20.0, 3.0, 100.0, 70.0]);
    assert!(y0 >= 3, "inside: {y0}");
    let (.., x1, _) = changed([110.0, 40.0, 119.0, 70.0]);
    assert_eq!(x1, 119, "moved to the left as far as needed");
}

#[test]
fn the_first_mark_lies_on_top() {
    let mut c = Canvas::new(50, 50, GREY);
    let same = [10.0, 10.0, 40.0, 40.0];
    let pen = Pen { line: 3, font: 10 };
    c.mark(
        &[mark(same, 1, "", None), mark(same, 2, "", None)],
        pen,
        &Lettering::new(),
    );
    assert_eq!(at(&c, 10, 20), class_colour(1));
}

#[test]
fn a_score_has_two_digits_and_equal_texts_are_drawn_once() {
    let l = Lettering::new();
    let a = l.score(0.5, 12);
    assert_eq!(a.len(), " 0.50".len());
    assert!(std::sync::Arc::ptr_eq(&a[1], &a[4]));
    let name = l.name("Thrombozyten", 12, 1000);
    assert!(std::sync::Arc::ptr_eq(
        &name,
        &l.name("Thrombozyten", 12, 1000)
    ));
    assert!(
        l.name("Thrombozyten", 12, 40).advance <= 40,
        "cut to its room"
    );
}

#[test]
fn what_is_drawn_grows_with_the_image() {
    assert_eq!(Pen::for_image(640, 640), Pen { line: 2, font: 13 });
    assert_eq!(Pen::for_image(64, 64), Pen { line: 1, font: 10 });
    let large = Pen::for_image(6000, 4000);
    assert!(large.line > 10 && large.font > 60, "{large:?}");
    assert_eq!(Pen::with_line(3).line, 3);
}

#[test]
fn a_cut_is_the_box_rounded_outwards() {
    let mut c = Canvas::new(8, 6, GREY);
    c.pixels[(2 * 8 + 3) * 3] = 1;
    let cut = c.cut([2.6, 1.1, 4.2, 3.0]).unwrap();
    assert_eq!((cut.width, cut.height), (3, 2));
    assert_eq!(at(&cut, 1, 1), [1, 114, 114]);
    assert_eq!(c.cut([-9.0, -9.0, 99.0, 99.0]), Some(c.clone()));
    for outside in [[8.0, 0.0, 9.0, 2.0], [3.0, 3.0, 3.0, 3.0], [f32::NAN; 4]] {
        assert_eq!(c.cut(outside), None);
    }
}

#[test]
fn the_file_is_a_jpeg_of_the_same_size() {
    let file = Canvas::new(33, 17, [200, 30, 30]).to_jpeg().unwrap();
    let read = image::load_from_memory(&file).unwrap().to_rgb8();
    assert_eq!(read.dimensions(), (33, 17));
    assert!(read.get_pixel(20, 9)[0] > 190 && read.get_pixel(20, 9)[1] < 45);
}

proptest! {
    #[test]
    fn any_box_on_any_image_draws_within_it(
        (width, height) in (1usize..80, 1usize..80),
        marks in proptest::collection::vec(
            (proptest::array::uniform4(prop_oneof![-100.0f32..200.0, Just(f32::NAN), Just(f32::INFINITY), Just(-1e30), Just(1e30)]),
             0usize..90, ".{0,12}", proptest::option::of(0.0f32..1.0)), 0..6),
        line in 1usize..60,
    ) {
        let marks: Vec<Mark> = marks.into_iter().map(|(b, c, n, s)| mark(b, c, &n, s)).collect();
        let mut canvas = Canvas::new(width, height, GREY);
        let lettering = Lettering::new();
        canvas.mark(&marks, Pen::with_line(line), &lettering);
        prop_assert_eq!(canvas.pixels.len(), width * height * 3);
        let shown = marks.iter().any(|m| m.xyxy.iter().all(|v| v.is_finite()));
        let changed = canvas.pixels.iter().any(|&p| p != 114);
        prop_assert_eq!(shown, changed);
        canvas.title("a name", (0, 0), width, 12, &lettering);
        canvas.paste(&Canvas::new(9, 9, GREY), (width - 1, height / 2));
    }
}
