"""Looking at attention: the maps of any model, each one checked, and what can be learnt and changed with them."""

from regard.inspect._capture import capture as capture
from regard.inspect._maps import Call as Call
from regard.inspect._maps import Map as Map
from regard.inspect._maps import Maps as Maps
from regard.inspect._maps import Missed as Missed
