"""Sources: one file for each way in which attention is computed.

A source is a function that turns a call into an :class:`regard.maps.AttentionRecord`, or returns the reason why it
cannot. To support another attention function, write its source and register it here.

- Functions and kernels: ``_sdpa.py``, ``_aten_kernels.py``, ``_flex.py``, ``_flash_attn.py``, ``_xformers.py``, and the
  fused layers of torch in ``_torch_fast_path.py``. ``_function_call.py`` has what they share.
- Attention written with a softmax and products: ``_handwritten.py``. It follows tensors from scores to the product with
  values: ``_tensor_history.py`` keeps what each tensor is (``_tensor_origins.py``), ``_weighted_sums.py`` recognizes
  the product, ``_own_values.py`` values that differ from query to query, ``_random_masks.py`` dropout, and
  ``_before_dropout.py`` follows the weights before it. ``_mixtures.py`` sorts out softmaxes over experts or layers, which
  are no attention.
- Layers: ``_block_attention.py`` for BigBird, Longformer and others that never form a whole map; ``_own_layers.py`` for
  layers that declare their attention.
"""

from regard.maps.sources._aten_kernels import aten_kernel
from regard.maps.sources._block_attention import BlockLayers as BlockLayers
from regard.maps.sources._block_attention import block_layer as block_layer
from regard.maps.sources._direct_kernels import run_as_called as run_as_called
from regard.maps.sources._direct_kernels import run_usual as run_usual
from regard.maps.sources._einsum import einsum_labels as einsum_labels
from regard.maps.sources._einsum import read_einsum as read_einsum
from regard.maps.sources._flash_attn import flash_attn, flash_attn_with_cache
from regard.maps.sources._flex import flex
from regard.maps.sources._function_call import KERNELS_WITH_LOGSUMEXP as KERNELS_WITH_LOGSUMEXP
from regard.maps.sources._function_call import FunctionCall as FunctionCall
from regard.maps.sources._function_call import Source as Source
from regard.maps.sources._function_call import run_kernel as run_kernel
from regard.maps.sources._handwritten import DROPOUTS as DROPOUTS
from regard.maps.sources._handwritten import HandwrittenAttention as HandwrittenAttention
from regard.maps.sources._handwritten import LinearAttention as LinearAttention
from regard.maps.sources._handwritten import handwritten as handwritten
from regard.maps.sources._mixtures import mixture as mixture
from regard.maps.sources._own_layers import own_layer as own_layer
from regard.maps.sources._random_masks import RANDOM_MASK as RANDOM_MASK
from regard.maps.sources._sdpa import arranged as arranged
from regard.maps.sources._sdpa import sdpa
from regard.maps.sources._tensor_facts import DIVISIONS as DIVISIONS
from regard.maps.sources._tensor_facts import JOINS as JOINS
from regard.maps.sources._tensor_facts import MULTIPLICATIONS as MULTIPLICATIONS
from regard.maps.sources._tensor_facts import PRODUCTS as PRODUCTS
from regard.maps.sources._tensor_facts import is_outer as is_outer
from regard.maps.sources._tensor_facts import shares_memory as shares_memory
from regard.maps.sources._tensor_origins import WeightedSum as WeightedSum
from regard.maps.sources._torch_fast_path import attention_module as attention_module
from regard.maps.sources._torch_fast_path import torch_fast_path
from regard.maps.sources._torch_fast_path import without_mode_dispatch as without_mode_dispatch
from regard.maps.sources._xformers import xformers

# Sources of torch functions, by name. A torch function mode sees their calls.
TORCH_FUNCTIONS: dict[str, Source] = {
    "scaled_dot_product_attention": sdpa,
    "_native_multi_head_attention": torch_fast_path,
    "_transformer_encoder_layer_fwd": torch_fast_path,
    **dict.fromkeys(KERNELS_WITH_LOGSUMEXP, aten_kernel),
}

# Sources of Python functions that no mode sees, by module:function. They are patched when their module is imported.
PYTHON_FUNCTIONS: dict[str, Source] = {
    "torch.nn.attention.flex_attention:flex_attention": flex,
    "flash_attn.flash_attn_interface:flash_attn_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_qkvpacked_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_kvpacked_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_varlen_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_varlen_qkvpacked_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_varlen_kvpacked_func": flash_attn,
    "flash_attn.flash_attn_interface:flash_attn_with_kvcache": flash_attn_with_cache,
    "flash_attn_interface:flash_attn_func": flash_attn,
    "flash_attn_interface:flash_attn_qkvpacked_func": flash_attn,
    "flash_attn_interface:flash_attn_varlen_func": flash_attn,
    "flash_attn_interface:flash_attn_with_kvcache": flash_attn_with_cache,
    "xformers.ops.fmha:memory_efficient_attention": xformers,
    "xformers.ops.fmha:memory_efficient_attention_forward": xformers,
    "xformers.ops.fmha:memory_efficient_attention_forward_requires_grad": xformers,
}
