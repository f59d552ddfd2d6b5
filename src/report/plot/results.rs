//! results.png: what results.csv holds, over epochs.

use super::axes::{Entry, HEAD, Panel, SMALL, Titles};
use super::colour::{BLACK, BLUE, FAINT, GREEN, LINES, PURPLE, SKY, VERMILLION};
use super::smooth::{gaussian, sigma};
use super::svg::{Anchor, Area, Font, Stroke, Svg};
use super::ticks::Scale;
use super::{Picture, PlotError};
use crate::report::raster::fitted;
use std::path::Path;

/// A table of numbers with named columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    columns: Vec<String>,
    /// As many values as columns; `None`: an empty cell, or one that does not exist (-1) or is not finite.
    rows: Vec<Vec<Option<f64>>>,
}

impl Table {
    /// Reads a CSV file without quoted cells, as `results_csv` writes it.
    ///
    /// # Errors
    /// [`PlotError::Read`], [`PlotError::Table`].
    pub fn read(path: &Path) -> Result<Self, PlotError> {
        let text = std::fs::read_to_string(path).map_err(|source| PlotError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&text).map_err(|(line, reason)| PlotError::Table {
            path: path.into(),
            line,
            reason,
        })
    }

    /// The number of the line and what is wrong with it, otherwise.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
        let columns: Vec<String> = match lines.next() {
            Some((_, header)) => header.split(',').map(|c| c.trim().to_string()).collect(),
            None => return Err((1, "the file is empty".into())),
        };
        if !columns.iter().any(|c| c == "epoch") {
            return Err((1, "no column is called epoch".into()));
        }
        let mut rows = Vec::new();
        for (i, line) in lines.filter(|(_, l)| !l.trim().is_empty()) {
            let cells = line.split(',').map(|cell| match cell.trim() {
                "" => Ok(None),
                cell => match cell.parse::<f64>() {
                    Ok(v) => Ok(Some(v).filter(|v| v.is_finite())),
                    Err(_) => Err((i + 1, format!("{cell:?} is not a number"))),
                },
            });
            let row = cells.collect::<Result<Vec<_>, _>>()?;
            if row.len() != columns.len() {
                let (found, wanted) = (row.len(), columns.len());
                return Err((i + 1, format!("{found} cells, but {wanted} columns")));
            }
            rows.push(row);
        }
        Ok(Self { columns, rows })
    }

    fn column(&self, name: &str) -> Option<Vec<Option<f64>>> {
        let at = self.columns.iter().position(|c| c == name)?;
        Some(self.rows.iter().map(|row| row[at]).collect())
    }

    /// The endings of the columns that begin with `prefix`.
    fn endings<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.columns
            .iter()
            .filter_map(move |c| c.strip_prefix(prefix))
    }
}

struct Series {
    name: String,
    colour: &'static str,
    values: Vec<Option<f64>>,
    smoothed: bool,
}

struct Chart {
    title: String,
    series: Vec<Series>,
    /// From 0 to at most 1: negative values say that there is none.
    part: bool,
    /// Mark the greatest value.
    best: bool,
}

const COLUMNS: usize = 4;
const CELL: (f64, f64) = (430.0, 330.0);
const HEADER: f64 = 44.0;

