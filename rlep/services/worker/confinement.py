"""Rights that a process gives up for good: system calls by seccomp, files and signals by Landlock, root's capabilities.

One table of system calls and one assembler serve every killable process: programs of responses, which may make the listed
calls alone, and workers that run code of the user, which may make all but the listed ones. Of the standard library alone,
as the process of a program loads this file without the package.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["program", "worker", "networked worker"]

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> its audit architecture (linux/audit.h), and its column in the table."""
_PROGRAM = """
read:0:63 write:1:64 open:2:- close:3:57 stat:4:- fstat:5:80 lstat:6:- poll:7:- ppoll:-:73 lseek:8:62 mmap:9:222
mprotect:10:226 munmap:11:215 brk:12:214 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 pread64:17:67
readv:19:65 writev:20:66 access:21:- sched_yield:24:124 mremap:25:216 dup:32:23 dup2:33:- nanosleep:35:101 getpid:39:172
exit:60:93 uname:63:160 getcwd:79:17 readlink:89:- gettimeofday:96:169 getrlimit:97:163 getrusage:98:165 sysinfo:99:179
times:100:153 getuid:102:174 getgid:104:176 geteuid:107:175 getegid:108:177 sigaltstack:131:132 gettid:186:178 futex:202:98
sched_getaffinity:204:123 getdents64:217:61 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115
exit_group:231:94 openat:257:56 newfstatat:262:79 readlinkat:267:78 faccessat:269:48 set_robust_list:273:99 dup3:292:24
getrandom:318:278 statx:332:291 rseq:334:293 faccessat2:439:439
"""
"""Calls of an interpreter, ``name:x86-64:AArch64``: a program may make these, and some of ``_CHECKED``."""
_REFUSED = """
fork:57:- vfork:58:- execve:59:221 execveat:322:281 setsid:112:157 setpgid:109:154
kill:62:129 tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 pidfd_send_signal:424:424
ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 pidfd_getfd:438:438 kcmp:312:272
process_madvise:440:440 process_mrelease:448:448 move_pages:279:239 migrate_pages:256:238
setpriority:141:140 sched_setscheduler:144:119 sched_setparam:142:118 sched_setattr:314:274 ioprio_set:251:30
creat:85:- link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 mknod:133:- mknodat:259:33 rename:82:- renameat:264:38
renameat2:316:276 unlink:87:- unlinkat:263:35 rmdir:84:- flock:73:32 truncate:76:45 ftruncate:77:46 fallocate:285:47
chmod:90:- fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54
utime:132:- utimes:235:- futimesat:261:- utimensat:280:88 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7
setxattrat:463:463 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 removexattrat:466:466 file_setattr:469:469
memfd_create:319:279 memfd_secret:447:447 shmget:29:194 shmat:30:196 shmctl:31:195 semget:64:190 semop:65:193
semctl:66:191 semtimedop:220:192 msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181
mq_notify:244:184 io_uring_setup:425:425 io_uring_enter:426:426 io_uring_register:427:427 bpf:321:280
perf_event_open:298:241 userfaultfd:323:282 keyctl:250:219 add_key:248:217 request_key:249:218 vmsplice:278:75
fanotify_init:300:262 fanotify_mark:301:263 name_to_handle_at:303:264 open_by_handle_at:304:265 lookup_dcookie:212:18
setns:308:268 unshare:272:97 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 open_tree:428:428
move_mount:429:429 fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433 mount_setattr:442:442
open_tree_attr:467:467 quotactl:179:60 quotactl_fd:443:443 setuid:105:146 setgid:106:144 setreuid:113:145
setregid:114:143 setresuid:117:147 setresgid:119:149 setfsuid:122:151 setfsgid:123:152 setgroups:116:159 capset:126:91
reboot:169:142 swapon:167:224 swapoff:168:225 acct:163:89 sethostname:170:161 setdomainname:171:162 settimeofday:164:170
clock_settime:227:112 clock_adjtime:305:266 adjtimex:159:171 syslog:103:116 vhangup:153:58 init_module:175:105
finit_module:313:273 delete_module:176:106 kexec_load:246:104 kexec_file_load:320:294 iopl:172:- ioperm:173:-
modify_ldt:154:- uselib:134:-
"""
"""Calls that no worker may make: they start programs, reach other processes, change files, or ask for much of the kernel."""
_CHECKED = """
tgkill:234:131 fcntl:72:25 ioctl:16:29 madvise:28:233 prctl:157:167 prlimit64:302:261 sched_setaffinity:203:122
clone:56:220 clone3:435:435 socket:41:198 socketpair:53:199
"""
"""Calls that depend on an argument, or on the kind of process."""
_NEWEST_CALL = 469
"""A later call, and one of the x32 ABI, is not there for a worker."""

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW = 0x7FFF0000  # linux/seccomp.h
_REFUSE = 0x00050000 | 1  # errno EPERM
_UNKNOWN = 0x00050000 | 38  # errno ENOSYS: the C library then takes an older call
_CLONE_THREAD = 0x00010000
_DUP, _SET_OWNER = (0, 1, 2, 3, 1030), (8, 10, 15, 1024, 1026)
"""Commands of fcntl: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY,
by which the kernel signals others or makes them wait."""
_TERMINAL = (0x5401, 0x5450, 0x5451)  # TCGETS, FIONCLEX, FIOCLEX
_OWNER = (0x5452, 0x8901, 0x8902, 0x5412, 0x541C, 0x540E, 0x40086602, 0x40046602, 0x401C5820)
"""Commands of ioctl that set the owner of a descriptor's signals, type into a terminal, or change a file's flags: FIOASYNC,
FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX, TIOCSCTTY, FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR."""
_ADVICE = (0, 1, 2, 3, 4, 8)  # NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE; others merge, poison or pin pages
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, by which names of hosts are looked up
_DEATH_SIGNAL = (1,)  # PR_SET_PDEATHSIG: a process that clears it outlives its parent

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""Version of Landlock -> all file rights that it knows; later ones know no more."""
_WRITE, _READ_FILE, _READ_DIRECTORY = 0b10, 0b100, 0b1000
_READ = 0b1 | _READ_FILE | _READ_DIRECTORY
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2 | 1 << 10
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, to read what root reads; CAP_NET_BIND_SERVICE."""


