"""Named recipes: functions that return a frozen :class:`regard.training.Recipe`.

The docstring of each states the expected accuracy, time, hardware and command. Every number there comes from a run.

>>> regard.recipes.names()[:3]
('a6-content', 'a6-content-short', 'a6-depthwise-short')
>>> regard.recipes.get("demo").network.attention
'gaussian'
"""

from regard.recipes import _cifar as _cifar
from regard.recipes import _fashion as _fashion
from regard.recipes import _records as _records
from regard.recipes import _sequences as _sequences
from regard.recipes._names import get as get
from regard.recipes._names import names as names
from regard.recipes._names import summary as summary