/// Draws `table`; `run` names it in the head line.
///
/// Thin lines are the values, thick ones the same smoothed.
#[must_use]
pub fn results(table: &Table, run: &str) -> Picture {
    let charts = charts(table);
    let rows = charts.len().div_ceil(COLUMNS);
    let width = CELL.0 * COLUMNS as f64 + 16.0;
    let height = CELL.1 * rows as f64 + HEADER + 4.0;
    let mut svg = Svg::new(width as u32, height as u32);
    let epochs = table.column("epoch").unwrap_or_default();
    let head = match epochs.iter().flatten().next_back() {
        Some(last) => format!(
            "{run}: {last} {}",
            if *last == 1.0 { "epoch" } else { "epochs" }
        ),
        None => format!("{run}: no epoch yet"),
    };
    let head = fitted(&head, HEAD as f32, width as f32 * 0.6);
    svg.text((20.0, 31.0), &Font::new(HEAD, Anchor::Start), &head);
    let note = "thin: values; thick: smoothed";
    let font = Font::new(SMALL, Anchor::End).coloured(FAINT);
    svg.text((width - 30.0, 31.0), &font, note);
    for (i, chart) in charts.iter().enumerate() {
        let (column, row) = ((i % COLUMNS) as f64, (i / COLUMNS) as f64);
        let (x, y) = (column * CELL.0 + 4.0, row * CELL.1 + HEADER);
        draw(&mut svg, Area::new(x, y, CELL.0, CELL.1), chart, &epochs);
    }
    svg.finish()
}

/// Draws `results.png` beside the `results.csv` of a run's `folder`.
///
/// # Errors
/// [`PlotError`].
pub fn redraw(folder: &Path) -> Result<(), PlotError> {
    let table = Table::read(&folder.join("results.csv"))?;
    let run = folder
        .file_name()
        .map_or_else(|| folder.to_string_lossy(), |n| n.to_string_lossy());
    results(&table, &run).save(&folder.join("results.png"))
}

fn charts(table: &Table) -> Vec<Chart> {
    let series = |column: &str, name: &str, colour| {
        table.column(column).map(|values| Series {
            name: name.into(),
            colour,
            values,
            smoothed: true,
        })
    };
    let figure = |title: &str, best, columns: &[(&str, &str, &'static str)]| Chart {
        title: title.into(),
        series: columns
            .iter()
            .filter_map(|(column, name, colour)| series(column, name, colour))
            .collect(),
        part: true,
        best,
    };
    let mut losses: Vec<&str> = table.endings("train/").collect();
    losses.extend(table.endings("val/"));
    let mut charts: Vec<Chart> = Vec::new();
    for loss in losses {
        let title = loss.replace('_', " ");
        if charts.iter().any(|c| c.title == title) {
            continue;
        }
        let sides = [("train", BLUE), ("val", VERMILLION)];
        let of = |(side, colour)| series(&format!("{side}/{loss}"), side, colour);
        charts.push(Chart {
            title,
            series: sides.into_iter().filter_map(of).collect(),
            part: false,
            best: false,
        });
    }
    charts.push(rates(table));
    charts.push(figure(
        "precision and recall (at the best F1, IoU 0.5)",
        false,
        &[
            ("metrics/precision(B)", "precision", BLUE),
            ("metrics/recall(B)", "recall", VERMILLION),
        ],
    ));
    charts.push(figure(
        "AP50",
        true,
        &[("metrics/mAP50(B)", "val", VERMILLION)],
    ));
    charts.push(figure(
        "AP50-95",
        true,
        &[("metrics/mAP50-95(B)", "val", VERMILLION)],
    ));
    charts.push(figure(
        "AP50-95 by size of the objects",
        false,
        &[
            ("metrics/coco_APs", "small", SKY),
            ("metrics/coco_APm", "medium", GREEN),
            ("metrics/coco_APl", "large", PURPLE),
        ],
    ));
    charts
}

/// The rates of the parameter groups; those that are equal are one line.
fn rates(table: &Table) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for group in table.endings("lr/") {
        let values = table.column(&format!("lr/{group}")).unwrap_or_default();
        match series.iter_mut().find(|s| s.values == values) {
            Some(same) => {
                let first = same.name.split('–').next().unwrap_or_default();
                same.name = format!("{first}–{}", group.trim_start_matches("pg"));
            }
            None => series.push(Series {
                name: group.into(),
                colour: LINES[series.len() % LINES.len()],
                values,
                smoothed: false,
            }),
        }
    }
    Chart {
        title: "learning rate at the epoch's end".into(),
        series,
        part: false,
        best: false,
    }
}

