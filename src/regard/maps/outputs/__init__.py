"""Follows the outputs of attention: what a model does with them afterwards may change their maps.

- ``_outputs.py``: the tracker. Its handlers run sums, copies and joins; products are in ``_scaled_outputs.py``.
- ``_combinations.py``: a tensor as a linear combination of outputs, with a factor for each row of their maps.
- ``_joining.py`` joins the maps of attention that is computed in parts. ``_written_parts.py`` notices parts that a model
  writes into one tensor, and ``_packed_patches.py`` says where packed patches lie on their images.
- ``_folded_heads.py``: which comes first if samples and heads are one axis.
"""
