use super::*;
use crate::config::model::ModelSpec;
use crate::model::init;
use crate::model::weights::{Metadata, OWN_LICENCE, to_bytes};
use safetensors::SafeTensors;
use std::collections::HashMap;
use tempfile::TempDir;

fn names(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

fn spec(model: &str) -> ModelSpec {
    ModelSpec::resolve(model).unwrap()
}

/// A file with values that no starting state has.
fn trained(folder: &TempDir, model: &str, classes: &[String]) -> (Network, State, WeightsFile) {
    let network = Network::new(spec(model), classes.len());
    let mut state = init::init(&network, 77);
    for (i, v) in state.params.iter_mut().enumerate() {
        *v += 0.01 + (i % 13) as f32 * 0.001;
    }
    for (i, v) in state.buffers.iter_mut().enumerate() {
        *v += 0.5 + (i % 7) as f32 * 0.01;
    }
    let metadata = Metadata {
        category_ids: (1..=classes.len() as u64).collect(),
        imgsz: 320,
        licence: OWN_LICENCE.into(),
        model: model.into(),
        names: classes.into(),
        spec: network.spec.clone(),
        version: "1".into(),
    };
    let bytes = to_bytes(&network.layout, &state, &metadata).unwrap();
    let path = folder.path().join("w.safetensors");
    std::fs::write(&path, bytes).unwrap();
    (network, state, WeightsFile::open(&path).unwrap())
}

/// Network, starting state, state after the transfer.
fn start(file: &WeightsFile, model: &str, classes: &[String]) -> (Network, State, State, Transfer) {
    let network = file.network_for(&spec(model), classes.len()).unwrap();
    let before = init::init(&network, 1);
    let mut after = before.clone();
    let t = file.transfer(&network, classes, &mut after).unwrap();
    assert_eq!(t.taken + t.left.len(), t.all);
    (network, before, after, t)
}

fn param<'a>(n: &Network, s: &'a State, name: &str) -> &'a [f32] {
    let p = n.layout.params.iter().find(|p| p.name == name).unwrap();
    &s.params[p.range()]
}

#[test]
fn equal_networks_take_everything() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["yolo26n", "yolov8n"] {
        let classes = names("a b c");
        let (_, state, file) = trained(&folder, model, &classes);
        let (network, _, after, t) = start(&file, model, &classes);
        assert_eq!((t.taken, t.left.len()), (t.all, 0));
        assert_eq!((after.params, after.buffers), (state.params, state.buffers));
        assert_eq!(network.spec.class_width, None);
        let line = t.line("w", &classes);
        assert_eq!(
            line,
            format!(
                "w: {0} of {0} tensors taken; classes by name: 3 of 3",
                t.all
            )
        );
    }
}

#[test]
fn rows_of_classes_follow_their_names_and_new_classes_keep_their_start() {
    let folder = tempfile::tempdir().unwrap();
    let (old, state, file) = trained(&folder, "yolo26n", &names("cat dog Bird cow"));
    let classes = names("bird zebra cat");
    let (network, before, after, t) = start(&file, "yolo26n", &classes);
    assert_eq!(t.classes, ClassMatch::Names(vec![Some(2), None, Some(0)]));
    for head in ["", "one2one_"] {
        for level in 0..3 {
            for what in ["weight", "bias"] {
                let name = format!("model.23.{head}cv3.{level}.2.{what}");
                let (was, new) = (param(&old, &state, &name), param(&network, &after, &name));
                let fresh = param(&network, &before, &name);
                for i in 0..new.len() / 3 {
                    assert_eq!(new[i * 3], was[i * 4 + 2], "bird");
                    assert_eq!(new[i * 3 + 1], fresh[i * 3 + 1], "zebra");
                    assert_eq!(new[i * 3 + 2], was[i * 4], "cat");
                }
            }
        }
    }
    assert_eq!(t.left, vec![]);
    let line = t.line("w", &classes);
    assert!(
        line.ends_with("classes by name: 2 of 3 (bird, cat), new are zebra"),
        "{line}"
    );
}

#[test]
fn foreign_classes_leave_the_outputs_alone_and_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, file) = trained(&folder, "yolo26n", &names("a b c"));
    let classes = names("x y");
    let (network, before, after, t) = start(&file, "yolo26n", &classes);
    assert_eq!(t.left.len(), 12, "2 heads, 3 levels, weight and bias");
    assert!(t.left.iter().all(|l| l.reason == Reason::Classes));
    let name = "model.23.cv3.0.2.weight";
    assert_eq!(
        param(&network, &before, name),
        param(&network, &after, name)
    );
    let line = t.line("w", &classes);
    assert!(
        line.contains(
            "classes by name: 0 of 2; not taken (12): model.23.cv3.0.2.weight (other classes), "
        ),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
}