fn draw(svg: &mut Svg, outer: Area, chart: &Chart, epochs: &[Option<f64>]) {
    let exists = |v: &f64| !chart.part || *v >= 0.0;
    let values = || {
        let all = chart.series.iter().flat_map(|s| s.values.iter());
        all.copied().flatten().filter(exists)
    };
    let greatest = values().fold(0.0, f64::max);
    let y = match (chart.part, chart.series.iter().any(|s| !s.smoothed)) {
        (true, _) => Scale::linear(0.0, (greatest * 1.1).clamp(1e-3, 1.0), 5),
        (_, true) => Scale::linear(0.0, greatest * 1.08, 5),
        _ => Scale::around(values(), 6),
    };
    let span = super::ticks::range(epochs.iter().copied().flatten()).unwrap_or((0.0, 1.0));
    let room = ((span.1 - span.0) * 0.02).max(if span.0 < span.1 { 0.0 } else { 0.5 });
    let x = Scale::whole(span.0 - room, span.1 + room, 6);
    let panel = Panel::within(outer, x, y);
    let titles = Titles {
        title: &chart.title,
        x: "epoch",
        y: "",
    };
    panel.background(svg, titles);
    if values().next().is_none() {
        panel.nothing(svg, "no values");
        panel.frame(svg);
        return;
    }
    let points = |values: &[Option<f64>]| -> Vec<(f64, Option<f64>)> {
        let xs = epochs.iter().zip(values);
        xs.filter_map(|(e, v)| Some(((*e)?, v.filter(exists))))
            .collect()
    };
    let mut entries = Vec::new();
    for s in &chart.series {
        let values: Vec<Option<f64>> = s.values.iter().map(|v| v.filter(exists)).collect();
        let thick = Stroke::solid(s.colour, 2.2);
        if s.smoothed {
            let thin = Stroke {
                opacity: 0.45,
                ..Stroke::solid(s.colour, 1.0)
            };
            panel.series(svg, points(&values), &thin);
            let smooth = gaussian(&values, sigma(epochs.len()));
            panel.series(svg, points(&smooth), &thick);
        } else {
            panel.series(svg, points(&values), &thick);
        }
        entries.push(Entry {
            name: &s.name,
            stroke: thick,
        });
    }
    panel.axes(svg);
    if chart.best {
        mark_best(svg, &panel, chart, epochs);
    } else if entries.len() > 1 {
        panel.legend_above(svg, &entries);
    }
}

