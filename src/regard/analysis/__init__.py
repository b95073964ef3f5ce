"""Analysis of attention: rollout, relevance, locality, the importance of heads, pruning, replacing, and cost."""

from regard.analysis._accuracy import accuracy as accuracy
from regard.analysis._changed_heads import heads_in as heads_in
from regard.analysis._changed_heads import mask_heads as mask_heads
from regard.analysis._cost import Cost as Cost
from regard.analysis._cost import CostRow as CostRow
from regard.analysis._cost import cost as cost
from regard.analysis._importance import Importance as Importance
from regard.analysis._importance import PruningPoint as PruningPoint
from regard.analysis._importance import importance as importance
from regard.analysis._importance import pruning_curve as pruning_curve
from regard.analysis._locality import Head as Head
from regard.analysis._locality import Locality as Locality
from regard.analysis._locality import locality as locality
from regard.analysis._locality_history import LocalityHistory as LocalityHistory
from regard.analysis._locality_history import trajectory as trajectory
from regard.analysis._pruning import PrunedMultiheadAttention as PrunedMultiheadAttention
from regard.analysis._pruning import prune_heads as prune_heads
from regard.analysis._relevance import relevance as relevance
from regard.analysis._replace import ReplacedHeads as ReplacedHeads
from regard.analysis._replace import ReplacementCost as ReplacementCost
from regard.analysis._replace import replace_heads as replace_heads
from regard.analysis._rollout import rollout as rollout
from regard.analysis._statistics import distance as distance
from regard.analysis._statistics import entropy as entropy
