"""Sequences: recurrent encoders and decoders, attention between two inputs, and the worked example."""

from regard.claims.sequences import _bottleneck as _bottleneck
from regard.claims.sequences import _recurrent as _recurrent
from regard.claims.sequences import _transformer as _transformer
