"""Heads: the matrix form of attention, several heads side by side, and what each of them sees."""

from regard.claims.heads import _one as _one
from regard.claims.heads import _pruning as _pruning
from regard.claims.heads import _several as _several