class _Rule(NamedTuple):
    """Decision on one system call, by one of its arguments where ``values`` are given."""

    number: int
    met: int
    """Returned without values, or where one of them is met."""
    unmet: int = _REFUSE
    argument: int = 0
    values: Sequence[int] = ()
    test: int = _EQUAL


def confine(kind: Kind, readable: Iterable[str] = ()) -> None:
    """Give up what this kind of process does not need; there is no way back.

    A program may read only ``readable``, and gets every layer or OSError naming the one that this machine lacks. A worker
    reads what its user can; it gets the layers that ``missing_layers`` does not name.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS
        raise _failure("prctl PR_SET_NO_NEW_PRIVS")
    if kind == "program" or landlock_version():
        _limit_files(libc, kind, readable)
    _drop_capabilities(libc)
    if kind == "program" or platform.machine() in MACHINES:
        _limit_calls(libc, kind)


def missing_layers() -> list[str]:
    """Name the layers that this machine lacks."""
    missing = []
    if not landlock_version():
        missing.append("Landlock (Linux 5.13 or later, switched on)")
    if platform.machine() not in MACHINES:
        missing.append(_no_filter())
    return missing


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 where there is none."""
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)))


def _limit_files(libc: ctypes.CDLL, kind: Kind, readable: Iterable[str]) -> None:
    """Landlock: no write, no TCP without the network, no signal or debugger outside; a program reads ``readable`` alone."""
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        raise _failure("Landlock (Linux 5.13 or later, switched on)")
    rights = _RIGHTS[min(version, max(_RIGHTS))]
    if kind == "program":
        rules = {path: _READ if os.path.isdir(path) else _READ & ~_READ_DIRECTORY for path in _present(readable)}
    else:
        rights &= ~(_READ_FILE | _READ_DIRECTORY)
        rules = dict.fromkeys(_present([os.devnull]), _WRITE)
    network = kind == "networked worker"
    # TCP from version 4; from 6 on abstract unix sockets, and signals to others
    attributes = struct.pack(
        "QQQ", rights, 0b11 * (not network and version >= 4), (0b10 | (not network)) * (version >= 6)
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.create_string_buffer(attributes), size, 0)
    if ruleset < 0:
        raise _failure("Landlock")
    for path, allowed in rules.items():
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place))
        if libc.syscall(_ADD_RULE, ruleset, 1, rule, 0) != 0:
            raise _failure(f"Landlock, {path}")
        os.close(place)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise _failure("Landlock")
    os.close(ruleset)


