"""Fast, pure functions. Each is tested equal to its formula in :mod:`regard.reference`, values and gradients."""

from regard.functional._attention import attention as attention
from regard.functional._attention import causal_keep as causal_keep
from regard.functional._axis import Border as Border
from regard.functional._axis import axis_matrix as axis_matrix
from regard.functional._gaussian import gaussian_attention as gaussian_attention
from regard.functional._gaussian import gaussian_weights as gaussian_weights
from regard.functional._maps import kronecker as kronecker
from regard.functional._mix import AxisBlocks as AxisBlocks
from regard.functional._mix import HeadGroup as HeadGroup
from regard.functional._mix import mix as mix
from regard.functional._placed import placed_attention as placed_attention
from regard.functional._plan import DENSE_TOKENS as DENSE_TOKENS
from regard.functional._plan import GaussianPlan as GaussianPlan
from regard.functional._plan import HeadPlan as HeadPlan
from regard.functional._plan import plan_for as plan_for
from regard.functional._profiles import DecayProfile as DecayProfile
from regard.functional._profiles import GaussianProfile as GaussianProfile
from regard.functional._profiles import Profile as Profile
from regard.functional._profiles import TableProfile as TableProfile
from regard.functional._separable import separable_attention as separable_attention
from regard.functional._separable import separable_weights as separable_weights
from regard.functional._softargmax import softargmax as softargmax
from regard.functional._taps import shift_leak as shift_leak
