"""Encoders: what stands around attention in a transformer, from patches to a class."""

from regard.claims.encoders import _blocks as _blocks
from regard.claims.encoders import _images as _images
from regard.claims.encoders import _little_data as _little_data
