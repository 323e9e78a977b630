"""What bfloat16 costs in accuracy: the same model and images in float32 and in bfloat16 (autocast).

    python benchmarks/precision.py --model WEIGHTS --images imagenet_val500.parquet --output FILE

`vitkit evaluate --precision ...` gives the same accuracies and losses; here are the single answers beside them.
"""

from pathlib import Path

import record
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitkit.data import eval_batches, open_source
from vitkit.weights import Classifier, load

PACKAGES = ("torch", "pillow")
BATCH = 50
PRECISIONS = ("float32", "bfloat16")


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True, help="photographs with the model's classes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    result = record.about(__doc__.partition("\n")[0], PACKAGES)

    classifier = load(options.model, quiet=True).for_inference()
    logits, labels = logits_of(classifier, options.images)
    exact = logits["float32"]
    result |= {"photographs": len(labels), "results": {}}
    for precision, each in logits.items():
        top = each.topk(5).indices  # (N, 5)
        right = top == labels[:, None]
        result["results"][precision] = {
            "top1": round(100 * right[:, 0].double().mean().item(), 2),
            "top5": round(100 * right.any(1).double().mean().item(), 2),
            "loss": round(cross_entropy(each, labels).item(), 4),
            "same answers": int((top[:, 0] == exact.argmax(1)).sum()),
            "largest difference of a logit": round((each - exact).abs().max().item(), 3),
        }
        print(precision, result["results"][precision])
    record.write(result, options.output)
    return result


@torch.inference_mode()
def logits_of(classifier: Classifier, data: str) -> tuple[dict[str, Tensor], Tensor]:
    """The logits in each precision, (N, K) each, and the labels, (N,)."""
    logits = {precision: [] for precision in PRECISIONS}
    labels = []
    for batch in eval_batches(open_source(data), classifier.preprocessing, BATCH, 0):
        for precision, rows in logits.items():
            with record.computing(precision):
                rows.append(classifier.logits(batch.images)[batch.real].float())
        labels.append(batch.targets[batch.real])
    return {precision: torch.cat(rows) for precision, rows in logits.items()}, torch.cat(labels)


if __name__ == "__main__":
    main()
