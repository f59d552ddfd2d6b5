//! The tests beneath the table: every row, its default, its bounds, its messages, and the way to YAML and back.

use proptest::prelude::*;

use super::kind::PRACTICALLY_UNLIMITED;
use super::options::OPTIONS;
use super::*;

fn set(name: &str, text: &str) -> Result<Settings, ConfigError> {
    let mut settings = Settings::default();
    settings.set(name, text)?;
    Ok(settings)
}

fn message(name: &str, text: &str) -> String {
    match set(name, text) {
        Ok(settings) => panic!("--{name} {text} was accepted: {settings:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_row_is_well_formed() {
    let mut groups: Vec<&str> = Vec::new();
    for (row, spec) in OPTIONS.iter().enumerate() {
        let name = spec.name;
        let is_kebab = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        assert!(is_kebab, "{name}");
        assert_eq!(spec.key, name.replace('-', "_"));
        assert!(
            OPTIONS[..row].iter().all(|other| other.name != name),
            "{name}"
        );
        assert!(!spec.commands.is_empty(), "{name}");
        assert!(!spec.help.is_empty() && !spec.help.ends_with('.'), "{name}");
        if groups.last() != Some(&spec.group) {
            assert!(!groups.contains(&spec.group), "{}", spec.group);
            groups.push(spec.group);
        }
        assert_eq!(find(name), Some(spec));
        assert_eq!(find(spec.key), Some(spec));
    }
}

/// `Settings::default` and `store` trust that each row's kind gives values of its field's type.
#[test]
fn every_row_has_a_kind_that_fits_its_type() {
    let mut settings = Settings::default();
    for spec in OPTIONS {
        assert_eq!(
            settings.value_of(spec),
            spec.default_value(),
            "{}",
            spec.name
        );
        for text in accepted(spec) {
            settings
                .set(spec.name, &text)
                .unwrap_or_else(|error| panic!("{error}"));
            let value = spec.kind.read(&text).unwrap();
            assert_eq!(settings.value_of(spec), Some(value), "{}", spec.name);
        }
    }
}

/// Texts at the edges of what an option accepts.
fn accepted(spec: &OptionSpec) -> Vec<String> {
    match spec.kind {
        Kind::Flag => ["true", "False", "YES", "no", "on", "off", "1", "0"]
            .map(String::from)
            .into(),
        Kind::Integer { min, max } => vec![min.to_string(), format!(" {max} "), format!("+{max}")],
        Kind::Number(Interval {
            min,
            max,
            open_min,
            open_max,
        }) => {
            let low = if open_min { min + 1e-9 } else { min };
            let high = if open_max { max - 1e-9 } else { max };
            vec![low.to_string(), high.to_string(), format!("{high:e}")]
        }
        Kind::ImageSize => ["32", "640", "4096"].map(String::from).into(),
        Kind::Text(_) | Kind::OptionalText(_) => vec!["a b".into(), "-x".into(), "ä/ö.yaml".into()],
        Kind::Choice(choices) => choices
            .iter()
            .flat_map(|choice| [choice.to_string(), choice.to_uppercase()])
            .collect(),
        Kind::Classes => ["0", "0,2,5", "[7, 3]", "65535"].map(String::from).into(),
        Kind::Scale => ["0", "0.9", "0.5,1.5", "[1, 1]", "10,10"]
            .map(String::from)
            .into(),
        Kind::Layers => [
            "0",
            "10",
            "0,1,5",
            "[3]",
            "3,",
            "23.cv2, model.9",
            "one2one_cv3",
        ]
        .map(String::from)
        .into(),
        Kind::Device => ["auto", "CPU", "cpu,cpu", "0,1", "-1", "wgpu:0"]
            .map(String::from)
            .into(),
    }
}

/// Texts just outside of what an option accepts, and garbage.
fn refused(spec: &OptionSpec) -> Vec<String> {
    let mut texts: Vec<String> = vec!["".into(), "  ".into()];
    let garbage = [
        "x", "nan", "NaN", "inf", "-inf", "1e999", "--1", "1 2", "null", "0x10", "1_000",
    ];
    if !matches!(
        spec.kind,
        Kind::Text(_) | Kind::OptionalText(_) | Kind::Layers
    ) {
        texts.extend(garbage.map(String::from));
    }
    match spec.kind {
        Kind::Integer { min, max } => {
            texts.extend([(min - 1).to_string(), (max + 1).to_string()]);
            texts.extend(
                ["1.0", "1e2", "170141183460469231731687303715884105728"].map(String::from),
            );
        }
        Kind::Number(Interval {
            min,
            max,
            open_min,
            open_max,
        }) => {
            texts.extend([(min - 1e-9).to_string(), (max + 1e-9).to_string()]);
            texts.extend(open_min.then(|| min.to_string()));
            texts.extend(open_max.then(|| max.to_string()));
        }
        Kind::ImageSize => {
            texts.extend(["0", "-32", "31", "33", "4128", "640.0"].map(String::from))
        }
        Kind::Classes => texts.extend(["1,1", "-1", "0,", ",", "65536", "[0"].map(String::from)),
        Kind::Scale => {
            texts.extend(["1", "-0.1", "1.5,0.5", "0,1", "1,11", "1,2,3", "1,"].map(String::from));
        }
        Kind::Flag => texts.extend(["2", "tru"].map(String::from)),
        Kind::Choice(_) => texts.extend(["2", "auto,SGD"].map(String::from)),
        Kind::Layers => texts.extend(["1,,2", ",", "[1", "a b", "ä", "-1"].map(String::from)),
        Kind::Text(_) | Kind::OptionalText(_) | Kind::Device => {}
    }
    texts
}

#[test]
fn every_row_refuses_what_is_outside_its_bounds_in_one_line() {
    for spec in OPTIONS {
        for text in refused(spec) {
            let message = message(spec.name, &text);
            let start = format!("bad value for --{} on the command line: given ", spec.name);
            assert!(message.starts_with(&start), "{message}");
            assert!(
                message.contains(&format!("allowed is {}", spec.kind.allowed())),
                "{message}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
    }
}

/// SPEC section 6 and the issue, written down once more.
#[test]
fn defaults_are_those_of_the_specification() {
    let expected = "data shapes.yaml; model yolo26n.yaml; epochs 100; patience 100; batch 16; imgsz 640; save_period -1; \
        device auto; workers null; threads null; nnodes 1; node_rank null; master null; token_file null; ports null; \
        join_timeout 300.0; timeout 60.0; project runs/detect; name null; optimizer auto; seed 0; single_cls false; \
        classes null; rect true; cos_lr false; close_mosaic 10; fraction 1.0; multi_scale 0.0; val true; lr0 0.01; lrf 0.01; \
        momentum 0.937; weight_decay 0.0005; warmup_epochs 3.0; warmup_momentum 0.8; warmup_bias_lr 0.1; nbs 64; box 7.5; \
        cls 0.5; dfl 1.5; hsv_h 0.015; hsv_s 0.7; hsv_v 0.4; degrees 0.0; translate 0.1; scale [0.5, 1.5]; shear 0.0; \
        perspective 0.0; flipud 0.0; fliplr 0.5; mosaic 1.0; mixup 0.0; cutmix 0.0; conf null; iou 0.7; max_det 300; \
        end2end false; accumulate null; lr_scaling auto; drop_last false; skip_bad false; cfg null; weights null; split val; \
        nc 80; amp auto; tf32 false; deterministic false; lanes null; sync_bn true; bucket_mb 4.0; steps 10; comm null; scaling false; rounds 3; json false; time null; resume null; save_steps 0; keep_checkpoints 2; \
        freeze null; class_weights null; plots true; \
        source null; save true; save_txt false; save_conf false; save_json false; save_crop false; show_labels true; \
        show_conf true; line_width null; \
        json_log false; max_restarts 0; elastic null; run null";
    let settings = Settings::default();
    let mut rows = 0;
    for pair in expected.split(';') {
        let (key, expected) = pair.trim().split_once(' ').unwrap();
        let spec = find(key).unwrap_or_else(|| panic!("{key} is missing"));
        let value = settings
            .value_of(spec)
            .map_or("null".into(), |value| value.to_string());
        assert_eq!(value, expected, "{key}");
        assert!(!settings.is_given(key));
        rows += 1;
    }
    assert_eq!(rows, OPTIONS.len());
}

#[test]
fn each_command_takes_its_options() {
    let names = |command| -> Vec<&str> { options_of(command).map(|spec| spec.name).collect() };
    let mut val = names(Command::Val);
    val.sort_unstable();
    let mut expected: Vec<&str> = "weights data imgsz batch device workers threads project name conf iou max-det end2end rect \
        single-cls classes skip-bad split cfg plots nnodes node-rank master token-file ports join-timeout timeout"
        .split_whitespace()
        .collect();
    expected.sort_unstable();
    assert_eq!(val, expected);
    assert_eq!(names(Command::Info), ["model", "nc", "imgsz"]);
    let not_in_training: Vec<&str> = OPTIONS
        .iter()
        .filter(|spec| !spec.is_taken_by(Command::Train))
        .map(|spec| spec.name)
        .collect();
    let prediction = names(Command::Predict);
    let own: Vec<&str> =
        "source save save-txt save-conf save-json save-crop show-labels show-conf line-width"
            .split_whitespace()
            .collect();
    let mut expected: Vec<&str> = "weights imgsz batch device workers threads project name conf iou max-det end2end rect classes cfg"
        .split_whitespace()
        .chain(own.iter().copied())
        .collect();
    let mut sorted = prediction.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    let mut elsewhere = vec![
        "nc", "steps", "comm", "scaling", "rounds", "json", "split", "run",
    ];
    elsewhere.extend(own);
    elsewhere.sort_unstable();
    let mut not_in_training = not_in_training;
    not_in_training.sort_unstable();
    assert_eq!(not_in_training, elsewhere);
    assert_eq!(names(Command::Doctor), ["project", "json"]);
    assert_eq!(
        names(Command::Bench),
        [
            "data",
            "model",
            "batch",
            "imgsz",
            "device",
            "nnodes",
            "node-rank",
            "master",
            "token-file",
            "ports",
            "join-timeout",
            "timeout",
            "workers",
            "threads",
            "amp",
            "tf32",
            "deterministic",
            "lanes",
            "sync-bn",
            "bucket-mb",
            "steps",
            "comm",
            "scaling",
            "rounds",
            "json",
        ]
    );
}

#[test]
fn amp_reads_the_words_of_a_switch() {
    for (text, want) in [
        ("True", "auto"),
        ("1", "auto"),
        ("false", "off"),
        ("bf16", "bf16"),
    ] {
        assert_eq!(set("amp", text).unwrap().amp.name(), want, "{text}");
    }
    assert!(set("optimizer", "true").is_err());
}

#[test]
fn an_image_size_between_two_allowed_ones_names_both() {
    assert!(message("imgsz", "650").ends_with("; the nearest are 640 and 672"));
    assert!(message("imgsz", "20").ends_with("; the nearest is 32"));
    assert!(message("imgsz", "-650").ends_with("; the nearest is 32"));
    assert!(message("imgsz", "9999").ends_with("; the nearest is 4096"));
}

#[test]
fn a_misspelt_choice_names_the_likely_one() {
    assert!(message("optimizer", "AdmW").ends_with("; did you mean AdamW?"));
    assert!(message("lr-scaling", "liner").ends_with("; did you mean linear?"));
    assert!(!message("lr-scaling", "cubic").contains("did you mean"));
}

#[test]
fn scale_is_a_half_width_or_two_multipliers() {
    let range = |text| set("scale", text).unwrap().scale;
    assert_eq!(range("0.5"), ScaleRange { min: 0.5, max: 1.5 });
    assert_eq!(range("0"), ScaleRange { min: 1.0, max: 1.0 });
    assert_eq!(range("0.8,1.2"), ScaleRange { min: 0.8, max: 1.2 });
    assert_eq!(range("[0.8, 1.2]"), ScaleRange { min: 0.8, max: 1.2 });
}

#[test]
fn workers_default_to_the_smaller_of_eight_and_the_cores() {
    let settings = Settings::default();
    assert_eq!(settings.workers_or_default(4), 4);
    assert_eq!(settings.workers_or_default(64), 8);
    assert_eq!(settings.workers_or_default(0), 1);
    assert_eq!(set("workers", "20").unwrap().workers_or_default(4), 20);
    assert_eq!(set("workers", "0").unwrap().workers_or_default(4), 1);
    assert_eq!(settings.threads_or_default(4), 4);
    assert_eq!(set("threads", "2").unwrap().threads_or_default(4), 2);
}

#[test]
fn given_is_known_in_both_spellings() {
    let settings = set("close_mosaic", "10").unwrap();
    assert!(settings.is_given("close-mosaic") && settings.is_given("close_mosaic"));
    assert!(!settings.is_given("epochs"));
}

fn yaml(text: &str) -> Result<Settings, String> {
    Settings::from_yaml(text, "cfg.yaml").map_err(|error| error.to_string())
}

#[test]
fn a_file_takes_both_spellings_and_counts_as_given() {
    let settings = yaml("close-mosaic: 3\nwarmup_epochs: 1\n").unwrap();
    assert_eq!(settings.close_mosaic, 3);
    assert_eq!(settings.warmup_epochs, 1.0);
    assert!(settings.is_given("close_mosaic") && settings.is_given("warmup_epochs"));
    assert!(!settings.is_given("lr0"));
}

#[test]
fn values_in_a_file_mean_what_their_text_says() {
    let text = "name: 007\nproject: 1e3\nlr0: 1e-3\nclasses: [0, 2]\nscale: [0.8, 1.2]\ncos_lr: yes\nseed: 18446744073709551615\n\
        patience: null\nconf:\ndata: 'a: b'\niou: .5\ndevice: 0\n";
    let settings = yaml(text).unwrap();
    assert_eq!(settings.name.as_deref(), Some("007"));
    assert_eq!(settings.project, "1e3");
    assert_eq!(settings.lr0, 1e-3);
    assert_eq!(settings.classes, Some(vec![0, 2]));
    assert_eq!(settings.scale, ScaleRange { min: 0.8, max: 1.2 });
    assert!(settings.cos_lr);
    assert_eq!(settings.seed, u64::MAX);
    assert_eq!(settings.data, "a: b");
    assert_eq!(settings.iou, 0.5);
    assert_eq!(settings.device, "0");
    assert_eq!(settings.patience, 100);
    assert!(!settings.is_given("patience") && !settings.is_given("conf"));
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_line_and_column() {
    for (text, expected) in [
        (
            "epochs: 3\n# ä\nbatch:   0\n",
            "bad value for batch at cfg.yaml:3:10: given 0, allowed is a whole number from 1 to 1000000",
        ),
        (
            "lr0: .nan",
            "bad value for lr0 at cfg.yaml:1:6: given .nan, allowed is a number above 0, at most 10",
        ),
        (
            "epochs: 3\nepoch: 3\n",
            "unknown option epoch at cfg.yaml:2:1; did you mean epochs? (see --help)",
        ),
        (
            "half: false",
            "option half at cfg.yaml:1:1 is known from other trainers but not supported yet: validation and prediction use 32-bit floats",
        ),
        (
            "close-mosaic: 3\n\nclose_mosaic: 4\n",
            "close_mosaic at cfg.yaml:3:1 is there twice (first in line 1); leave one out",
        ),
        (
            "epochs: {a: 3}",
            "cannot use the options at cfg.yaml:1:9: a value is a single one or a list of single ones",
        ),
        (
            "cfg: other.yaml",
            "cannot use the options at cfg.yaml:1:6: such a file cannot name another one with cfg",
        ),
        (
            "epochs: 3\n  batch: 4\n",
            "cannot use the options at cfg.yaml:2:8: mapping values are not allowed in this context",
        ),
        (
            "- epochs",
            "cannot use the options at cfg.yaml:1:1: lines of `option: value` are expected",
        ),
        (
            "epochs: 3\n---\nepochs: 4\n",
            "cannot use the options at cfg.yaml:3:1: the file holds more than one YAML document",
        ),
        (
            "given: [epoch]",
            "unknown option epoch at cfg.yaml:1:8; did you mean epochs? (see --help)",
        ),
    ] {
        assert_eq!(yaml(text).unwrap_err(), expected);
    }
}

#[test]
fn a_list_of_one_layer_in_a_file_is_not_a_number_of_layers() {
    let freeze = |text: &str| yaml(text).unwrap().freeze;
    assert_eq!(freeze("freeze: 10"), Some("10".into()));
    assert_eq!(freeze("freeze: [10]"), Some("[10]".into()));
    assert_eq!(freeze("freeze: [0, 23.cv2]"), Some("[0,23.cv2]".into()));
    for text in ["10", "[10]", "0,23.cv2"] {
        let settings = set("freeze", text).unwrap();
        assert_eq!(yaml(&settings.to_yaml()).unwrap().freeze, settings.freeze);
    }
}

#[test]
fn an_empty_file_changes_nothing() {
    for text in ["", "# only a comment\n", "null\n", "epochs:\nname: ~\n"] {
        assert_eq!(yaml(text), Ok(Settings::default()), "{text:?}");
    }
}

#[test]
fn a_written_file_is_complete_and_in_the_order_of_the_table() {
    let text = Settings::default().to_yaml();
    let keys: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(':').next().unwrap())
        .collect();
    let mut expected: Vec<&str> = options_of(Command::Train).map(|spec| spec.key).collect();
    expected.push("given");
    assert_eq!(keys, expected);
}

#[test]
fn a_written_file_leaves_to_auto_what_the_user_left_to_it() {
    let settings = set("lr0", "0.02").unwrap();
    let text = settings.to_yaml();
    assert!(text.ends_with("\ngiven: [lr0]\n"), "{text}");
    let again = yaml(&text).unwrap();
    assert_eq!(again, settings);
    assert!(again.is_given("lr0") && !again.is_given("momentum"));

    let edited = text.replace("momentum: 0.937", "momentum: 0.9");
    assert!(yaml(&edited).unwrap().is_given("momentum"));
    let without_list = text.replace("given: [lr0]", "");
    assert!(yaml(&without_list).unwrap().is_given("momentum"));
}

/// Texts that an option accepts, as a user might write them.
fn any_text(kind: Kind) -> BoxedStrategy<String> {
    match kind {
        Kind::Flag => any::<bool>().prop_map(|flag| flag.to_string()).boxed(),
        Kind::Integer { min, max } => (min..=max).prop_map(|number| number.to_string()).boxed(),
        Kind::Number(interval) => (interval.min..=interval.max)
            .prop_filter("within open ends", move |&number| interval.contains(number))
            .prop_map(|number| number.to_string())
            .boxed(),
        Kind::ImageSize => (1..=128_u32)
            .prop_map(|strides| (32 * strides).to_string())
            .boxed(),
        Kind::Text(_) | Kind::OptionalText(_) => proptest::collection::vec(any::<char>(), 1..20)
            .prop_map(String::from_iter)
            .prop_filter("not blank", |text| !text.trim().is_empty())
            .boxed(),
        Kind::Choice(choices) => proptest::sample::select(choices)
            .prop_map(str::to_owned)
            .boxed(),
        Kind::Classes => proptest::collection::btree_set(0..65_536_u32, 1..9)
            .prop_map(|classes| {
                let classes: Vec<String> = classes.iter().map(u32::to_string).collect();
                classes.join(",")
            })
            .boxed(),
        Kind::Scale => prop_oneof![
            (0.0..1.0_f64).prop_map(|half_width| half_width.to_string()),
            (0.01..10.0_f64, 0.01..10.0_f64).prop_map(|(a, b)| format!(
                "{},{}",
                a.min(b),
                a.max(b)
            )),
        ]
        .boxed(),
        Kind::Layers => proptest::sample::select(&["3", "[3]", "0,1,5", "23.cv2,1"][..])
            .prop_map(str::to_owned)
            .boxed(),
        Kind::Device => {
            proptest::sample::select(&["auto", "cpu", "cpu:3", "0,1", "-1,-1", "wgpu:0"][..])
                .prop_map(str::to_owned)
                .boxed()
        }
    }
}

/// Any settings of a training run.
fn any_settings() -> impl Strategy<Value = Settings> {
    let texts: Vec<_> = options_of(Command::Train)
        .filter(|spec| spec.name != "cfg")
        .map(|spec| proptest::option::of(any_text(spec.kind)).prop_map(move |text| (spec, text)))
        .collect();
    texts.prop_map(|texts| {
        let mut settings = Settings::default();
        for (spec, text) in texts {
            if let Some(text) = text {
                settings
                    .set(spec.name, &text)
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
        settings
    })
}

proptest! {
    #[test]
    fn any_settings_survive_a_written_file(settings in any_settings()) {
        let text = settings.to_yaml();
        let again = Settings::from_yaml(&text, "args.yaml");
        prop_assert_eq!(again.map_err(|error| format!("{error}\n{text}")), Ok(settings));
    }

    #[test]
    fn any_file_gives_settings_or_one_line(text in any::<String>(), value in any::<String>(), row in 0..OPTIONS.len()) {
        for text in [text, format!("{}: {value}", OPTIONS[row].key), format!("given: [{value}]")] {
            if let Err(error) = Settings::from_yaml(&text, "cfg.yaml") {
                let message = error.to_string();
                prop_assert!(!message.contains(['\n', '\r']), "{}", message);
            }
        }
    }

    #[test]
    fn whole_numbers_are_taken_up_to_their_ends(number in any::<i64>()) {
        let number = i128::from(number);
        let taken = set("epochs", &number.to_string()).is_ok();
        prop_assert_eq!(taken, (1..=PRACTICALLY_UNLIMITED).contains(&number));
    }
}
