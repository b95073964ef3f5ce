"""Makes repeated calls and later passes cheap.

- ``_learning.py`` learns from one pass that a model needs no function mode, which holds as long as the model does not change
  (``_model_form.py``). Then only a few operators are watched, and the first calls of modules (``_module_watch.py``).
- ``_repeated_calls.py`` recognizes calls that repeat an earlier one, so that they need not be recorded in full.
- ``_quick_calls.py`` writes the maps of such calls: on a GPU into memory for several maps (``_map_rooms.py``), with their
  checks in buffers there (``_check_buffers.py``).
"""
