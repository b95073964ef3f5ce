"""Static figures: every function returns a matplotlib ``Figure`` and saves it if ``path`` is given.

They need matplotlib (``pip install 'regard[train]'``), open no window and do not touch pyplot's state. The colors suit
readers with color vision deficiency, and color never carries information alone. :mod:`regard.figures.style` has the
shared parts, for figures of your own.
"""

from regard.figures._attention_map import attention as attention
from regard.figures._charts import bars as bars
from regard.figures._charts import curves as curves
from regard.figures._charts import matrices as matrices
from regard.figures._color_scale import POOLS as POOLS
from regard.figures._color_scale import Pool as Pool
from regard.figures._color_scale import add_title as add_title
from regard.figures._gaussian_heads import heads as heads
from regard.figures._gelu import gelu as gelu
from regard.figures._head_paths import head_paths as head_paths
from regard.figures._learning_curves import learning_curves as learning_curves
from regard.figures._learning_curves import length_sweep as length_sweep
from regard.figures._learning_curves import pruning_curve as pruning_curve
from regard.figures._position_table import absolute_positions as absolute_positions
from regard.figures._relative_positions import relative_positions as relative_positions
from regard.figures._sample_attention import alignment as alignment
from regard.figures._sample_attention import image_attention as image_attention
from regard.figures._sharpness_limit import limit as limit
from regard.figures._weights import weight_image as weight_image
from regard.figures._weights import weight_map as weight_map
from regard.figures._weights import weight_maps as weight_maps
from regard.figures._weights import weight_segments as weight_segments
