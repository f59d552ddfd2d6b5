//! labels.jpg: what the labels of a split are.

use super::Picture;
use super::axes::{BOTTOM, HEAD, LEFT, Panel, RIGHT, SMALL, TOP, Titles};
use super::colour::{BLUE, LINES, ORANGE};
use super::heat::Grid;
use super::svg::{Anchor, Area, Font, Stroke, Svg};
use super::ticks::{Scale, grouped, short_count};
use crate::report::raster::{fitted, text_width};
use std::collections::BTreeMap;

/// Boxes that are drawn over one another, at most.
const SAMPLE: usize = 1000;
const BINS: usize = 40;

/// What is counted over the images of a split.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelStats {
    names: Vec<String>,
    of_class: Vec<u64>,
    centres: Grid,
    sizes: Grid,
    /// Images by their number of boxes.
    images: BTreeMap<usize, u64>,
    /// Every `stride`-th box: class, width and height.
    sample: Vec<(usize, [f64; 2])>,
    stride: u64,
    boxes: u64,
}

impl LabelStats {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self {
            names: names.to_vec(),
            of_class: vec![0; names.len()],
            centres: Grid::new(BINS),
            sizes: Grid::new(BINS),
            images: BTreeMap::new(),
            sample: Vec::new(),
            stride: 1,
            boxes: 0,
        }
    }

    /// An image with its boxes: class, and corners `[x1, y1, x2, y2]` as parts of the image's width and height. A class
    /// without a name is not counted.
    pub fn add_image(&mut self, boxes: impl IntoIterator<Item = (usize, [f64; 4])>) {
        let mut n = 0;
        for (class, [x1, y1, x2, y2]) in boxes {
            let Some(of_class) = self.of_class.get_mut(class) else {
                continue;
            };
            *of_class += 1;
            n += 1;
            self.centres.add((x1 + x2) / 2.0, (y1 + y2) / 2.0);
            self.sizes.add(x2 - x1, y2 - y1);
            if self.boxes.is_multiple_of(self.stride) {
                self.sample.push((class, [x2 - x1, y2 - y1]));
            }
            self.boxes += 1;
            if self.sample.len() > SAMPLE {
                let mut keep = false;
                self.sample.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.stride *= 2;
            }
        }
        *self.images.entry(n).or_default() += 1;
    }
}

const WIDTH: f64 = 1500.0;
const HEAD_HEIGHT: f64 = 46.0;
const LOWER: f64 = 510.0;

/// Draws what was counted; `split` names it in the head line.
#[must_use]
pub fn labels(stats: &LabelStats, split: &str) -> Picture {
    let upper = 400.0 + name_room(stats);
    let height = HEAD_HEIGHT + upper + LOWER + 4.0;
    let mut svg = Svg::new(WIDTH as u32, height as u32);
    let images: u64 = stats.images.values().sum();
    let classes = stats.names.len() as u64;
    let plural = |n: u64, one: &str, many: &str| {
        format!("{} {}", grouped(n), if n == 1 { one } else { many })
    };
    let empty = stats.of_class.iter().filter(|n| **n == 0).count();
    let without = match empty {
        0 => String::new(),
        n => format!(" ({} without objects)", grouped(n as u64)),
    };
    let head = format!(
        "{split}: {} of {}{without} in {}",
        plural(stats.boxes, "object", "objects"),
        plural(classes, "class", "classes"),
        plural(images, "image", "images"),
    );
    let head = fitted(&head, HEAD as f32, WIDTH as f32 - 40.0);
    svg.text((20.0, 32.0), &Font::new(HEAD, Anchor::Start), &head);

    let left = WIDTH * 2.0 / 3.0;
    classes_panel(&mut svg, Area::new(0.0, HEAD_HEIGHT, left, upper), stats);
    let beside = Area::new(left, HEAD_HEIGHT, WIDTH - left, upper);
    per_image_panel(&mut svg, beside, stats);
    let third = WIDTH / 3.0;
    let y = HEAD_HEIGHT + upper;
    let cell = |i: f64| Area::new(i * third, y, third, LOWER);
    grid_panel(
        &mut svg,
        cell(0.0),
        &stats.centres,
        true,
        [
            "centres of the boxes",
            "x / image width",
            "y / image height",
        ],
    );
    grid_panel(
        &mut svg,
        cell(1.0),
        &stats.sizes,
        false,
        [
            "sizes of the boxes",
            "width / image width",
            "height / image height",
        ],
    );
    boxes_panel(&mut svg, cell(2.0), stats);
    svg.finish()
}