def _present(paths: Iterable[str]) -> set[str]:
    return {os.path.realpath(path) for path in paths if os.path.exists(path)}


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Keep of root's capabilities those that read files; other users have none."""
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))  # _LINUX_CAPABILITY_VERSION_3, this process
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) != 0:
        raise _failure("capget")
    kept = [value & _KEPT_CAPABILITIES * (at < 3) for at, value in enumerate(struct.unpack("6I", data.raw))]
    if libc.capset(header, ctypes.create_string_buffer(struct.pack("6I", *kept))) != 0:
        raise _failure("capset")


def _limit_calls(libc: ctypes.CDLL, kind: Kind) -> None:
    """Install the filter of system calls."""
    if platform.machine() not in MACHINES:
        raise OSError(_no_filter())
    code = ctypes.create_string_buffer(assembled(kind, platform.machine(), os.getpid()))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code.raw) // 8, ctypes.addressof(code)))
    if libc.prctl(22, 2, header, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise _failure("seccomp")


def _no_filter() -> str:
    return f"a filter of system calls for {platform.machine()}: there is one for {' and '.join(MACHINES)}"


def _failure(layer: str) -> OSError:
    return OSError(f"{layer}: {os.strerror(ctypes.get_errno())}")


def assembled(kind: Kind, machine: str, process: int) -> bytes:
    """Assemble the filter of system calls of a process with this id, as BPF instructions."""
    architecture, column = MACHINES[machine]
    otherwise = _REFUSE if kind == "program" else _ALLOW
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)]
    program += [(_LOAD, 0, 0, _NUMBER), (_GREATER, 0, 1, _NEWEST_CALL), (_RETURN, 0, 0, _UNKNOWN)]
    for rule in _rules_of(kind, column, process):
        block = [(_RETURN, 0, 0, rule.met)]
        if rule.values:
            tests = [(rule.test, len(rule.values) - at, 0, value) for at, value in enumerate(rule.values)]
            block = [(_LOAD, 0, 0, _ARGUMENTS + 8 * rule.argument), *tests, (_RETURN, 0, 0, rule.unmet), *block]
        program += [(_EQUAL, 0, len(block), rule.number), *block]
    program.append((_RETURN, 0, 0, otherwise))
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _rules_of(kind: Kind, column: int, process: int) -> list[_Rule]:
    """Decisions on system calls, the checked ones first."""
    number = _numbers(_CHECKED, column)
    own = (process,)
    signal = _Rule(number["tgkill"], _ALLOW, values=own)  # abort() sends itself a signal
    if kind == "program":
        return [
            signal,
            _Rule(number["fcntl"], _ALLOW, argument=1, values=_DUP),
            _Rule(number["ioctl"], _ALLOW, argument=1, values=_TERMINAL),
            _Rule(number["madvise"], _ALLOW, argument=2, values=_ADVICE),
            *(_Rule(call, _ALLOW) for call in _numbers(_PROGRAM, column).values()),
        ]
    rules = [
        signal,
        _Rule(number["fcntl"], _REFUSE, _ALLOW, argument=1, values=_SET_OWNER),
        _Rule(number["ioctl"], _REFUSE, _ALLOW, argument=1, values=_OWNER),
        _Rule(number["prctl"], _REFUSE, _ALLOW, values=_DEATH_SIGNAL),
        _Rule(number["prlimit64"], _ALLOW, values=(0, *own)),
        _Rule(number["sched_setaffinity"], _ALLOW, values=(0, *own)),
    ]
    if kind == "networked worker":
        rules.append(_Rule(number["clone"], _ALLOW, values=(_CLONE_THREAD,), test=_ANY_BIT))
        rules.append(_Rule(number["clone3"], _UNKNOWN))  # its flags are in memory, where no filter can read them
        rules.append(_Rule(number["socket"], _ALLOW, values=_FAMILIES))
    else:
        rules += [_Rule(number[call], _REFUSE) for call in ("clone", "clone3", "socket", "socketpair")]
    return [*rules, *(_Rule(call, _REFUSE) for call in _numbers(_REFUSED, column).values())]


def _numbers(table: str, column: int) -> dict[str, int]:
    """Read one machine's column of a table."""
    rows = [row.split(":") for row in table.split()]
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column] != "-"}
