"""The commands as functions of the same names: they take settings and return a frozen value."""

from vitkit.system.lazy import lazily

_FILES = {
    "arguments": "check_folder check_sheet pick_precision read_shard short_name word_of",
    "computing": (
        "any_runtime_of_file classifier_of classifier_on classifier_with_head precision_of "
        "runtime_of_file runtime_of_model"
    ),
    "data.pack": "PackedData pack training_step",
    "data.review": "Reviewed review",
    "data.stats": "Statistics stats",
    "diagnosis.bench": "Benchmark bench",
    "diagnosis.doctor": "Diagnosis doctor",
    "evaluation.evaluate": "evaluate",
    "evaluation.features": "WrittenFeatures features",
    "evaluation.fewshot": "FewshotAccuracy fewshot",
    "evaluation.outcome": "Evaluation",
    "evaluation.probe": "Probed probe",
    "files.convert": "Converted check_tolerance convert",
    "files.export": "ExportedModel export",
    "files.faster": "FasterModel faster",
    "files.push": "Pushed push",
    "files.show": "Description show",
    "files.zoo": "ModelList PublishedList list_models",
    "grids.study": "Studies StudyTable study study_description",
    "grids.suite": "SuiteTable suite",
    "inspection.compare": "ComparedModels ComparedRuns compare",
    "inspection.inspect": "Figure Inspected inspect",
    "prediction.batch": "BatchState batch",
    "prediction.output": "Predictions",
    "prediction.predict": "predict",
    "prediction.sort": "sort",
    "prediction.watch": "watch",
    "serving.app": "ClosedPage app",
    "serving.serve": "Ended open_model serve",
    "settings": "MISSING Option default_of docstrings is_word mark option_name options",
    "sources": (
        "As as_words broken_images loaded_for_features parts_of splits_to_learn_from "
        "without_broken without_unknown"
    ),
    "teaching.label": "Labelled label",
    "teaching.teach": "Lesson teach",
    "training.finetune": "beginning finetune",
    "training.plan": "Planned plan",
    "training.quick": "Finetuned",
    "training.report": "WrittenReport report",
    "training.train": "Trained recipe_on_images regularisation train",
    "words": "ARCHIVES DATA IMAGE_FILES MODEL is_images is_model kind_of",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
