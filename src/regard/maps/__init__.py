"""Capture: the attention maps of any model, each one checked against what the model computed."""

from regard.maps._capture import Capture as Capture
from regard.maps._capture import capture as capture
from regard.maps._layout import Layout as Layout
from regard.maps._maps import Call as Call
from regard.maps._maps import Map as Map
from regard.maps._maps import Maps as Maps
from regard.maps._maps import Missed as Missed
from regard.maps._windows import Windows as Windows