#[test]
fn class_branches_keep_the_width_of_the_file_and_can_be_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["yolo26n", "yolov8n", "yolo11n"] {
        let many: Vec<String> = (0..80).map(|i| format!("c{i}")).collect();
        let (_, _, file) = trained(&folder, model, &many);
        let classes = names("c7 new");
        let (network, _, after, t) = start(&file, model, &classes);
        assert_eq!(network.spec.class_width, Some(80), "{model}");
        assert_eq!(t.left, vec![], "all hidden layers are taken");
        // what is saved says how wide it is, and says nothing where the width is the usual one
        let json = serde_json::to_string(&network.spec).unwrap();
        let again: ModelSpec = serde_json::from_str(&json).unwrap();
        assert_eq!(Network::new(again, 2).layout, network.layout);
        assert!(
            !serde_json::to_string(&spec(model))
                .unwrap()
                .contains("class_width")
        );
        assert!(after.params.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn another_scale_or_family_gives_what_fits_at_the_usual_width() {
    let folder = tempfile::tempdir().unwrap();
    let many: Vec<String> = (0..80).map(|i| format!("c{i}")).collect();
    let (_, _, file) = trained(&folder, "yolo26s", &many);
    let classes = names("c7 new");
    let (network, before, after, t) = start(&file, "yolo26n", &classes);
    assert_eq!(network.spec.class_width, None);
    assert!(0 < t.taken && t.taken < t.all);
    let line = t.line("w", &classes);
    assert!(line.contains(" more") && line.len() < 1200, "{line}");
    // what did not fit is as it was
    for l in &t.left {
        if let Some(p) = network.layout.params.iter().find(|p| p.name == l.name) {
            assert_eq!(
                before.params[p.range()],
                after.params[p.range()],
                "{}",
                l.name
            );
        }
    }
    let (_, _, _, t) = start(&file, "yolov8n", &classes);
    assert!(t.taken < t.all);
}

/// The tensors of our file as another program writes them: other names before, half precision, no metadata of ours.
fn foreign(folder: &TempDir, prefix: &str, half: bool, metadata: &[(&str, &str)]) -> WeightsFile {
    let bytes = std::fs::read(folder.path().join("w.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let entries: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, v)| {
            let name = format!("{prefix}{name}");
            if !half || v.dtype() != Dtype::F32 {
                return (name, v.dtype(), v.shape().to_vec(), v.data().to_vec());
            }
            let data = floats(&v).unwrap();
            let data = data
                .iter()
                .flat_map(|&v| half::f16::from_f32(v).to_le_bytes());
            (name, Dtype::F16, v.shape().to_vec(), data.collect())
        })
        .collect();
    let views = entries
        .iter()
        .map(|(n, t, s, d)| (n.clone(), TensorView::new(*t, s.clone(), d).unwrap()));
    let metadata: HashMap<_, _> = metadata
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    let bytes = safetensors::serialize(views, Some(metadata)).unwrap();
    let path = folder.path().join("foreign.safetensors");
    std::fs::write(&path, bytes).unwrap();
    WeightsFile::open(&path).unwrap()
}

#[test]
fn files_of_other_programs_are_taken_by_their_published_names() {
    let folder = tempfile::tempdir().unwrap();
    let classes = names("a b c");
    let (_, state, _) = trained(&folder, "yolo26n", &classes);
    let file = foreign(&folder, "model.", true, &[("format", "pt")]);
    let (_, _, after, t) = start(&file, "yolo26n", &classes);
    assert_eq!(t.taken, t.all);
    assert_eq!(t.classes, ClassMatch::UnnamedButAsMany);
    assert_eq!(t.licence, "unknown licence of foreign.safetensors");
    assert!(t.line("w", &classes).contains("names no classes"));
    for (a, s) in after.params.iter().zip(&state.params) {
        assert!((a - s).abs() <= 1e-3 * s.abs() + 1e-6, "{a} {s}");
    }
    // another number of classes: nothing says which is which
    let file = foreign(&folder, "", false, &[("license", "Apache-2.0")]);
    let (_, _, _, t) = start(&file, "yolo26n", &names("a b"));
    assert_eq!(t.classes, ClassMatch::Unnamed);
    assert_eq!((t.left.len(), t.licence.as_str()), (12, "Apache-2.0"));
}

#[test]
fn the_licence_of_our_own_files_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, file) = trained(&folder, "yolo26n", &names("a"));
    assert_eq!(start(&file, "yolo26n", &names("a")).3.licence, OWN_LICENCE);
}

#[test]
fn a_file_with_nothing_that_fits_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    trained(&folder, "yolo26n", &names("a"));
    let path = folder.path().join("other.safetensors");
    let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    std::fs::write(
        &path,
        safetensors::serialize([("encoder.x", view)], None).unwrap(),
    )
    .unwrap();
    let file = WeightsFile::open(&path).unwrap();
    let network = file.network_for(&spec("yolo26n"), 2).unwrap();
    let mut state = init::init(&network, 0);
    let e = file
        .transfer(&network, &names("a b"), &mut state)
        .unwrap_err();
    let text = e.to_string();
    assert!(matches!(e, WeightsError::NothingFits { .. }));
    assert!(
        text.contains("encoder.x") && text.contains("model.0.conv.weight"),
        "{text}"
    );
}

#[test]
fn numbers_that_are_not_finite_are_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let classes = names("a b");
    let (network, mut state, _) = trained(&folder, "yolo26n", &classes);
    state.params[3] = f32::NAN;
    let metadata = Metadata {
        category_ids: vec![1, 2],
        imgsz: 320,
        licence: "MIT".into(),
        model: "yolo26n".into(),
        names: classes.clone(),
        spec: network.spec.clone(),
        version: "1".into(),
    };
    let path = folder.path().join("nan.safetensors");
    std::fs::write(&path, to_bytes(&network.layout, &state, &metadata).unwrap()).unwrap();
    let file = WeightsFile::open(&path).unwrap();
    let (_, _, after, t) = start(&file, "yolo26n", &classes);
    assert_eq!(t.left.len(), 1);
    assert_eq!(t.left[0].to_string(), "model.0.conv.weight (not finite)");
    assert!(after.params.iter().all(|v| v.is_finite()));
    assert_eq!(t.licence, "MIT");
}
