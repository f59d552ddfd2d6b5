//! `docs/options.md`, made from the table of options.

use std::fmt::Write as _;

use super::options::{Command, DefaultText, OPTIONS, OptionSpec};

const INTRODUCTION: &str = "# Options

<!-- Made from the table in src/config/options.rs. After a change of the table:
     YOLO_TRAIN_WRITE_DOCS=1 cargo test --release --lib options_page -->

`yolo-train [train] --data FILE …` trains, `yolo-train val --weights FILE --data FILE …` validates, `yolo-train info --model MODEL`
describes a network, `yolo-train predict --weights FILE --source …` finds objects in images. On the command line options are written in kebab case (`--close-mosaic 5`; `--close_mosaic 5` means the
same, the last of several counts, and `--cos-lr` alone means `--cos-lr true`). A file for `--cfg` holds lines of `option: value` in
either spelling; the command line goes before it.

Every training run writes `args.yaml`, which holds all options and can be used as `--cfg`. Its list `given` names the options
that the user gave, so that `auto` may choose the others again; a value that is changed in the file counts as given, with or
without the list. In a file without the list every option counts as given. `null` leaves an option at its default.
";

/// The page on options, in Markdown.
pub fn options_markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    let mut group = "";
    for spec in OPTIONS {
        if spec.group != group {
            group = spec.group;
            page.push_str(&format!(
                "\n## {group}\n\n| option | commands | allowed | default | meaning |\n|---|---|---|---|---|\n"
            ));
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `--{}` | {} | {} | {} | {} |",
            spec.name,
            commands(spec),
            cell(&spec.kind.allowed()),
            default(spec),
            cell(spec.help)
        );
    }
    page
}

fn commands(spec: &OptionSpec) -> String {
    let names: Vec<&str> = spec
        .commands
        .iter()
        .map(|command: &Command| command.name())
        .collect();
    names.join(", ")
}

fn default(spec: &OptionSpec) -> String {
    match spec.default {
        DefaultText::Is(text) => format!("`{text}`"),
        DefaultText::Unset(words) => cell(words),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/options.md");
        if std::env::var_os("YOLO_TRAIN_WRITE_DOCS").is_some() {
            std::fs::write(path, options_markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path)
            .unwrap_or_default()
            .replace("\r\n", "\n");
        assert!(
            page == options_markdown(),
            "docs/options.md is stale; write it again with: YOLO_TRAIN_WRITE_DOCS=1 cargo test --release --lib options_page"
        );
    }
}