/// A dot at the first of the greatest values, its figure above the panel.
fn mark_best(svg: &mut Svg, panel: &Panel, chart: &Chart, epochs: &[Option<f64>]) {
    let Some(series) = chart.series.first() else {
        return;
    };
    let mut best: Option<(f64, f64)> = None;
    for (epoch, value) in epochs.iter().zip(&series.values) {
        if let (Some(epoch), Some(value)) = (*epoch, *value)
            && best.is_none_or(|(_, b)| value > b)
        {
            best = Some((epoch, value));
        }
    }
    if let Some((epoch, value)) = best {
        svg.dot(panel.place(epoch, value), 4.0, BLACK);
        let text = format!("best {value:.4} in epoch {epoch}");
        let at = (panel.area.right(), panel.area.y - 7.0);
        svg.text(at, &Font::new(SMALL, Anchor::End), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_drawn, texts};
    use super::*;
    use crate::report::results_csv::{ResultsCsv, ResultsRow, ThirdLoss, ValidationResults};

    fn csv(epochs: usize, validated: impl Fn(usize) -> bool) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.csv");
        let mut csv = ResultsCsv::new(&path, ThirdLoss::L1, 3);
        for epoch in 1..=epochs {
            let t = epoch as f64;
            let row = ResultsRow {
                epoch,
                seconds: t,
                train: [3.0 / t, 4.0 / t, 0.1 / t],
                validation: validated(epoch).then(|| ValidationResults {
                    precision: 1.0 - 1.0 / t,
                    recall: 0.5,
                    coco: [
                        0.01 * t,
                        0.02 * t,
                        0.3,
                        -1.0,
                        0.2,
                        0.3,
                        0.1,
                        0.1,
                        0.1,
                        -1.0,
                        0.1,
                        0.1,
                    ],
                    losses: [2.0, 3.0, 0.2],
                }),
                learning_rates: vec![0.01 / t, 0.01 / t, 0.1 / t],
            };
            csv.push(&row).unwrap();
        }
        std::fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn columns_are_read_by_their_names_in_any_order() {
        let t = Table::parse("\u{feff} lr/pg0 ,epoch\n0.5, 1\n,2\nnan,3\n\n").unwrap();
        assert_eq!(t.column("lr/pg0").unwrap(), [Some(0.5), None, None]);
        assert_eq!(t.column("epoch").unwrap()[2], Some(3.0));
        assert_eq!(t.column("lr/pg1"), None);
    }

    #[test]
    fn a_file_that_is_no_table_says_where() {
        let of = |text| Table::parse(text).unwrap_err();
        assert_eq!(of(""), (1, "the file is empty".into()));
        assert_eq!(of("a,b\n"), (1, "no column is called epoch".into()));
        assert_eq!(of("epoch,b\n1,x\n"), (2, "\"x\" is not a number".into()));
        assert_eq!(
            of("epoch,b\n1,2\n3\n"),
            (3, "1 cells, but 2 columns".into())
        );
        let folder = tempfile::tempdir().unwrap();
        let e = redraw(folder.path()).unwrap_err();
        assert!(e.to_string().contains("results.csv"), "{e}");
        std::fs::write(folder.path().join("results.csv"), "epoch\n?\n").unwrap();
        let e = redraw(folder.path()).unwrap_err();
        assert!(e.to_string().contains("results.csv: line 2: \"?\""), "{e}");
        assert!(!folder.path().join("results.png").exists());
    }

    #[test]
    fn every_column_of_a_run_is_drawn_with_its_best_epoch() {
        let picture = results(
            &Table::parse(&csv(30, |_| true)).unwrap(),
            "train <&\" 细胞",
        );
        let texts = texts(&picture);
        for text in [
            "train <&\" 细胞: 30 epochs",
            "box loss",
            "cls loss",
            "l1 loss",
            "AP50",
            "AP50-95",
            "best 0.6000 in epoch 30",
            "best 0.3000 in epoch 30",
            "pg0–1",
            "pg2",
            "recall",
        ] {
            assert!(texts.iter().any(|t| t == text), "{text}: {texts:?}");
        }
        assert!(!texts.iter().any(|t| t == "no values"));
        assert_drawn(&picture, 0.01);
    }

    #[test]
    fn runs_of_no_and_one_epoch_and_without_validation_are_drawn() {
        let header = csv(1, |_| false).lines().next().unwrap().to_string();
        for (text, empty) in [(header, 8), (csv(1, |_| true), 0), (csv(9, |_| false), 4)] {
            let picture = results(&Table::parse(&text).unwrap(), "r");
            let found = texts(&picture).iter().filter(|t| *t == "no values").count();
            assert_eq!(found, empty, "{text}");
            assert_drawn(&picture, 0.003);
        }
        // validated every third epoch: gaps
        let picture = results(&Table::parse(&csv(20, |e| e % 3 == 0)).unwrap(), "r");
        assert!(picture.svg.matches("<circle").count() > 6);
    }

    #[test]
    fn an_existing_file_is_drawn_again() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("results.csv"), csv(3, |_| true)).unwrap();
        redraw(folder.path()).unwrap();
        let first = std::fs::read(folder.path().join("results.png")).unwrap();
        redraw(folder.path()).unwrap();
        assert_eq!(
            std::fs::read(folder.path().join("results.png")).unwrap(),
            first
        );
    }
}
