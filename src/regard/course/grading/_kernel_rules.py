"""Rules of the Linux kernel for a student's process: the system calls it may make, and the files it may read.

Python's audit hook sees only Python's actions; these rules also apply to C libraries (``torch.from_file``, GNU readline).
If a kernel lacks one of them, the other and the hook remain. This file needs only the standard library.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# System calls that no answer needs: signals to other processes, their memory and priority, new programs and connections.
# Numbers for x86-64 and AArch64. Exiting (exit_group) is harmless, and RLIMIT_NPROC refuses new threads.
DENIED_CALLS = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198), "socketpair": (53, 199),
    "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    "inotify_init1": (294, 26), "fanotify_init": (300, 262),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # of Landlock, on every machine
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8


def restrict_calls() -> bool:
    """Make the calls above fail with EPERM, permanently for this process. False if the system does not support it.

    The process must have given up gaining privileges (PR_SET_NO_NEW_PRIVS) before.
    """
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return False
    column, architecture = machine
    numbers = sorted({each[column] for each in DENIED_CALLS.values()})
    refuse, allow, end = 0x00050000 | errno.EPERM, 0x7FFF0000, 0x80000000
    # Load the architecture; any other (32-bit calls have other numbers) ends the process. Load the call's number; x32
    # has another table, too. Then compare with each call, and jump to the refusal after the last comparison.
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, end), (0x20, 0, 0, 0)]
    if column == 0:
        program += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, end)]
    for place, number in enumerate(numbers):
        program.append((0x15, len(numbers) - place, 0, number))
    program += [(0x06, 0, 0, allow), (0x06, 0, 0, refuse)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    lines = ctypes.create_string_buffer(code, len(code))
    filtered = struct.pack("HxxxxxxP", len(program), ctypes.addressof(lines))
    given = ctypes.create_string_buffer(filtered, len(filtered))
    return ctypes.CDLL(None).prctl(22, 2, ctypes.byref(given), 0, 0) == 0  # PR_SET_SECCOMP, by a filter


def restrict_files(roots: tuple[str, ...]) -> bool:
    """Allow this process to open only files and folders below ``roots``, for reading. False if Landlock is not available."""
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    version = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # All 13 rights of its first version, and those of later ones: to move between folders, to truncate.
    handled = struct.pack("Q", (1 << (13 + (version >= 2) + (version >= 3))) - 1)
    ruleset = system.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    try:
        for root in roots:
            try:
                folder = os.open(root, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # below a folder that this user may not enter, so it could not be read anyway
                continue
            try:
                rights = _READ | _LIST | _EXECUTE  # libraries are mapped to be executed
                system.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, folder), 0)
            finally:
                os.close(folder)
        return bool(system.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)