const INNER: f64 = WIDTH * 2.0 / 3.0 - LEFT - RIGHT;

/// How classes are named along their axis.
#[derive(Clone, Copy, PartialEq)]
enum Naming {
    /// Beneath each bar.
    Level,
    /// Turned by a quarter, in this font size.
    Upright(f64),
    /// Too many for names: ranks.
    Ranks,
}

fn naming(stats: &LabelStats) -> Naming {
    let pitch = INNER / stats.names.len().max(1) as f64;
    let widest = |n: &String| text_width(n, SMALL as f32) as f64;
    let fits = stats.names.iter().all(|n| widest(n) <= pitch - 8.0);
    match pitch {
        _ if fits => Naming::Level,
        p if p >= 9.5 => Naming::Upright((p - 0.5).min(SMALL)),
        _ => Naming::Ranks,
    }
}

/// Room for upright names beneath the panel.
fn name_room(stats: &LabelStats) -> f64 {
    match naming(stats) {
        Naming::Upright(size) => {
            let width = |n: &String| f64::from(text_width(n, size as f32));
            let widest = stats.names.iter().map(width).fold(0.0, f64::max);
            (widest - 20.0).clamp(0.0, 130.0)
        }
        _ => 0.0,
    }
}

fn classes_panel(svg: &mut Svg, outer: Area, stats: &LabelStats) {
    let naming = naming(stats);
    let n = stats.names.len();
    let mut counts: Vec<(usize, u64)> = stats.of_class.iter().copied().enumerate().collect();
    if naming == Naming::Ranks {
        counts.sort_by_key(|&(class, count)| (std::cmp::Reverse(count), class));
    }
    let greatest = counts.iter().map(|c| c.1).max().unwrap_or(0);
    let least = counts.iter().map(|c| c.1).filter(|c| *c > 0).min();
    let log = least.is_some_and(|l| greatest > 100 * l);
    let y = if log {
        Scale::log_counts(greatest)
    } else {
        Scale::counts(greatest, 6)
    };
    // Ranks keep off the axes, which would cover a bar of one pixel.
    let room = if naming == Naming::Ranks {
        0.005 * n as f64
    } else {
        0.0
    };
    let mut x = Scale::whole(-room, n as f64 + room, 10);
    if naming != Naming::Ranks {
        x.ticks.clear();
    }
    let mut panel = Panel::within(outer, x, y);
    panel.area.h = outer.h - TOP - BOTTOM - name_room(stats);
    let title = match naming {
        Naming::Ranks => "objects of each class, most frequent first",
        _ => "objects of each class",
    };
    panel.background(
        svg,
        Titles {
            title,
            x: if naming == Naming::Ranks {
                "classes"
            } else {
                ""
            },
            y: if log {
                "objects (logarithmic)"
            } else {
                "objects"
            },
        },
    );
    let area = panel.area;
    let pitch = area.w / (n.max(1) as f64 + 2.0 * room);
    let gap = if pitch >= 3.0 { pitch * 0.2 } else { 0.0 };
    // All numbers in one form, or none.
    let fits = |form: &fn(u64) -> String| {
        let width = |n: u64| f64::from(text_width(&form(n), SMALL as f32));
        counts.iter().all(|c| width(c.1) <= pitch - 2.0)
    };
    let forms: [fn(u64) -> String; 2] = [grouped, short_count];
    let number = forms.into_iter().find(fits);
    for (i, &(class, count)) in counts.iter().enumerate() {
        let top = panel.place(0.0, count as f64).1;
        let (mut left, mut right) = (
            area.x + (i as f64 + room) * pitch + gap / 2.0,
            area.x + (i as f64 + 1.0 + room) * pitch - gap / 2.0,
        );
        if gap == 0.0 {
            // Bars without gaps meet between pixels, so that none is pale.
            (left, right) = (left.round(), right.round().max(left.round() + 1.0));
        }
        if count > 0 {
            let height = (area.bottom() - top).max(1.0);
            let bar = Area::new(left, area.bottom() - height, right - left, height);
            svg.rect(bar, BLUE);
        }
        let middle = (left + right) / 2.0;
        if let Some(number) = number {
            let font = Font::new(SMALL, Anchor::Middle);
            svg.text((middle, top - 4.0), &font, &number(count));
        }
        let name = &stats.names[class];
        match naming {
            Naming::Level => {
                let at = (middle, area.bottom() + 19.0);
                svg.text(at, &Font::new(SMALL, Anchor::Middle), name);
            }
            Naming::Upright(size) => {
                let name = fitted(name, size as f32, 145.0);
                let at = (middle + size * 0.36, area.bottom() + 7.0);
                svg.text(at, &Font::new(size, Anchor::End).turned(-90.0), &name);
            }
            Naming::Ranks => {}
        }
    }
    panel.axes(svg);
}

