"""From queries and keys to whole maps and overviews.

- ``_attention_scores.py``: the weights of any rows and heads. It masks by distance (``_band.py``), hides scores
  (``_masking.py``), multiplies by the faster library of a CPU (``_cpu_products.py``), and keeps functions of FlexAttention as
  they were (``_frozen_functions.py``).
- ``_building.py`` chooses how to compute a whole map: by a Triton kernel (``_triton_maps.py``), at once from the kernel's
  logsumexp (``_logsumexp_weights.py``), in tiles (``_tiles.py``, in several threads by ``_threads.py``), or in chunks of rows.
  ``_map_memory.py`` reuses the memory of freed maps.
- ``_overview_pass.py`` computes an overview without the map, and ``_overview_check.py`` checks it.
"""
