"""Static figures: every function returns a matplotlib ``Figure`` and saves it if ``path`` is given.

They need matplotlib (``pip install 'regard[train]'``), open no window and do not touch pyplot's state. The colors suit
readers with color vision deficiency, and no information is in the color alone. :mod:`regard.figures.style` has what the
figures share, for figures of your own.
"""

from regard.figures._charts import bars as bars
from regard.figures._charts import curves as curves
from regard.figures._charts import matrices as matrices
from regard.figures._gaussian_heads import heads as heads
from regard.figures._gelu import gelu as gelu
from regard.figures._head_paths import head_paths as head_paths
from regard.figures._position_table import absolute_positions as absolute_positions
from regard.figures._relative_positions import relative_positions as relative_positions
from regard.figures._sharpness_limit import limit as limit
