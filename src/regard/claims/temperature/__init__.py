"""Temperature: what β does to the weights, from a plain average to a hard choice."""

from regard.claims.temperature import _keys as _keys
from regard.claims.temperature import _values as _values
from regard.claims.temperature import _weights as _weights
