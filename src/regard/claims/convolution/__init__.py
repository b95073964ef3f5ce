"""Convolution: when attention is one, how close it comes, and what becomes of borders, dilation and stride."""

from regard.claims.convolution import _details as _details
from regard.claims.convolution import _moving as _moving
from regard.claims.convolution import _theorems as _theorems
