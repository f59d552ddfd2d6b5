//! Draws `results.png` of finished runs again from their `results.csv`, also where another program wrote it:
//! `cargo run --release --example results_png -- runs/detect/train …`

use std::path::Path;
use std::process::ExitCode;
use yolo_train::report::plot::results::redraw;

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for folder in std::env::args().skip(1) {
        if let Err(e) = redraw(Path::new(&folder)) {
            eprintln!("{e}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
