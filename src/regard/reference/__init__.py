"""Every operation as its formula, in plain tensor algebra: slow and readable. Fast code is tested against it.

Signatures state the shapes, with the letters of the formula. The functions do not repeat them as checks; to check shapes
at run time, as our tests do, call ``jaxtyping.install_import_hook("regard", "beartype.beartype")`` before the import.
Weights of linear maps have the layout of ``nn.Linear``, (outputs, inputs). Every function is differentiable and computes
in the dtype of its inputs.
"""

from regard.reference._absolute_positions import learned_positions as learned_positions
from regard.reference._absolute_positions import one_hot_positions as one_hot_positions
from regard.reference._absolute_positions import sinusoidal_positions as sinusoidal_positions
from regard.reference._additive import additive_attention as additive_attention
from regard.reference._convolution import convolution as convolution
from regard.reference._dot_product_attention import attention as attention
from regard.reference._dot_product_attention import attention_for_query as attention_for_query
from regard.reference._dot_product_attention import causal_keep as causal_keep
from regard.reference._factorized import separable_attention as separable_attention
from regard.reference._feed_forward import feed_forward as feed_forward
from regard.reference._feed_forward import gelu as gelu
from regard.reference._feed_forward import gelu_tanh as gelu_tanh
from regard.reference._gaussian import fold as fold
from regard.reference._gaussian import gaussian_attention as gaussian_attention
from regard.reference._gaussian import gaussian_scores as gaussian_scores
from regard.reference._grid import border_source as border_source
from regard.reference._grid import encoding_by_offset as encoding_by_offset
from regard.reference._grid import grid_coordinates as grid_coordinates
from regard.reference._grid import relative_offsets as relative_offsets
from regard.reference._kernel_regression import exponential_kernel as exponential_kernel
from regard.reference._kernel_regression import gaussian_kernel as gaussian_kernel
from regard.reference._kernel_regression import kernel_regression as kernel_regression
from regard.reference._multi_head import multi_head_attention as multi_head_attention
from regard.reference._multi_head import sliced_multi_head_attention as sliced_multi_head_attention
from regard.reference._multi_head import sum_of_heads as sum_of_heads
from regard.reference._normalization import layer_norm as layer_norm
from regard.reference._position_scores import AbsoluteScores as AbsoluteScores
from regard.reference._position_scores import RelativeScores as RelativeScores
from regard.reference._position_scores import absolute_scores as absolute_scores
from regard.reference._position_scores import relative_scores as relative_scores
from regard.reference._recurrent_cells import gru_cell as gru_cell
from regard.reference._recurrent_cells import lstm_cell as lstm_cell
from regard.reference._recurrent_cells import rnn_cell as rnn_cell
from regard.reference._softargmax import softargmax as softargmax
from regard.reference._worked_example import WorkedExample as WorkedExample
from regard.reference._worked_example import worked_example as worked_example
