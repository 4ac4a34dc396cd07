"""Runs a program that the kernel kills when its starter ends. A script: standard library only, started with ``-I -S``.

``die_with_parent.py PARENT PROGRAM ARGUMENT…``: PARENT is the process id of the starter. A ``preexec_fn`` would run Python
between fork and exec, which is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # the starter ended before the kernel knew
os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606
