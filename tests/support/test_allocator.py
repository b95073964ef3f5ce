import ctypes
import subprocess
import sys

import pytest

from regard.support.allocator import MOST_ARENAS

# As many threads as a server has, each of which allocates while the others hold their heaps; then the number of heaps.
SCRIPT = """
import ctypes, sys, threading
from regard.support.allocator import limit_arenas
if sys.argv[1] == "limited":
    assert limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes, libc.fflush.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    libc.malloc(10_000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"), reason="a setting of glibc"
)
def test_threads_share_a_few_heaps():
    def heaps(how):
        command = [sys.executable, "-c", SCRIPT, how]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.count("<heap nr=")

    assert heaps("limited") <= MOST_ARENAS < heaps("free")
