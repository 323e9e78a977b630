"""The paper's studies, by theme."""

from vitkit.apps.studies.paper import (
    ablations,
    architecture,
    compute,
    data_size,
    image_size,
    pretraining,
)
from vitkit.apps.studies.protocol import Study

_ALL = (
    data_size.DATA_SIZE,
    compute.COMPUTE,
    architecture.SHAPE,
    ablations.POOLING,
    ablations.POSITIONS,
    ablations.OPTIMIZER,
    architecture.AXIAL,
    pretraining.SELF_SUPERVISION,
    pretraining.TRANSFER,
    image_size.RESOLUTION,
    image_size.SPEED,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}
"""The studies by name, in the order of `vitkit study`."""

__all__ = ["STUDIES"]
