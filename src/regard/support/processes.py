"""End worker processes together with their parent. Does not import torch, because it runs before anything else."""

import os
import sys
import threading
import time

PARENT = "REGARD_PARENT"  # environment variable with the process id of the parent


def announce_parent() -> None:
    """Put this process's id into the environment of child processes. Call it before starting them."""
    os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """End this process when its announced parent ends, also if that happened before this call."""
    parent = os.environ.get(PARENT, "")
    is_worker = os.environ.get("LOCAL_RANK", "0") != "0"  # Fabric sets it for the processes that it starts
    if not parent.isdigit() or not is_worker:
        return
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    elif hasattr(os, "getppid"):
        threading.Thread(target=_watch, args=[int(parent)], daemon=True).start()
    if hasattr(os, "getppid") and os.getppid() != int(parent):
        os._exit(1)  # the parent ended before the watch was set up


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
