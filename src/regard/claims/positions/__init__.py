"""Positions: what attention knows of order, and the ways to tell it."""

from regard.claims.positions import _encodings as _encodings
from regard.claims.positions import _families as _families
from regard.claims.positions import _order as _order
from regard.claims.positions import _position_scores as _position_scores
