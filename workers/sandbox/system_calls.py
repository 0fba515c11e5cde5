"""Refuse system calls that no OpenCL runtime needs, to a process in which a kernel runs.

Landlock (``confinement.py``) covers files, TCP's ordinary calls and signals. It does not cover
other sockets, nor calls that change a file's mode, owner, times or attributes, nor calls that act
on another process. A filter of Linux' seccomp refuses these calls with EPERM, in all threads of the
process and in all programs that it starts. A refused call does not end the process.

Owns the list of calls. A filter sees the number and the arguments of a call, but not what a pointer
points to: no path, and no flags of ``clone3``. So ``clone3`` answers that it does not exist, and
the C library then uses ``clone``, whose flags the filter checks.

The numbers are those of Linux' headers: ``arch/x86/entry/syscalls/syscall_64.tbl`` for x86_64 and
``include/uapi/asm-generic/unistd.h`` for aarch64. On other architectures nothing is refused.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Sockets of any kind; io_uring could open them, too. ``socketpair`` stays.
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Modes, owners, times and attributes of files
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    # Memory, descriptors and priority of other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "setpriority": (141, 140), "ioprio_set": (251, 30),
    # Sessions and process groups: the parent kills this process's group
    "setsid": (112, 157), "setpgid": (109, 154),
    # Shared memory, semaphores, queues and keys: they outlive the process
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196),
    "semget": (64, 190), "semctl": (66, 191), "semtimedop": (220, 192), "semop": (65, 193),
    "msgget": (68, 186), "msgctl": (71, 187), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    # Large parts of Linux that attacks use, and the whole machine
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "fanotify_init": (300, 262), "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "vhangup": (153, 58),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
"""Numbers of the refused calls on x86_64 and on aarch64; None: there is no such call."""
OWN_ONLY: dict[str, tuple[int, int]] = {
    "prlimit64": (302, 261), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "move_pages": (279, 239), "migrate_pages": (256, 238),
}  # fmt: skip
"""Calls whose first argument, a process, must be 0: the caller. ``sched_setaffinity`` is not among
them, because runtimes and LLMPerf give each thread its processors, and name the thread."""
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_REFUSED_IOCTLS = (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820)
"""TIOCSTI and TIOCLINUX (type on a terminal), FS_IOC_SETFLAGS, its form for 32 bits, and
FS_IOC_FSSETXATTR (flags of a file that is open for reading only)."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Column of the tables, AUDIT_ARCH_… (``linux/audit.h``), number of the call ``seccomp``."""
_X32 = 0x40000000
"""From here on, x86_64 has a second set of numbers, for programs with pointers of 32 bits."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of ``linux/bpf_common.h``: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_J…|BPF_K and BPF_RET"""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in ``struct seccomp_data``; of an argument, the lower 32 bits."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_…
_SET_MODE_FILTER, _ALL_THREADS, _FULL_SPEED = 1, 1 << 0, 1 << 2
"""SECCOMP_SET_MODE_FILTER; SECCOMP_FILTER_FLAG_TSYNC and _SPEC_ALLOW. Without the last, Linux
before 5.16 switches off a speculation of the processor, which would change the timing."""
_PR_SET_NO_NEW_PRIVS = 38


class _Program(ctypes.Structure):
    """A filter program: ``struct sock_fprog`` of ``linux/filter.h``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls() -> bool:
    """Refuse the calls of this module to all threads of this process, and to what it starts.

    Returns:
        False if this Linux has no filters, or this architecture has no table.
    """
    if platform.machine() not in _ARCHITECTURES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    column, architecture, seccomp = _ARCHITECTURES[platform.machine()]
    instructions = list(_instructions(column, architecture))
    program = _Program(len(instructions), b"".join(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    flags = _ALL_THREADS | _FULL_SPEED
    return bool(libc.syscall(seccomp, _SET_MODE_FILTER, flags, ctypes.byref(program)) == 0)


def _instructions(column: int, architecture: int) -> Iterator[bytes]:
    refuse = _one(_RETURN, _ERRNO | errno.EPERM)
    yield _one(_LOAD, _ARCHITECTURE)
    yield _one(_IF_EQUAL, architecture, then=1)
    yield refuse
    yield _one(_LOAD, _NUMBER)
    yield _one(_IF_AT_LEAST, _X32, otherwise=1)
    yield refuse
    yield _one(_IF_EQUAL, _CLONE3[column], otherwise=1)
    yield _one(_RETURN, _ERRNO | errno.ENOSYS)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            yield _one(_IF_EQUAL, number, otherwise=1)
            yield refuse
    for own in OWN_ONLY.values():
        yield from _checked(own[column], _FIRST_ARGUMENT, _one(_IF_EQUAL, 0, then=1), refuse)
    new_namespaces = _one(_IF_ANY_BIT, _NEW_NAMESPACES, otherwise=1)
    yield from _checked(_CLONE[column], _FIRST_ARGUMENT, new_namespaces, refuse)
    ioctls = [
        part for one in _REFUSED_IOCTLS for part in (_one(_IF_EQUAL, one, otherwise=1), refuse)
    ]
    yield from _checked(_IOCTL[column], _SECOND_ARGUMENT, *ioctls)
    yield _one(_RETURN, _ALLOW)


def _checked(number: int, argument: int, *checks: bytes) -> Iterator[bytes]:
    """Return instructions for one call: load an argument, run checks, allow what passes them."""
    yield _one(_IF_EQUAL, number, otherwise=len(checks) + 2)
    yield _one(_LOAD, argument)
    yield from checks
    yield _one(_RETURN, _ALLOW)


def _one(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one instruction; ``then`` and ``otherwise``: how many instructions a jump skips."""
    return struct.pack("HBBI", code, then, otherwise, value)
