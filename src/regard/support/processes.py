"""Processes that end with the one that started them. Needs no torch: it runs before anything else is imported."""

import os
import sys
import threading
import time

PARENT = "REGARD_PARENT"  # the process id of the one that starts others


def announce_parent() -> None:
    """To be called before other processes are started: they find this process's id in their environment."""
    os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """End this process when the one that announced itself ends, also when that happened before this call."""
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
        os._exit(1)  # it ended before the system was asked to tell


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
