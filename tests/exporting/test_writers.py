"""The names of what an exported file answers, by which other programs ask for it."""

from dataclasses import replace

import pytest

from vitkit.data import Preprocessing
from vitkit.runtimes import Exported
from vitkit.runtimes.exported import ExportedLimits
from vitkit.runtimes.graphs.writers import ATTENTION, output_names


@pytest.mark.parametrize("pictures, answer", [(False, "logits"), (True, "probabilities")])
def test_unknown_images_and_attention_are_outputs_of_their_own(pictures, answer):
    bare = Exported(Preprocessing((16, 24)), ("ant", "wasp"), "softmax", takes_pictures=pictures)
    limited = replace(bare, limits=ExportedLimits((0.1,), 0.05, 0.95))
    assert output_names(bare) == [answer]
    assert output_names(limited) == [answer, "strangeness"]
    assert output_names(bare, map_output=ATTENTION) == [answer, "attention"]
    assert output_names(limited, map_output=ATTENTION) == [answer, "strangeness", "attention"]
