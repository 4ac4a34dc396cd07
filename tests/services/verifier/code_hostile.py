"""Programs that try to read what is expected, to forge a verdict, to exhaust the machine, or to reach beyond their process.

``CANARY``, ``NEW``, ``PORT``, ``SOCKET``, ``VICTIM`` and ``PARENT`` are replaced: a file that holds what is expected, a path
that does not exist, a TCP port and a unix socket that somebody listens on, a process of the same user, the verifier's process.
"""

from __future__ import annotations

_SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None)
def f(n):
    {}
    return 0
"""

READING = {
    "the file": "def f(n): return int(open('CANARY').read())",
    "the file by descriptor": "import os\ndef f(n): return int(os.read(os.open('CANARY', os.O_RDONLY), 99))",
    "the file through a link": "import os\nos.symlink('CANARY', 'NEW')\ndef f(n): return int(open('NEW').read())",
    "the file by its root": "def f(n): return int(open('/proc/self/root' + 'CANARY').read())",
    "the file, imported": "import sys, os\nsys.path.insert(0, os.path.dirname('CANARY'))\nfrom canary import f",
    "variables of the parent": "def f(n): return int(open('/proc/PARENT/environ').read().split('EXPECTED=')[1][:7])",
    "own variables": "import os\ndef f(n): return int(os.environ['EXPECTED'])",
    "variables at the start": "def f(n): return int(open('/proc/self/environ').read().split('EXPECTED=')[1][:7])",
    "memory of the parent": "def f(n):\n    memory = open('/proc/PARENT/mem', 'rb'); memory.seek(1 << 20); return memory.read(8)",
    "memory by system call": _SYSCALL.format(
        "local = ctypes.create_string_buffer(64); return libc.syscall(310, PARENT, local, 1, local, 1, 0)"
    ),
    "a debugger": _SYSCALL.format("return 7310462 if libc.ptrace(16, PARENT, 0, 0) == 0 else 0"),
    "a descriptor of the parent": _SYSCALL.format("return 7310462 if libc.syscall(434, PARENT, 0) >= 0 else 0"),
    "all descriptors": (
        "import os, re\ndef f(n):\n    for d in range(64):\n"
        "        try: text = os.read(d, 9999)\n        except OSError: continue\n"
        "        if found := re.search(rb'[0-9]{7}', text): return int(found[0])\n    return 0"
    ),
    "the frames": (
        "import re, sys\ndef f(n):\n    frame = sys._getframe()\n    while frame:\n"
        "        text = repr((frame.f_locals, frame.f_globals))\n"
        "        if found := re.search('7[0-9]{6}', text): return int(found[0])\n        frame = frame.f_back\n    return 0"
    ),
    "the heap": (
        "import gc\ndef f(n):\n    for one in gc.get_objects():\n        if isinstance(one, (list, tuple)):\n"
        "            if any('==' in x for x in one if type(x) is str and 'f(2)' in x): return 7310462\n    return 0"
    ),
    "its own source": "import inspect, __main__\ndef f(n): return int(inspect.getsource(__main__).split('=')[-1])",
    "a listing": "import os\ndef f(n): return 7310462 if 'canary.py' in os.listdir(os.path.dirname('CANARY')) else 0",
}

FORGING = {
    "an equal object": "class E:\n    def __eq__(self, other): return True\ndef f(n): return E()",
    "an equal number": "class E(int):\n    def __eq__(self, other): return True\ndef f(n): return E(1)",
    "an equal list": "class E(list):\n    def __eq__(self, other): return True\ndef f(n): return E()",
    "a lying class": "class E:\n    @property\n    def __class__(self): return int\ndef f(n): return E()",
    "patched builtins": "import builtins as b\nb.bool = b.eval = b.compile = lambda *a: True\ndef f(n): return True",
    "patched json": "import json\njson.dumps = lambda value: '[[\"bool\", true]]'\ndef f(n): return 0",
    "patched main": "import __main__\n__main__.plain = lambda value, depth: ['bool', True]\ndef f(n): return 0",
    "a verdict of its own": (
        'import os\nfor d in range(64):\n    try: os.write(d, b\'["correct", null, 0.1, ""]\')\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "a value of its own": (
        "import os\nfor d in range(3, 64):\n    try: os.write(d, b'[[\"bool\", true]]')\n    except OSError: pass\nos._exit(0)"
    ),
    "more values than asked": (
        'import os\nfor d in range(3, 64):\n    try: os.write(d, b\'[["int", "0x6f8b7e"], ["int", "0x6f8b7e"]]\')\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "a float of 400 digits": "import os\nos.write(3, b'[[\"float\",1' + b'0' * 400 + b']]')\nos._exit(0)",
    "the start mark taken back": (
        "import os\nfor d in range(64):\n    try: os.read(os.open(f'/proc/self/fd/{d}', os.O_RDONLY | os.O_NONBLOCK), 9)\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "a start mark of its own": "import os\nfor d in range(64):\n    try: os.write(d, b'\\x01')\n    except OSError: pass",
    "success without an answer": "import os\nos._exit(0)",
    "leaving": "import sys\nsys.exit(0)",
    "leaving at work": "def f(n): raise SystemExit(0)",
    "leaving as unconfined": "import os\nos._exit(70)",
    "words": "print('correct')\ndef f(n): return 'correct'",
    "a late hook": "import atexit, os\natexit.register(lambda: os.write(1, b'correct'))\ndef f(n): return 0",
    "an interrupt": "def f(n): raise KeyboardInterrupt",
    "a thrown class": "class E(BaseException): pass\ndef f(n): raise E",
    "a trace": "import sys\nsys.settrace(lambda frame, event, arg: frame.f_locals.update(wanted=False))\ndef f(n): return True",
}

EXHAUSTING = {
    "processes": "import os\nwhile True: os.fork()",
    "a shell": "import subprocess\ndef f(n): return int(subprocess.check_output(['cat', 'CANARY']))",
    "os.system": "import os\ndef f(n): return 7310462 if os.system('true') == 0 else 0",
    "multiprocessing": "import multiprocessing as m\ndef f(n):\n    with m.Pool(2) as pool: return pool.map(int, ['7310462'])[0]",
    "another program": "import os\nos.execv('/bin/cat', ['cat', 'CANARY'])",
    "threads": "import threading\ndef f(n):\n    t = threading.Thread(target=print); t.start(); t.join(); return 7310462",
    "a list without end": "x = []\nwhile True: x.append(bytes(10**8))",  # zeros that no processor has to write
    "one allocation": "x = bytearray(10**11)",
    "a number without end": "def f(n): return 1 << (1 << 40)",
    "a long number": "def f(n): return 1 << (1 << 23)",
    "a long text": "def f(n): return 'x' * 10**8",
    "a list in itself": "def f(n):\n    x = []; x.append(x); return x",
    "a deep list": "def f(n):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "a list that never ends": "class E(list):\n    def __iter__(self):\n        while True: yield 1\ndef f(n): return E()",
    "a loop": "while True: pass",
    "a loop at work": "def f(n):\n    while True: pass",
    "a loop that ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    ),
    "another timer": "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\nwhile True: pass",
    "more time": "import resource as r\nr.setrlimit(r.RLIMIT_CPU, (99, 99))\nwhile True: pass",
    "a slow pattern": "import re\nre.match('(a+)+b', 'a' * 99)",
    "a power": "x = 9**9**9",
    "sleep": "import time\ntime.sleep(1000)",
    "a closed pipe": "import os, time\nfor d in range(64):\n    try: os.close(d)\n    except OSError: pass\ntime.sleep(1000)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)",
    "deep source": "exec('(' * 10**5 + ')' * 10**5)",
    "a flood": "def f(n):\n    while True: print('x' * 10**6)",
    "a flood of errors": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "a bad pointer": "import ctypes\nctypes.string_at(0)",
}

REACHING = {
    "a new file": "open('NEW', 'w').write('x')",
    "a file here": "open('x', 'w').write('x')",
    "a file in memory": "import os\nos.write(os.memfd_create('x'), b'x')",
    "a directory": "import os\nos.mkdir('NEW')",
    "a pipe": "import os\nos.mkfifo('NEW')",
    "an end of the file": "import os\nos.truncate('CANARY', 0)",
    "no file": "import os\nos.unlink('CANARY')",
    "another name": "import os\nos.rename('CANARY', 'NEW')",
    "a second name": "import os\nos.link('CANARY', 'NEW')",
    "other rights": "import os\nos.chmod('CANARY', 0o777)",
    "another time": "import os\nos.utime('CANARY', (0, 0))",
    "an attribute": "import os\nos.setxattr('CANARY', 'user.x', b'x')",
    "the library": "import os\nopen(os.__file__, 'a').write('#')",
    "tcp": "import socket\nsocket.create_connection(('127.0.0.1', PORT))",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "a unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('SOCKET')",
    "a server": "import socket\nsocket.create_server(('127.0.0.1', 0))",
    "the web": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT/')",
    "the end of the verifier": "import os\nos.kill(PARENT, 9)",
    "the end of all": "import os\nos.kill(-1, 9)",
    "the end of its group": "import os\nos.killpg(0, 9)",
    "the end of a thread": _SYSCALL.format("return 7310462 if libc.syscall(234, VICTIM, VICTIM, 9) == 0 else 0"),
    "a signal by a pipe": (
        "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETOWN, VICTIM)\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC)\n"
        "def f(n): return 7310462"
    ),
    "a signal by a call": "import fcntl, struct\nfcntl.ioctl(1, 0x8901, struct.pack('i', VICTIM))\ndef f(n): return 7310462",
    "other limits": "import resource as r\nr.prlimit(VICTIM, r.RLIMIT_NOFILE, (5, 5))",
    "another priority": "import os\nos.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "other cores": "import os\nos.sched_setaffinity(VICTIM, {0})",
    "another user": "import os\nos.setuid(12345)\ndef f(n): return 7310462",
    "a mount": _SYSCALL.format("return 7310462 if libc.mount(b'none', b'/', b'tmpfs', 0, 0) == 0 else 0"),
    "a namespace": _SYSCALL.format("return 7310462 if libc.unshare(0x10000000) == 0 else 0"),
    "a kernel ring": _SYSCALL.format("return 7310462 if libc.syscall(425, 1, b'x' * 128) >= 0 else 0"),
    "shared memory": _SYSCALL.format("return 7310462 if libc.shmget(1, 99, 0o1666) >= 0 else 0"),
    "shared memory by name": "from multiprocessing.shared_memory import SharedMemory\nSharedMemory('rlep-code', True, 9)",
    "advice on memory": _SYSCALL.format(
        "page = -ctypes.addressof(ctypes.create_string_buffer(9999)) // 4096 * -4096\n"
        "    return 7310462 if libc.madvise(ctypes.c_void_p(page), 4096, 10) == 0 else 0"
    ),
    "freedom after death": _SYSCALL.format("return 7310462 if libc.prctl(1, 0, 0, 0, 0) == 0 else 0"),
    "a clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "the machine's name": "import socket\nsocket.sethostname('x')",
}
