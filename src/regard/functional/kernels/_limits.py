"""Sizes that decide which kernel runs. Apart from the kernels, so that reading them does not import Triton."""

LARGEST_AXIS = 128
SMALL_SIDE = 16  # of a plane that a program keeps on the chip between its two passes
