"""Sizes that decide which kernel runs. A separate file, so that importing it does not import Triton."""

LARGEST_AXIS = 128
MOST_CHANNELS = 64  # of one program of a scan
MOST_PROGRAMS = 65535  # along the second and third axis of a launch grid: a limit of CUDA
SMALL_SIDE = 16  # longest side of a plane that one program holds in registers between the two axes
