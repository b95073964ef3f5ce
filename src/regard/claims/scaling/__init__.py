"""Scaling: how scores grow with the width, why they are divided by its root, and what attention costs."""

from regard.claims.scaling import _cost as _cost
from regard.claims.scaling import _variance as _variance
