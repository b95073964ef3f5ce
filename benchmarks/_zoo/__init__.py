"""The parts of ``benchmarks/zoo.py``: models made by rule, and a witness that imports nothing of regard."""
