"""What the axes of a map are, and where its tokens lie.

- ``_axes.py`` decides which axes are samples, heads and queries, from the evidence that ``_axis_evidence.py`` collects.
- ``_token_layouts.py`` adds to a record the windows of an image (``_windows.py``), the positions in a sequence whose earlier
  keys are in a cache (``_positions.py``), or the layout on an image (``_layout.py``).
- ``_segments.py``: text and images in one sequence.
"""
