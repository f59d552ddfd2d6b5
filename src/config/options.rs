//! The table of options: the command line, `--cfg` files, `--help`, `docs/options.md`, `args.yaml` and the typed
//! [`Settings`] are all made from it. To add an option, add its row; the tests beneath go through every row.

use super::kind::{Interval, Kind, PRACTICALLY_UNLIMITED};
use super::settings::{Amp, Given, LrScaling, Optimizer, ScaleRange, SplitName};
use super::value::{Field, Value};

/// What the program can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Train,
    Val,
    Predict,
    Info,
    Bench,
    Doctor,
    Status,
}

impl Command {
    pub const ALL: [Command; 7] = [
        Command::Train,
        Command::Val,
        Command::Predict,
        Command::Info,
        Command::Bench,
        Command::Doctor,
        Command::Status,
    ];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Command::Train => "train",
            Command::Val => "val",
            Command::Predict => "predict",
            Command::Info => "info",
            Command::Bench => "bench",
            Command::Doctor => "doctor",
            Command::Status => "status",
        }
    }
}

/// The value that holds where a user gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultText {
    /// This text, read as if a user had written it.
    Is(&'static str),
    /// No value; the words say what is done then.
    Unset(&'static str),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Kebab case, as on the command line.
    pub name: &'static str,
    /// Snake case, as in YAML files.
    pub key: &'static str,
    /// Heading in `--help` and in the documentation.
    pub group: &'static str,
    pub kind: Kind,
    pub default: DefaultText,
    /// Who takes it on the command line. (A `--cfg` file may hold any option; a command reads those that it takes.)
    pub commands: &'static [Command],
    pub help: &'static str,
}

impl OptionSpec {
    pub(super) fn default_value(&self) -> Option<Value> {
        match self.default {
            DefaultText::Is(text) => Some(
                self.kind
                    .read(text)
                    .expect("the table's defaults are tested"),
            ),
            DefaultText::Unset(_) => None,
        }
    }

    pub fn is_taken_by(&self, command: Command) -> bool {
        self.commands.contains(&command)
    }
}

macro_rules! options {
    // The key in YAML files is the field's name, unless the row has one (`box` is no name for a field in Rust).
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    ($($group:literal { $(
        $name:literal $($key:literal)? $field:ident: $type:ty = $default:expr, $kind:expr, $commands:expr, $help:literal;
    )* })*) => {
        /// All options, in the order of `--help`, `docs/options.md` and `args.yaml`.
        pub static OPTIONS: &[OptionSpec] = &[$($(
            OptionSpec {
                name: $name, key: options!(@key $field $($key)?), group: $group, kind: $kind, default: $default, commands: $commands, help: $help,
            },
        )*)*];

        /// Every option with its value: what the user gave, otherwise the default.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $($(#[doc = $help] pub $field: $type,)*)*
            /// Which options the user gave; ask with [`Settings::is_given`].
            pub given: Given,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self {
                    $($($field: find($name)
                        .and_then(|spec| Field::from_value(spec.default_value()))
                        .expect("each row's type fits its kind (tested)"),)*)*
                    given: Given::default(),
                }
            }
        }

        impl Settings {
            /// The value of a row; `None` where it is not set.
            pub(super) fn value_of(&self, spec: &OptionSpec) -> Option<Value> {
                match spec.name {
                    $($($name => self.$field.to_value(),)*)*
                    _ => None,
                }
            }

            /// Stores a value that the row's kind has accepted, or unsets it.
            pub(super) fn store(&mut self, spec: &OptionSpec, value: Option<Value>) {
                match spec.name {
                    $($($name => self.$field = Field::from_value(value)
                        .expect("each row's type fits its kind (tested)"),)*)*
                    _ => {}
                }
            }
        }
    };
}

/// The row of an option, by its name in either spelling (`close-mosaic`, `close_mosaic`).
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS
        .iter()
        .find(|spec| spec.name == name || spec.key == name)
}

/// The rows that a command takes, in the table's order.
pub fn options_of(command: Command) -> impl Iterator<Item = &'static OptionSpec> {
    OPTIONS.iter().filter(move |spec| spec.is_taken_by(command))
}

