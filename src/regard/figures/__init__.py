"""Pictures of attention: every function returns a matplotlib ``Figure``, and saves it where a path is given.

They need matplotlib (``pip install 'regard[train]'``), open no window and leave pyplot's state alone. Colors are told
apart by people who see colors differently, and nothing is said by color alone.
"""

from regard.figures._attention import attention as attention
from regard.figures._gelu import gelu as gelu
from regard.figures._heads import heads as heads
from regard.figures._learning_curves import learning_curves as learning_curves
from regard.figures._learning_curves import length_sweep as length_sweep
from regard.figures._learning_curves import pruning_curve as pruning_curve
from regard.figures._limit import limit as limit
from regard.figures._positions import absolute_positions as absolute_positions
from regard.figures._relative import relative_positions as relative_positions
from regard.figures._sample_attention import alignment as alignment
from regard.figures._sample_attention import image_attention as image_attention
