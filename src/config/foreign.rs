//! Option names that users of other trainers know and that do not exist here: each is answered with what to do instead of
//! "unknown option".

const ALWAYS: &str = "not needed:";
const LATER: &str = "not supported yet:";

/// (name in snake case, kind of answer, the answer).
const FOREIGN: &[(&str, &str, &str)] = &[
    // Run
    ("task", ALWAYS, "this program trains detectors only"),
    (
        "mode",
        ALWAYS,
        "the first word says what to do (train, val, predict, info)",
    ),
    (
        "save_dir",
        ALWAYS,
        "--project and --name say where a run goes",
    ),
    ("exist_ok", ALWAYS, "a run never overwrites another one"),
    ("cache", LATER, "images are read from disk"),
    (
        "pretrained",
        ALWAYS,
        "--weights says what training starts from",
    ),
    ("cls_remap", ALWAYS, "--weights matches classes by name"),
    ("verbose", ALWAYS, "the whole plan is always printed"),
    ("half", LATER, "validation and prediction use 32-bit floats"),
    (
        "quantize",
        LATER,
        "validation and prediction use 32-bit floats",
    ),
    ("profile", LATER, "leave it out"),
    ("compile", ALWAYS, "the program is compiled already"),
    (
        "channels_last",
        ALWAYS,
        "the layout in memory is always channels last",
    ),
    // Loss
    ("cls_pw", ALWAYS, "--class-weights balanced does it"),
    ("distill_model", LATER, "distillation"),
    ("dis", LATER, "distillation"),
    (
        "pose",
        ALWAYS,
        "it belongs to keypoints, and this program trains detectors only",
    ),
    (
        "kobj",
        ALWAYS,
        "it belongs to keypoints, and this program trains detectors only",
    ),
    (
        "rle",
        ALWAYS,
        "it belongs to keypoints, and this program trains detectors only",
    ),
    (
        "angle",
        ALWAYS,
        "it belongs to rotated boxes, and this program trains detectors only",
    ),
    (
        "dlog",
        ALWAYS,
        "it belongs to another task, and this program trains detectors only",
    ),
    (
        "dgrad",
        ALWAYS,
        "it belongs to another task, and this program trains detectors only",
    ),
    (
        "dlam",
        ALWAYS,
        "it belongs to another task, and this program trains detectors only",
    ),
    (
        "overlap_mask",
        ALWAYS,
        "it belongs to masks, and this program trains detectors only",
    ),
    (
        "mask_ratio",
        ALWAYS,
        "it belongs to masks, and this program trains detectors only",
    ),
    (
        "retina_masks",
        ALWAYS,
        "it belongs to masks, and this program trains detectors only",
    ),
    (
        "dropout",
        ALWAYS,
        "it belongs to classification, and this program trains detectors only",
    ),
    // Augmentation
    ("bgr", LATER, "images are always RGB"),
    ("copy_paste", LATER, "it needs outlines of the objects"),
    ("copy_paste_mode", LATER, "it needs outlines of the objects"),
    (
        "auto_augment",
        ALWAYS,
        "it belongs to classification, and this program trains detectors only",
    ),
    (
        "erasing",
        ALWAYS,
        "it belongs to classification, and this program trains detectors only",
    ),
    (
        "augmentations",
        LATER,
        "the augmentations have an option each",
    ),
    // Validation
    (
        "nms",
        ALWAYS,
        "--end2end selects the head that needs no suppression",
    ),
    ("agnostic_nms", LATER, "suppression is within each class"),
    ("augment", LATER, "validation at several sizes"),
    (
        "save_hybrid",
        LATER,
        "labels and predictions are in separate files",
    ),
    ("dnn", ALWAYS, "it belongs to exported networks"),
    // Prediction
    ("vid_stride", LATER, "prediction on videos"),
    ("stream_buffer", LATER, "prediction on videos"),
    ("visualize", LATER, "pictures of features"),
    ("embed", LATER, "feature vectors"),
    ("show", ALWAYS, "predict writes its pictures into a folder"),
    ("save_frames", LATER, "prediction on videos"),
    ("show_boxes", ALWAYS, "--save false leaves the pictures out"),
    // Export and tracking
    ("format", LATER, "export; the weights are safetensors files"),
    ("keras", LATER, "export; the weights are safetensors files"),
    (
        "optimize",
        LATER,
        "export; the weights are safetensors files",
    ),
    ("int8", LATER, "export; the weights are safetensors files"),
    (
        "dynamic",
        LATER,
        "export; the weights are safetensors files",
    ),
    (
        "simplify",
        LATER,
        "export; the weights are safetensors files",
    ),
    ("opset", LATER, "export; the weights are safetensors files"),
    (
        "workspace",
        LATER,
        "export; the weights are safetensors files",
    ),
    ("tracker", LATER, "tracking"),
];

/// Why an option that other trainers have (kebab or snake case) does not exist here; `None` for all other names.
pub fn reason(name: &str) -> Option<String> {
    let key = name.replace('-', "_");
    FOREIGN
        .iter()
        .find(|(foreign, _, _)| *foreign == key)
        .map(|(_, answer, why)| format!("{answer} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::find;

    #[test]
    fn no_option_of_ours_is_called_foreign_and_no_name_is_there_twice() {
        for (position, (name, _, _)) in FOREIGN.iter().enumerate() {
            assert!(find(name).is_none(), "{name}");
            assert!(
                FOREIGN[..position]
                    .iter()
                    .all(|(other, _, _)| other != name),
                "{name}"
            );
        }
    }

    #[test]
    fn both_spellings_are_known() {
        assert_eq!(reason("exist-ok"), reason("exist_ok"));
        assert_eq!(
            reason("exist_ok").unwrap(),
            "not needed: a run never overwrites another one"
        );
        assert_eq!(reason("epoch"), None);
    }

    /// SPEC section 6: every training and validation option of the incumbent is either here or answered.
    #[test]
    fn every_argument_of_the_incumbent_is_here_or_answered() {
        let listed = "model data epochs time patience batch imgsz save save_period cache device workers project name exist_ok \
            pretrained cls_remap optimizer verbose seed deterministic single_cls classes rect cos_lr close_mosaic resume amp \
            fraction profile freeze multi_scale compile channels_last val plots quantize cfg lr0 lrf momentum weight_decay \
            warmup_epochs warmup_momentum warmup_bias_lr nbs box cls cls_pw dfl distill_model dis pose kobj rle angle dlog dgrad \
            dlam overlap_mask mask_ratio dropout hsv_h hsv_s hsv_v degrees translate scale shear perspective flipud fliplr bgr \
            mosaic mixup cutmix copy_paste copy_paste_mode auto_augment erasing split save_json conf iou max_det dnn nms source \
            vid_stride stream_buffer visualize augment agnostic_nms retina_masks embed show save_frames save_txt save_conf \
            save_crop show_labels show_conf show_boxes line_width format optimize dynamic simplify opset workspace tracker";
        for name in listed.split_whitespace() {
            assert!(find(name).is_some() != reason(name).is_some(), "{name}");
        }
    }
}
