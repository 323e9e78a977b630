"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.recipes.finetuning import Like as Like
from vitkit.recipes.finetuning import PRESETS as PRESETS
from vitkit.recipes.finetuning import choose_pretrained as choose_pretrained
from vitkit.recipes.finetuning import finetune as finetune
from vitkit.recipes.named import RECIPES as RECIPES
from vitkit.recipes.named import listing as listing
from vitkit.recipes.named import recipe as recipe
from vitkit.recipes.named import with_model as with_model
from vitkit.recipes.paper import facts_of as facts_of
from vitkit.recipes.small import digits as digits
from vitkit.recipes.small import scratch as scratch
from vitkit.recipes.table_4 import HUB as HUB
from vitkit.recipes.table_4 import ON_HUB as ON_HUB
from vitkit.recipes.table_4 import SIDES as SIDES
from vitkit.recipes.table_4 import SWEEP as SWEEP
from vitkit.recipes.table_4 import TABLE_4 as TABLE_4
from vitkit.recipes.table_4 import UNCROPPED as UNCROPPED
from vitkit.recipes.table_4 import UNMIRRORED as UNMIRRORED
from vitkit.recipes.table_4 import bit_crops as bit_crops
from vitkit.recipes.table_4 import few_pixels as few_pixels
from vitkit.recipes.table_4 import vtab_task as vtab_task
