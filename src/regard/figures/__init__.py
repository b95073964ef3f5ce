"""Pictures of attention: every function returns a matplotlib ``Figure``, and saves it where a path is given.

They need matplotlib (``pip install 'regard[train]'``), open no window and leave pyplot's state alone. Colors are told
apart by people who see colors differently, and nothing is said by color alone.
"""

from regard.figures._gelu import gelu as gelu
from regard.figures._heads import heads as heads
from regard.figures._limit import limit as limit
from regard.figures._positions import absolute_positions as absolute_positions
from regard.figures._relative import relative_positions as relative_positions
