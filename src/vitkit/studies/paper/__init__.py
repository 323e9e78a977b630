"""The paper's studies, a file each."""

from vitkit.studies.paper import (
    axial,
    compute,
    data_size,
    optimizer,
    pooling,
    positions,
    resolution,
    self_supervision,
    shape,
    speed,
    transfer,
)
from vitkit.studies.study import Study

_ALL = (
    data_size.STUDY,
    compute.STUDY,
    shape.STUDY,
    pooling.STUDY,
    positions.STUDY,
    optimizer.STUDY,
    axial.STUDY,
    self_supervision.STUDY,
    transfer.STUDY,
    resolution.STUDY,
    speed.STUDY,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}
"""By name, in the order of `vitkit study`."""

__all__ = ["STUDIES"]
