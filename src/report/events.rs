//! `events.jsonl`: a line of JSON for each event of a run, for programs that follow it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Seconds since 1970.
#[must_use]
pub fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |d| d.as_secs_f64())
}

/// Where events go; clones write into the same file.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    /// `None`: nowhere.
    file: Option<Arc<Mutex<File>>>,
}

impl EventLog {
    /// Nobody wants to know.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Behind the lines that are in the file already.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append_to(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file: Some(Arc::new(Mutex::new(file))),
        })
    }

    /// Whether somebody wants to know.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.file.is_some()
    }

    /// One line: `event`, `time` (seconds since 1970), then `fields`, an object. A whole line is written at once; that a
    /// disk is full ends no run.
    pub fn event(&self, event: &str, fields: Value) {
        let Some(file) = &self.file else { return };
        let mut line = Map::new();
        line.insert("event".into(), event.into());
        line.insert("time".into(), unix_time().into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let text = format!("{}\n", Value::Object(line));
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_event_is_a_line_and_a_run_that_goes_on_adds_to_them() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("events.jsonl");
        for epoch in [1, 2] {
            let log = EventLog::append_to(&path).unwrap();
            assert!(log.is_wanted());
            log.clone()
                .event("epoch", json!({"epoch": epoch, "name": "a\nb"}));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["epoch"], 2);
        assert_eq!(lines[0]["event"], "epoch");
        assert!(lines[0]["time"].as_f64().unwrap() > 1.7e9);
        EventLog::none().event("epoch", json!({}));
    }
}
