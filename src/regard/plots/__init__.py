"""Pictures of attention: every function returns a matplotlib ``Figure``, and saves it where a path is given.

They need matplotlib (``pip install 'regard[train]'``), open no window and leave pyplot's state alone. Colours are told
apart by people who see colours differently, and nothing is said by colour alone.
"""

from regard.plots._gelu import gelu as gelu
from regard.plots._heads import heads as heads
from regard.plots._limit import limit as limit
from regard.plots._positions import absolute_positions as absolute_positions
from regard.plots._relative import relative_positions as relative_positions