const TRAIN: &[Command] = &[Command::Train];
const VAL: &[Command] = &[Command::Val];
const INFO: &[Command] = &[Command::Info];
const TRAIN_VAL: &[Command] = &[Command::Train, Command::Val];
const BENCH: &[Command] = &[Command::Bench];
const TRAIN_INFO_BENCH: &[Command] = &[Command::Train, Command::Info, Command::Bench];
const TRAIN_BENCH: &[Command] = &[Command::Train, Command::Bench];
const BENCH_DOCTOR_STATUS: &[Command] = &[Command::Bench, Command::Doctor, Command::Status];
const STATUS: &[Command] = &[Command::Status];
const TRAIN_VAL_BENCH: &[Command] = &[Command::Train, Command::Val, Command::Bench];
const PREDICT: &[Command] = &[Command::Predict];
const DETECT: &[Command] = &[Command::Train, Command::Val, Command::Predict];
const COMPUTE: &[Command] = &[
    Command::Train,
    Command::Val,
    Command::Predict,
    Command::Bench,
];
const FOLDERS: &[Command] = &[
    Command::Train,
    Command::Val,
    Command::Predict,
    Command::Doctor,
    Command::Status,
];
const NETWORK: &[Command] = &[
    Command::Train,
    Command::Val,
    Command::Predict,
    Command::Info,
    Command::Bench,
];

const FRACTION: Kind = Kind::Number(Interval::closed(0.0, 1.0));
const MOMENTUM: Kind = Kind::Number(Interval::below(0.0, 1.0));
const GAIN: Kind = Kind::Number(Interval::closed(0.0, 1000.0));
const COUNT: Kind = from(1);

const fn from(min: i128) -> Kind {
    Kind::Integer {
        min,
        max: PRACTICALLY_UNLIMITED,
    }
}

const fn number(min: f64, max: f64) -> Kind {
    Kind::Number(Interval::closed(min, max))
}

/// On the command line it takes several words, as a shell makes them of a pattern without quotes.
pub const SOURCES: &str = "FILE|FOLDER|PATTERN";

use DefaultText::{Is, Unset};

