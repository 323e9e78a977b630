"""Results of functions that make a model. Such a result is accepted wherever a function takes a model."""

from typing import TYPE_CHECKING, Any

from vitkit.system.functions.results import ModelResult

if TYPE_CHECKING:
    import vitkit


class MadeModel(ModelResult):
    """A result that has made a model. Every function accepts it as a model, and as a path.

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
        """Predict the most likely classes of images: see `vitkit.predict(made, *images, **settings)`."""
        import vitkit

        return vitkit.predict(self.made, *images, **settings)

    def evaluate(self, data: Any, **settings: Any) -> "vitkit.evaluation.Evaluation":
        """Evaluate the model on images: see `vitkit.evaluate(made, data, **settings)`."""
        import vitkit

        return vitkit.evaluate(self.made, data, **settings)

    def export(self, output: Any, **settings: Any) -> "vitkit.exporting.ExportedModel":
        """Export the model for other programs: see `vitkit.export(made, output=output, **settings)`."""
        import vitkit

        return vitkit.export(self.made, output=output, **settings)

    def __fspath__(self) -> str:
        """The path of the model. Raises TypeError for one that is only in memory."""
        made = self.made
        if not isinstance(made, str):
            raise TypeError(
                "this model was not saved; vitkit.save(made.classifier, 'weights') does that"
            )
        return made
