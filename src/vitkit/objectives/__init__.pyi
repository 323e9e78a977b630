from .autoencoder import MaskedAutoencoder as MaskedAutoencoder
from .distillation import SelfDistillation as SelfDistillation
from .masked import MaskedPatches as MaskedPatches
from .objective import Learner as Learner
from .objective import Objective as Objective
from .segmentation import Segmentation as Segmentation
from .supervised import Supervised as Supervised
