"""Evaluators: they measure how good a model is on images, as metrics with a unit."""

from vitkit.system.lazy import lazily

_FILES = {
    "benchmarks.corruptions": (
        "COMMON Corruption MEMORY Robustness SEVERITIES check_can_corrupt corrupt prepare_once "
        "robustness uncropped"
    ),
    "benchmarks.imagenet": "check_names find_real read_real real_accuracy",
    "benchmarks.imagenet_c": (
        "ALEXNET is_imagenet_c open_corruption open_imagenet_c relative_error robustness_on_files"
    ),
    "benchmarks.labels": "align label_notes unknown",
    "benchmarks.named": "IMAGENET_C Named SETS SetName open_named open_named_parts",
    "evaluator": "Eval Evaluator Part Subject batches_of collect learns summed",
    "evaluators": "EVALUATORS EvaluatorName USUAL",
    "metrics.answers": (
        "Answers Kept answers answers_of_logits check_classes in_groups read_answers write_answers"
    ),
    "metrics.calibration": "calibrate chance_sentence check_can_calibrate fit_temperature",
    "metrics.classification": (
        "Accuracy Classification accuracy class_scores classification confusion_matrix "
        "balanced_weights most_confused unbalanced weakest"
    ),
    "metrics.metric": (
        "COUNT Metric NATS SHARE SQUARED_ERROR Unit group_count number_of plain_number share_right wilson"
    ),
    "metrics.other_targets": "Errors MeanAveragePrecision losses_of_known",
    "metrics.paired": "agreement exchanged groups_if_any mcnemar paired tango test_of",
    "metrics.ties": "TIED tied_answers",
    "metrics.weighted": "share_of_answers",
    "probes.closed_forms": "Moments ridge row_products targets",
    "probes.features": "BATCH Features WRITERS add_weights architecture features",
    "probes.fewshot": (
        "FIXED Fewshot Form GRID WHOLE best_ranked draw interval predictions shot_notes"
    ),
    "probes.folds": "balanced_folds",
    "probes.left_out": "LeaveOut distilled",
    "probes.neighbours": "Neighbours voted",
    "probes.probe": "FIT Method Probe known_classes left_out_quality probe quality with_probe",
    "probes.probing": "Measured NUMBER Probing learnable several_probe",
    "probes.teaching": (
        "Memory NewExamples backbone_digest changed digest_of fit forgotten has_memory "
        "read_memory remembered remove_memory rounded save_taught undone write_memory"
    ),
    "probes.unknown": (
        "ENOUGH REJECTED conformal_limit fit_limits fit_unknown last_token "
        "left_out_distances open_classes whitened_classes"
    ),
    "reports.label_noise": "shown_classes wrong_labels",
    "reports.page": (
        "Look MISTAKES calibration_sentence confusion_section disagreement_tiles headline "
        "metrics_table mistake_tiles mistakes_section write_report"
    ),
    "reports.report": "Report mistakes report",
    "reports.review": "Finding KINDS outliers unusual_looks write_review",
    "label_preservation": "Survival Trial surviving surviving_in_pixels",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