fn per_image_panel(svg: &mut Svg, outer: Area, stats: &LabelStats) {
    let most = stats.images.keys().next_back().copied().unwrap_or(0);
    let width = [1, 2, 5, 10, 20, 50, 100, 200, 500]
        .into_iter()
        .find(|w| most / w < 40)
        .unwrap_or(1000);
    let mut bars = vec![0; most / width + 1];
    for (&n, &images) in &stats.images {
        bars[n / width] += images;
    }
    let greatest = bars.iter().copied().max().unwrap_or(0);
    // A bar stands on the numbers that it counts: from half below the first to half over the last.
    let end = (bars.len() * width) as f64 - 0.5;
    let x = Scale::whole(-0.5, end, 8);
    let mut panel = Panel::within(outer, x, Scale::counts(greatest, 6));
    panel.area.h = outer.h - TOP - BOTTOM - name_room(stats);
    let across = match width {
        1 => "objects in an image".to_string(),
        w => format!("objects in an image (bars of {w})"),
    };
    panel.background(
        svg,
        Titles {
            title: "images by their number of objects",
            x: &across,
            y: "images",
        },
    );
    let pitch = panel.area.w / bars.len() as f64;
    let gap = pitch * 0.15;
    for (i, &count) in bars.iter().enumerate().filter(|(_, c)| **c > 0) {
        let top = panel.place(0.0, count as f64).1;
        let left = panel.area.x + i as f64 * pitch + gap / 2.0;
        let height = (panel.area.bottom() - top).max(1.0);
        let bar = Area::new(left, panel.area.bottom() - height, pitch - gap, height);
        svg.rect(bar, ORANGE);
    }
    panel.axes(svg);
}

fn grid_panel(svg: &mut Svg, outer: Area, grid: &Grid, down: bool, [title, x, y]: [&str; 3]) {
    let (from, to) = if down { (1.0, 0.0) } else { (0.0, 1.0) };
    let panel = Panel::within(
        outer,
        Scale::linear(0.0, 1.0, 5),
        Scale::linear(from, to, 5),
    );
    panel.background(svg, Titles { title, x, y });
    grid.draw(svg, panel.area, down);
    let key = format!("darkest: {} boxes", short_count(grid.greatest()));
    let at = (panel.area.right(), panel.area.y - 7.0);
    svg.text(at, &Font::new(SMALL, Anchor::End), &key);
    panel.axes(svg);
}

