"""Looking at attention: the maps of any model, each one checked, and what can be learnt and changed with them."""

from regard.inspect._capture import capture as capture
from regard.inspect._locality import Head as Head
from regard.inspect._locality import Locality as Locality
from regard.inspect._locality import locality as locality
from regard.inspect._maps import Call as Call
from regard.inspect._maps import Map as Map
from regard.inspect._maps import Maps as Maps
from regard.inspect._maps import Missed as Missed
from regard.inspect._relevance import relevance as relevance
from regard.inspect._rollout import rollout as rollout
from regard.inspect._statistics import distance as distance
from regard.inspect._statistics import entropy as entropy
