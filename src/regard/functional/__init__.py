"""Fast, pure functions. Each is tested equal to its formula in :mod:`regard.reference`, values and gradients."""

from regard.functional._attention import attention as attention
from regard.functional._softargmax import softargmax as softargmax