fn boxes_panel(svg: &mut Svg, outer: Area, stats: &LabelStats) {
    let unit = || Scale::linear(-0.5, 0.5, 5);
    let panel = Panel::within(outer, unit(), unit());
    let shown = stats.sample.len();
    let title = match shown as u64 == stats.boxes {
        true => "all boxes, moved to one centre".to_string(),
        false => format!("{shown} of the boxes, moved to one centre"),
    };
    panel.background(
        svg,
        Titles {
            title: &title,
            x: "x / image width",
            y: "y / image height",
        },
    );
    let opacity = (60.0 / shown.max(1) as f64).clamp(0.15, 0.8);
    for &(class, [w, h]) in &stats.sample {
        let (x1, y1) = panel.place(-w / 2.0, h / 2.0);
        let (x2, y2) = panel.place(w / 2.0, -h / 2.0);
        let stroke = Stroke {
            opacity,
            ..Stroke::solid(LINES[class % LINES.len()], 1.0)
        };
        svg.frame(Area::new(x1, y1, x2 - x1, y2 - y1), &stroke);
    }
    panel.axes(svg);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_drawn, nasty_names, texts};
    use super::*;

    fn filled(names: &[String], images: usize) -> LabelStats {
        let mut stats = LabelStats::new(names);
        for i in 0..images {
            let boxes = (0..i % 7).map(|k| {
                let (class, at) = ((i * k) % names.len(), (k as f64 + 0.5) / 8.0);
                (class, [at - 0.05, 0.3, at + 0.05, 0.3 + at / 2.0])
            });
            stats.add_image(boxes);
        }
        stats
    }

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("class {i}")).collect()
    }

    #[test]
    fn everything_is_counted_once() {
        let mut stats = LabelStats::new(&names(2));
        stats.add_image([
            (0, [0.0, 0.0, 0.5, 0.5]),
            (1, [0.5, 0.5, 1.0, 1.0]),
            (0, [0.0; 4]),
            (9, [0.0; 4]),
        ]);
        stats.add_image([]);
        assert_eq!(stats.of_class, [2, 1]);
        assert_eq!(
            (stats.boxes, stats.centres.total(), stats.sizes.total()),
            (3, 3, 3)
        );
        assert_eq!(stats.images, BTreeMap::from([(0, 1), (3, 1)]));
        let texts = texts(&labels(&stats, "train"));
        assert!(
            texts.contains(&"train: 3 objects of 2 classes in 2 images".into()),
            "{texts:?}"
        );
    }

    #[test]
    fn the_sample_stays_small_and_spreads_over_all_boxes() {
        let mut stats = LabelStats::new(&names(1));
        for i in 0..5000 {
            let w = f64::from(i) / 5000.0;
            stats.add_image([(0, [0.0, 0.0, w, w])]);
        }
        let n = stats.sample.len();
        assert!(n <= SAMPLE && n > SAMPLE / 2, "{n}");
        assert!(stats.sample[n - 1].1[0] > 0.99 && stats.sample[0].1[0] == 0.0);
    }

    #[test]
    fn one_to_a_thousand_classes_are_drawn_with_names_as_long_as_there_is_room() {
        for n in [1, 3, 20, 80, 1000] {
            let picture = labels(&filled(&names(n), 200), "train");
            assert_drawn(&picture, 0.02);
            let named = texts(&picture)
                .iter()
                .filter(|t| t.starts_with("class "))
                .count();
            assert_eq!(named, if n <= 80 { n } else { 0 }, "{n}");
        }
    }

    /// It was: the bar of the most frequent class, one pixel wide, lay under the axis.
    #[test]
    fn no_bar_of_many_classes_is_covered_by_the_axis() {
        let picture = labels(&filled(&names(1000), 200), "train");
        let bars = picture
            .svg
            .lines()
            .filter(|l| l.contains(&format!(r#"fill="{BLUE}""#)));
        let left = |bar: &str| {
            let x = bar.split('"').nth(1).unwrap();
            x.parse::<f64>().unwrap()
        };
        let leftmost = bars.map(left).fold(f64::INFINITY, f64::min);
        assert!((LEFT + 2.0..LEFT + 10.0).contains(&leftmost), "{leftmost}");
    }

    #[test]
    fn nasty_names_and_empty_sets_are_drawn() {
        assert_drawn(&labels(&filled(&nasty_names(), 90), "<&"), 0.02);
        assert_drawn(&labels(&LabelStats::new(&[]), "train"), 0.005);
        assert_drawn(&labels(&LabelStats::new(&names(2)), "train"), 0.005);
    }

    #[test]
    fn counts_of_very_different_sizes_get_a_logarithmic_axis() {
        let mut stats = LabelStats::new(&names(2));
        stats.add_image([(1, [0.0, 0.0, 0.1, 0.1])]);
        stats.add_image((0..101).map(|_| (0, [0.0, 0.0, 0.1, 0.1])));
        let found = texts(&labels(&stats, "train"));
        assert!(found.contains(&"objects (logarithmic)".into()), "{found:?}");
    }
}
