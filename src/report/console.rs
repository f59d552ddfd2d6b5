//! Progress, notes and results on the terminal or in a log.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::progress::{Progress, Unit, losses, resident_memory};
use super::tables::{ClassRow, class_table, coco_table};

/// In plain output, the least time between two lines of one pass.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// In a terminal, the least time between two changes of a bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Where a run reports: bars where stderr is a terminal, plain lines elsewhere.
///
/// Progress, notes and warnings go to stderr, results to stdout. Colours follow `NO_COLOR`, `CLICOLOR` and what the
/// terminal can do; `TERM=dumb` gets plain lines. A stream that was closed is ignored: a run does not end because nobody
/// reads its log. Clones share the terminal and may be used from any thread.
#[derive(Clone)]
pub struct Console {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None`: plain lines.
    bars: Option<MultiProgress>,
    streams: Mutex<Streams>,
    /// Is told of warnings, too.
    listener: Mutex<Option<Listener>>,
}

type Listener = Box<dyn Fn(&str) + Send>;

struct Streams {
    progress: Box<dyn Write + Send>,
    results: Box<dyn Write + Send>,
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Console {
    /// The console of this process.
    pub fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let bars = (!bars.is_hidden()).then_some(bars);
        Self::with(bars, std::io::stderr(), std::io::stdout())
    }

    /// Plain lines to the given streams instead of stderr and stdout.
    pub fn plain(
        progress: impl Write + Send + 'static,
        results: impl Write + Send + 'static,
    ) -> Self {
        Self::with(None, progress, results)
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self::plain(std::io::sink(), std::io::sink())
    }

    fn with(
        bars: Option<MultiProgress>,
        progress: impl Write + Send + 'static,
        results: impl Write + Send + 'static,
    ) -> Self {
        let streams = Mutex::new(Streams {
            progress: Box::new(progress),
            results: Box::new(results),
        });
        Self {
            shared: Arc::new(Shared {
                bars,
                streams,
                listener: Mutex::new(None),
            }),
        }
    }

    /// A bar for one epoch of training over `images` images; `epoch` counts from 1.
    pub fn epoch_bar(&self, epoch: usize, epochs: usize, images: usize) -> Bar {
        self.bar(&format!("epoch {epoch}/{epochs}"), images)
    }

    /// A bar for any other pass over `images` images.
    pub fn bar(&self, label: &str, images: usize) -> Bar {
        self.bar_of(Unit::Images, label, images)
    }

    /// A bar for a pass over `total` of something; 0 where that is not known yet.
    pub fn bar_of(&self, unit: Unit, label: &str, total: usize) -> Bar {
        let shown = self.shared.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(total as u64));
            bar.set_style(
                ProgressStyle::with_template("{prefix} {bar:12.cyan/dim} {wide_msg}")
                    .expect("the template is a constant that parses"),
            );
            bar.set_prefix(label.to_owned());
            bar
        });
        let now = Instant::now();
        Bar {
            console: self.clone(),
            label: label.to_owned(),
            shown,
            unit,
            total,
            done: 0,
            before: 0,
            losses: String::new(),
            extra: String::new(),
            started: now,
            reported: now,
        }
    }

    /// A line for the log, above any bar.
    pub fn note(&self, line: impl AsRef<str>) {
        self.to_progress(line.as_ref());
    }

    /// From now on `listener` is told of every warning, too.
    pub fn on_warning(&self, listener: impl Fn(&str) + Send + 'static) {
        let place = self.shared.listener.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    /// A line that deserves attention, above any bar.
    pub fn warn(&self, line: impl AsRef<str>) {
        let listener = self.shared.listener.lock();
        if let Some(listener) = &*listener.unwrap_or_else(PoisonError::into_inner) {
            listener(line.as_ref());
        }
        let word = style("warning:").for_stderr().yellow().bold();
        self.to_progress(&format!("{word} {}", line.as_ref()));
    }

    /// Text that is a result, to stdout; a line feed is added where it lacks one.
    pub fn result(&self, text: impl AsRef<str>) {
        self.above_bars(|streams| {
            let text = text.as_ref();
            let end = if text.ends_with('\n') { "" } else { "\n" };
            let _ = write!(streams.results, "{text}{end}");
            let _ = streams.results.flush();
        });
    }

    /// The table of classes, to stdout.
    pub fn class_results(&self, all: &ClassRow<'_>, classes: &[ClassRow<'_>]) {
        self.result(class_table(all, classes));
    }

    /// The twelve COCO figures, to stdout.
    pub fn coco_results(&self, figures: &[f64; 12]) {
        self.result(coco_table(figures));
    }

    fn to_progress(&self, line: &str) {
        self.above_bars(|streams| {
            let _ = writeln!(streams.progress, "{line}");
            let _ = streams.progress.flush();
        });
    }

    fn above_bars(&self, write: impl FnOnce(&mut Streams)) {
        let locked = || {
            // A thread that panicked while it wrote leaves at worst half a line.
            let streams = self.shared.streams.lock();
            write(&mut streams.unwrap_or_else(PoisonError::into_inner));
        };
        match &self.shared.bars {
            Some(bars) => bars.suspend(locked),
            None => locked(),
        }
    }
}

/// Progress of one pass over images. In a terminal a bar, which [`finish`](Self::finish) replaces by a line that stays;
/// elsewhere a line every ten seconds and one at the end. Dropped unfinished (an error, an interruption) it leaves the
/// terminal clean and says nothing.
pub struct Bar {
    console: Console,
    label: String,
    shown: Option<ProgressBar>,
    unit: Unit,
    total: usize,
    done: usize,
    before: usize,
    losses: String,
    extra: String,
    started: Instant,
    reported: Instant,
}

impl Bar {
    /// What an earlier pass had done, which says nothing about the speed of this one.
    pub fn set_before(&mut self, done: usize) {
        self.before = done;
    }

    /// The total, where it was not known before.
    pub fn set_total(&mut self, total: usize) {
        self.total = total;
        if let Some(bar) = &self.shown {
            bar.set_length(total as u64);
        }
    }

    /// `images_done` of the pass are done; `named_losses` are shown by name, `extra` as it is.
    pub fn tick(&mut self, images_done: usize, named_losses: &[(&str, f64)], extra: &str) {
        self.tick_at(Instant::now(), images_done, named_losses, extra);
    }

    fn tick_at(&mut self, now: Instant, done: usize, named_losses: &[(&str, f64)], extra: &str) {
        self.done = done;
        let interval = if self.shown.is_some() {
            BAR_INTERVAL
        } else {
            PLAIN_INTERVAL
        };
        let due = now.duration_since(self.reported) >= interval;
        // The last tick is kept for the line that finishes the pass.
        let is_last = self.total > 0 && done >= self.total;
        if due || is_last {
            self.losses = losses(named_losses);
            extra.clone_into(&mut self.extra);
        }
        if !due || (self.shown.is_none() && is_last) {
            return;
        }
        self.reported = now;
        let line = self.progress(now).line();
        match &self.shown {
            Some(bar) => {
                bar.set_message(line);
                bar.set_position(done as u64);
            }
            None => self.console.to_progress(&format!("{}: {line}", self.label)),
        }
    }

    /// Ends the pass with a line that says how it went.
    pub fn finish(self) {
        self.finish_at(Instant::now());
    }

    fn finish_at(mut self, now: Instant) {
        let summary = self.progress(now).summary();
        self.remove();
        self.console
            .to_progress(&format!("{}: {summary}", self.label));
    }

    /// Ends the pass without a line.
    pub fn clear(mut self) {
        self.remove();
    }

    fn remove(&mut self) {
        if let Some(bar) = self.shown.take() {
            bar.finish_and_clear();
        }
    }

    fn progress(&self, now: Instant) -> Progress<'_> {
        Progress {
            unit: self.unit,
            done: self.done,
            before: self.before,
            total: self.total,
            elapsed: now.duration_since(self.started),
            losses: &self.losses,
            extra: &self.extra,
            memory: resident_memory(),
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Buffer {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn plain() -> (Console, Buffer, Buffer) {
        let (progress, results) = (Buffer::default(), Buffer::default());
        let console = Console::plain(progress.clone(), results.clone());
        (console, progress, results)
    }

    #[test]
    fn plain_output_has_a_line_every_ten_seconds_and_one_at_the_end() {
        let (console, progress, results) = plain();
        let mut bar = console.epoch_bar(3, 10, 1000);
        let start = bar.started;
        for second in 0..=25_u64 {
            let now = start + Duration::from_secs(second);
            bar.tick_at(
                now,
                second as usize * 40,
                &[("box", 2.5 - second as f64 / 10.0)],
                "",
            );
        }
        bar.finish_at(start + Duration::from_secs(25));
        let text = progress.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0]
                .starts_with("epoch 3/10: 400/1000 images  box 1.5000  0:15 left  40.0 images/s")
        );
        assert!(lines[1].starts_with("epoch 3/10: 800/1000 images  box 0.5000"));
        assert!(lines[2].starts_with("epoch 3/10: 1000 images in 0:25  box 0.0000  40.0 images/s"));
        assert_eq!(results.text(), "");
    }

    #[test]
    fn a_pass_that_is_cleared_or_dropped_says_nothing() {
        let (console, progress, _) = plain();
        let mut bar = console.bar("val", 10);
        bar.tick(10, &[], "");
        bar.clear();
        drop(console.bar("val", 10));
        assert_eq!(progress.text(), "");
    }

    #[test]
    fn notes_and_warnings_are_progress_and_tables_are_results() {
        let (console, progress, results) = plain();
        console.note("plan");
        console.warn("3 boxes clipped");
        console.coco_results(&[0.25; 12]);
        console.result("done");
        let said = console::strip_ansi_codes(&progress.text()).into_owned();
        assert_eq!(said, "plan\nwarning: 3 boxes clipped\n");
        let results = results.text();
        assert!(results.contains("COCO  0.250") && results.ends_with("\ndone\n"));
    }

    #[test]
    fn a_closed_stream_does_not_end_the_run() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
        let console = Console::plain(Closed, Closed);
        console.note("x");
        console.result("x");
        console.bar("val", 1).finish();
    }

    #[test]
    fn threads_share_a_console() {
        let (console, progress, _) = plain();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let console = console.clone();
                scope.spawn(move || console.note("a line of one thread"));
            }
        });
        assert_eq!(progress.text(), "a line of one thread\n".repeat(8));
    }
}