options! {
    "Run" {
        "data" data: String = Is("shapes.yaml"), Kind::Text("FILE"), TRAIN_VAL_BENCH,
            "Description of the data set (YAML): its splits and the names of its classes";
        "model" model: String = Is("yolo26n.yaml"), Kind::Text("MODEL"), TRAIN_INFO_BENCH,
            "Network: yolo26, yolo11 or yolov8 with the size n, s, m, l or x, or a YAML file";
        "weights" weights: String = Unset("none; training starts from random weights"), Kind::Text("FILE"), DETECT,
            "Weights to validate, to predict with, or to start training from (weights/best.safetensors of a run); what fits is taken, classes by name";
        "freeze" freeze: Option<String> = Unset("nothing"), Kind::Layers, TRAIN,
            "Layers that stay as they are: N for the first N, numbers (0,1,5), or names (23.cv2); their batch norms do not learn either";
        "source" source: String = Unset("none; it must be given"), Kind::Text(SOURCES), PREDICT,
            "Images to look at: files, a folder, a pattern in quotes ('img/*.jpg') or a .txt list of files";
        "nc" nc: usize = Is("80"), Kind::Integer { min: 1, max: 65_536 }, INFO,
            "Number of classes of the network that is described";
        "epochs" epochs: usize = Is("100"), COUNT, TRAIN,
            "Times that training goes through all images";
        "patience" patience: usize = Is("100"), from(0), TRAIN,
            "Stop after this many epochs without a better mAP50-95 (0: never)";
        "batch" batch: usize = Is("16"), COUNT, COMPUTE,
            "Images in one pass through the network, over all devices together";
        "imgsz" imgsz: usize = Is("640"), Kind::ImageSize, NETWORK,
            "Side of the square that images are fitted into";
        "time" time: Option<f64> = Unset("no limit"), Kind::Number(Interval::above(0.0, 10_000.0)), TRAIN,
            "Hours of training: the number of epochs, and with it the schedule, follows from the time an epoch takes";
        "resume" resume: Option<String> = Unset("a new run"), Kind::OptionalText("RUN"), TRAIN,
            "Go on with a run (its folder, its name, or the newest of the project) from its last checkpoint";
        "save-period" save_period: i64 = Is("-1"), from(-1), TRAIN,
            "Keep a copy of the weights every so many epochs (-1 or 0: only best and last)";
        "save-steps" save_steps: usize = Is("0"), from(0), TRAIN,
            "Write a checkpoint every so many optimizer steps, besides the one after every epoch (0: only those)";
        "keep-checkpoints" keep_checkpoints: usize = Is("2"), COUNT, TRAIN,
            "Checkpoints that are kept, the newest ones";
        "seed" seed: u64 = Is("0"), Kind::Integer { min: 0, max: u64::MAX as i128 }, TRAIN,
            "Start of all random choices; equal seeds give equal runs";
        "project" project: String = Is("runs/detect"), Kind::Text("FOLDER"), FOLDERS,
            "Folder that runs are put into";
        "name" name: Option<String> = Unset("train, train-2, … (val, …, predict, …)"), Kind::Text("NAME"), DETECT,
            "Name of this run's folder; a run never overwrites another one";
        "json-log" json_log: bool = Is("false"), Kind::Flag, TRAIN,
            "Write a line of JSON for every event into events.jsonl in the run's folder";
        "max-restarts" max_restarts: usize = Is("0"), from(0), TRAIN,
            "With several ranks: start all of them again after a failure, from the last checkpoint, up to so many times";
        "elastic" elastic: Option<usize> = Unset("a rank that fails again and again ends the run"), COUNT, TRAIN,
            "With --max-restarts: go on with fewer ranks, at least so many, when the same one fails twice without a new checkpoint";
        "run" run: String = Unset("none; it must be given"), Kind::Text("RUN"), STATUS,
            "Run to show: its folder, or its name in the project (`yolo-train status RUN`)";
        "cfg" cfg: Option<String> = Unset("none"), Kind::Text("FILE"), DETECT,
            "YAML file with values of these options; the command line goes before it";
    }
    "Machine" {
        "device" device: String = Is("auto"), Kind::Device, COMPUTE,
            "Where to compute: auto, cpu, 0 or 0,1 (GPUs), -1 (an idle GPU), wgpu:0; cpu,cpu or cpu:N for several ranks on CPUs";
        "nnodes" nnodes: usize = Is("1"), Kind::Integer { min: 1, max: 1024 }, TRAIN_VAL_BENCH,
            "Machines of the run; yolo-train is started on each, with its own --node-rank and --device";
        "node-rank" node_rank: Option<usize> = Unset("must be given where --nnodes is above 1"), Kind::Integer { min: 0, max: 1023 }, TRAIN_VAL_BENCH,
            "Which of the machines this is, from 0";
        "master" master: Option<String> = Unset("must be given where --nnodes is above 1; torchrun and job scripts set MASTER_ADDR and MASTER_PORT"),
            Kind::Text("ADDR:PORT"), TRAIN_VAL_BENCH,
            "Where the first machine listens and the ranks meet";
        "token-file" token_file: Option<String> = Unset("the token in YOLO_TRAIN_TOKEN; the first machine makes one"), Kind::Text("FILE"), TRAIN_VAL_BENCH,
            "File with the secret that lets ranks of other machines in";
        "ports" ports: Option<String> = Unset("any that is free"), Kind::Text("FIRST-LAST"), TRAIN_VAL_BENCH,
            "Ports that ranks listen on for each other, one each";
        "join-timeout" join_timeout: f64 = Is("300"), Kind::Number(Interval::above(0.0, 1_000_000.0)), TRAIN_VAL_BENCH,
            "Seconds to wait at the start until all ranks have come";
        "timeout" timeout: f64 = Is("60"), Kind::Number(Interval::above(0.0, 1_000_000.0)), TRAIN_VAL_BENCH,
            "Seconds that a collective between ranks may take before the run ends with the name of the rank that is late";
        "workers" workers: Option<usize> = Unset("the smaller of 8 and the processor cores"),
            Kind::Integer { min: 0, max: 1024 }, COMPUTE,
            "Threads that read and augment images (0 counts as 1)";
        "threads" threads: Option<usize> = Unset("one per processor core"),
            Kind::Integer { min: 1, max: 1024 }, COMPUTE,
            "Threads that compute; the results do not depend on it";
        "amp" amp: Amp = Is("auto"), Kind::Choice(Amp::NAMES), TRAIN_BENCH,
            "Numbers of activations on GPUs: auto is bf16 where the GPU has it; weights, statistics and the loss stay float32";
        "tf32" tf32: bool = Is("false"), Kind::Flag, TRAIN_BENCH,
            "On GPUs with --amp off: convolutions round their float32 inputs to TF32";
        "deterministic" deterministic: bool = Is("false"), Kind::Flag, TRAIN_BENCH,
            "On GPUs: the same bits from run to run and on any number of ranks, as always on CPUs; slower";
        "lanes" lanes: Option<usize> = Unset("4, or the number of ranks where that is not 1, 2 or 4"),
            Kind::Integer { min: 1, max: 1024 }, TRAIN_BENCH,
            "Parts of a batch that sums are formed in; the results depend on it, not on threads or ranks";
        "sync-bn" sync_bn: bool = Is("true"), Kind::Flag, TRAIN_BENCH,
            "With several ranks: batch norms take the statistics of the whole batch, not of each rank's part";
        "bucket-mb" bucket_mb: f64 = Is("4.0"), Kind::Number(Interval::above(0.0, 4096.0)), TRAIN_BENCH,
            "With several ranks: gradients go over in parts of so many MiB, while the rest is computed";
        "steps" steps: usize = Is("10"), Kind::Integer { min: 1, max: 100_000 }, BENCH,
            "Training steps to time";
        "comm" comm: Option<String> = Unset("training steps are timed"), Kind::OptionalText("BYTES,…"), BENCH,
            "Time collectives between the ranks of --device in place of training steps, of these sizes or of 1 KiB to 64 MiB";
        "scaling" scaling: bool = Is("false"), Kind::Flag, BENCH,
            "Time training over the ranks of --device beside as many independent runs";
        "rounds" rounds: usize = Is("3"), Kind::Integer { min: 1, max: 1000 }, BENCH,
            "With --scaling: how often each way of training takes its turn";
        "json" json: bool = Is("false"), Kind::Flag, BENCH_DOCTOR_STATUS,
            "Print one JSON object instead of a table";
    }
    "Data" {
        "single-cls" single_cls: bool = Is("false"), Kind::Flag, TRAIN_VAL,
            "Treat all classes as one";
        "classes" classes: Option<Vec<usize>> = Unset("all"), Kind::Classes, DETECT,
            "Use only the objects of these classes";
        "fraction" fraction: f64 = Is("1.0"), Kind::Number(Interval::above(0.0, 1.0)), TRAIN,
            "Part of the training images that is used";
        "multi-scale" multi_scale: f64 = Is("0.0"), FRACTION, TRAIN,
            "Vary the image size from step to step by up to this part of it";
        "drop-last" drop_last: bool = Is("false"), Kind::Flag, TRAIN,
            "Leave out an epoch's last batch where it is not full";
        "skip-bad" skip_bad: bool = Is("false"), Kind::Flag, TRAIN_VAL,
            "Leave out bad labels and unreadable images, and count them, instead of stopping";
    }
    "Optimisation" {
        "optimizer" optimizer: Optimizer = Is("auto"), Kind::Choice(Optimizer::NAMES), TRAIN,
            "Rule of the steps; auto chooses it, the rate and the momentum that are not given";
        "lr0" lr0: f64 = Is("0.01"), Kind::Number(Interval::above(0.0, 10.0)), TRAIN,
            "Learning rate after warm-up, for nbs images a step";
        "lrf" lrf: f64 = Is("0.01"), FRACTION, TRAIN,
            "Learning rate at the end, as a part of lr0";
        "cos-lr" cos_lr: bool = Is("false"), Kind::Flag, TRAIN,
            "Lower the learning rate along a cosine instead of a line";
        "momentum" momentum: f64 = Is("0.937"), MOMENTUM, TRAIN,
            "Momentum of SGD and MuSGD, first beta of AdamW";
        "weight-decay" weight_decay: f64 = Is("0.0005"), FRACTION, TRAIN,
            "Weight decay; biases and normalisation have none";
        "warmup-epochs" warmup_epochs: f64 = Is("3.0"), number(0.0, 1000.0), TRAIN,
            "Length of warm-up, at most half the run";
        "warmup-momentum" warmup_momentum: f64 = Is("0.8"), MOMENTUM, TRAIN,
            "Momentum at the first step";
        "warmup-bias-lr" warmup_bias_lr: f64 = Is("0.1"), number(0.0, 10.0), TRAIN,
            "Learning rate of the biases at the first step";
        "nbs" nbs: usize = Is("64"), COUNT, TRAIN,
            "Images a step that the learning rate is meant for";
        "accumulate" accumulate: Option<usize> = Unset("nbs / batch, at least 1"), COUNT, TRAIN,
            "Batches whose gradients make one step";
        "lr-scaling" lr_scaling: LrScaling = Is("auto"), Kind::Choice(LrScaling::NAMES), TRAIN,
            "How the learning rate follows the images a step; auto: linear for SGD, sqrt for AdamW and Muon's part of MuSGD";
    }
    "Loss" {
        "box" "box" box_gain: f64 = Is("7.5"), GAIN, TRAIN,
            "Weight of the overlap of boxes";
        "cls" "cls" cls_gain: f64 = Is("0.5"), GAIN, TRAIN,
            "Weight of the classes";
        "dfl" "dfl" dfl_gain: f64 = Is("1.5"), GAIN, TRAIN,
            "Weight of the sides of boxes (their distribution, or their distance)";
        "class-weights" class_weights: Option<String> = Unset("all classes weigh the same"), Kind::Text("balanced|FILE"), TRAIN,
            "Weights of the classes in the loss: balanced (1 / sqrt of the instances, mean 1 over instances), or a YAML or JSON file (a map from names, or a list)";
    }
    "Augmentation" {
        "hsv-h" hsv_h: f64 = Is("0.015"), FRACTION, TRAIN,
            "Shift of the hue, as a part of the colour circle";
        "hsv-s" hsv_s: f64 = Is("0.7"), FRACTION, TRAIN,
            "Change of the saturation, as a part of it";
        "hsv-v" hsv_v: f64 = Is("0.4"), FRACTION, TRAIN,
            "Change of the brightness, as a part of it";
        "degrees" degrees: f64 = Is("0.0"), number(0.0, 180.0), TRAIN,
            "Rotation by up to so many degrees either way";
        "translate" translate: f64 = Is("0.1"), FRACTION, TRAIN,
            "Shift by up to this part of the image's side";
        "scale" scale: ScaleRange = Is("0.5"), Kind::Scale, TRAIN,
            "Change of size: X for multipliers from 1-X to 1+X, or the multipliers MIN,MAX";
        "shear" shear: f64 = Is("0.0"), number(0.0, 80.0), TRAIN,
            "Shear by up to so many degrees either way";
        "perspective" perspective: f64 = Is("0.0"), number(0.0, 0.001), TRAIN,
            "Strength of the perspective";
        "flipud" flipud: f64 = Is("0.0"), FRACTION, TRAIN,
            "Probability of turning an image upside down";
        "fliplr" fliplr: f64 = Is("0.5"), FRACTION, TRAIN,
            "Probability of mirroring an image left to right";
        "mosaic" mosaic: f64 = Is("1.0"), FRACTION, TRAIN,
            "Probability of putting four images together";
        "mixup" mixup: f64 = Is("0.0"), FRACTION, TRAIN,
            "Probability of blending two images";
        "cutmix" cutmix: f64 = Is("0.0"), FRACTION, TRAIN,
            "Probability of pasting a part of another image";
        "close-mosaic" close_mosaic: usize = Is("10"), from(0), TRAIN,
            "Last epochs without mosaic, mixup and cutmix (a short run keeps them for its first half)";
    }
    "Validation" {
        "val" val: bool = Is("true"), Kind::Flag, TRAIN,
            "Validate after every epoch";
        "split" split: SplitName = Is("val"), Kind::Choice(SplitName::NAMES), VAL,
            "Split of the data set that is validated on";
        "rect" rect: bool = Is("true"), Kind::Flag, DETECT,
            "Give each validation batch the shape of its images instead of a square";
        "conf" conf: Option<f64> = Unset("0.001; predict: 0.25"), FRACTION, DETECT,
            "Lowest score of a detection that counts";
        "iou" iou: f64 = Is("0.7"), FRACTION, DETECT,
            "Overlap above which suppression drops the weaker of two boxes";
        "max-det" max_det: usize = Is("300"), Kind::Integer { min: 1, max: 10_000 }, DETECT,
            "Most detections in an image";
        "end2end" end2end: bool = Is("false"), Kind::Flag, DETECT,
            "Use the head that needs no suppression, where the network has one";
        "plots" plots: bool = Is("true"), Kind::Flag, TRAIN_VAL,
            "Draw pictures: labels, batches, losses and figures over epochs, curves, confusion matrix";
    }
    "Prediction" {
        "save" save: bool = Is("true"), Kind::Flag, PREDICT,
            "Write the images with what was found drawn into them (JPEG)";
        "save-txt" save_txt: bool = Is("false"), Kind::Flag, PREDICT,
            "Write labels/NAME.txt: class, centre, width and height as parts of the image's sides";
        "save-conf" save_conf: bool = Is("false"), Kind::Flag, PREDICT,
            "Put the score at the end of each line of --save-txt";
        "save-json" save_json: bool = Is("false"), Kind::Flag, PREDICT,
            "Write predictions.json in the COCO results format";
        "save-crop" save_crop: bool = Is("false"), Kind::Flag, PREDICT,
            "Write each object as an image of its own: crops/CLASS/NAME.jpg";
        "show-labels" show_labels: bool = Is("true"), Kind::Flag, PREDICT,
            "Put the names of the classes to the boxes";
        "show-conf" show_conf: bool = Is("true"), Kind::Flag, PREDICT,
            "Put the scores to the boxes";
        "line-width" line_width: Option<usize> = Unset("follows the size of the image"), Kind::Integer { min: 1, max: 200 }, PREDICT,
            "Width of the boxes' lines in pixels; the letters follow it";
    }
}
