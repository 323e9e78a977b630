"""Results of functions that make a model: each stands for its model wherever a function takes one."""

from typing import TYPE_CHECKING, Any

from vitkit.system.functions.results import ModelResult

if TYPE_CHECKING:
    import vitkit


class MadeModel(ModelResult):
    """A result that has made a model. Every function takes it as MODEL, and as a path.

    made = vitkit.finetune("photos/")
    made.predict("holiday.jpg")
    vitkit.compare(made, "runs/other", "photos/")
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's class names."""
        made = self.made
        if not isinstance(made, str):
            return made.labels
        from vitkit.weights.store import load

        return load(made, quiet=True).labels

    def predict(self, *images: Any, **settings: Any) -> "vitkit.prediction.Predictions":
        """The most likely classes of images, as `vitkit.predict(made, *images, **settings)` gives them."""
        import vitkit

        return vitkit.predict(self.made, *images, **settings)

    def evaluate(self, data: Any, **settings: Any) -> "vitkit.evaluation.Evaluation":
        """What the model reaches on images, as `vitkit.evaluate(made, data, **settings)` measures it."""
        import vitkit

        return vitkit.evaluate(self.made, data, **settings)

    def export(self, output: Any, **settings: Any) -> "vitkit.exporting.ExportedModel":
        """The model as a file for other programs, as `vitkit.export(made, output=output, **settings)` writes
        it."""
        import vitkit

        return vitkit.export(self.made, output=output, **settings)

    def __fspath__(self) -> str:
        """Where the model was written. Raises TypeError for one that is in memory alone."""
        made = self.made
        if not isinstance(made, str):
            raise TypeError(
                "this model was not saved; vitkit.save(made.classifier, 'weights') does that"
            )
        return made
