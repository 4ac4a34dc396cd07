"""The pool that a run uses: in a Redis, or on a pool server, with the same verbs, draws and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError, PoolError
from rlep.core.types import AddReport, Trajectory
from rlep.services.pool.opening import open_pool
from rlep.services.pool.rpc.access import is_loopback
from rlep.services.pool.storage.sample import Sample
from rlep.services.pool.values import DEFAULT_CAP, PoolOptions, PoolPlace, PoolStats

if TYPE_CHECKING:
    from rlep.services.pool.rpc.client import PoolClient


class RunPool(Protocol):
    """What a run asks of its pool; see ``Pool``."""

    def add(self, trajectories: Sequence[Trajectory]) -> AddReport: ...

    def sample(self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int) -> Sample: ...

    def stats(self) -> PoolStats: ...

    def digest(self) -> str: ...

    def prompt_ids(self) -> list[str]: ...


class OpenRunPool(Protocol):
    """It and what was opened for it, closed together."""

    @property
    def pool(self) -> RunPool: ...

    def close(self) -> None: ...


def on_server(url: str | None) -> bool:
    """Whether this is the address of a pool server."""
    return url is not None and urlsplit(url).scheme in ("grpc", "grpcs")


def open_run_pool(place: PoolPlace, tokenizer_digest: str, options: PoolOptions) -> OpenRunPool:
    """Open it. Raises what ``open_pool`` raises; for a server ``ConfigError``, ``PoolError`` or ``DeadlineExceeded``."""
    if place.url is None or not on_server(place.url):
        return open_pool(place.url, place.directory, place.name, tokenizer_digest=tokenizer_digest, options=options)
    served = ServedPool(connected(place, options), options)
    try:
        served.check(place.name, tokenizer_digest)
    except BaseException:
        served.close()
        raise
    return served


def connected(place: PoolPlace, options: PoolOptions) -> PoolClient:
    """A client of the server at ``place``. Raises ``ConfigError`` for its files, or a token that everybody could read."""
    from rlep.services.pool.rpc.client import PoolClient  # gRPC is for those who use it

    url = urlsplit(place.url or "")
    token = None if place.token_file is None else _token(place.token_file)
    if token is not None and url.scheme == "grpc" and not is_loopback(url.hostname or ""):
        raise ConfigError(f"pool.url = {place.url} would carry the token of pool.token_file in the clear: use grpcs://")
    return PoolClient(
        url.netloc,
        pool=place.name,
        token=token,
        tls=(place.ca_file or True) if url.scheme == "grpcs" else None,
        deadline=options.deadline,
        writer=options.writer,
        writer_epoch=options.writer_epoch,
        precision=options.precision,
        vocabulary=options.vocabulary,
    )


class ServedPool:
    """A pool on a server, opened as ``PoolOptions`` say."""

    def __init__(self, client: PoolClient, options: PoolOptions) -> None:
        self._client, self._options = client, options

    @property
    def pool(self) -> Self:
        """Itself: nothing else was opened."""
        return self

    def check(self, name: str, tokenizer_digest: str) -> None:
        """Refuse what ``Pool.open`` refuses. A pool that is not there is made by the first ``add``.

        Raises ``ConfigError`` or ``PoolError``.
        """
        options = self._options
        if options.holds != "correct" and not options.read_only:
            raise ConfigError("a pool server takes correct responses only: collection.failed needs the Redis itself")
        if not options.read_only and name not in self._client.names():
            if options.cap not in (None, DEFAULT_CAP):
                raise ConfigError(
                    f"collection.cap = {options.cap}: a pool that a server makes keeps {DEFAULT_CAP} responses a question; "
                    f"leave the key out, or fill pool {name} through its Redis first"
                )
            return
        stats = self._client.stats()
        if not stats.tokenizer_digest:
            found = ", ".join(self._client.names()) or "none"
            raise PoolError(f"there is no pool {name} on this server; pools found: {found}")
        if stats.tokenizer_digest != tokenizer_digest:
            raise PoolError(
                f"pool {name} holds token ids of tokenizer {stats.tokenizer_digest}; this run's is {tokenizer_digest}. "
                "Use another pool name, or collect again with this model"
            )
        if options.cap not in (None, stats.cap):
            raise PoolError(f"pool {name} was made with at most {stats.cap} trajectories a prompt, not {options.cap}")

    def add(self, trajectories: Sequence[Trajectory]) -> AddReport:
        """See ``Pool.add``."""
        return self._client.add(trajectories)

    def sample(self, prompt_ids: Sequence[str], count: int, *, seed: int, step: int) -> Sample:
        """See ``Pool.sample``."""
        return self._client.sample(prompt_ids, count, seed=seed, step=step, minimum=self._options.minimum)

    def stats(self) -> PoolStats:
        """See ``Pool.stats``."""
        return self._client.stats()

    def digest(self) -> str:
        """See ``Pool.digest``."""
        return self._client.digest()

    def prompt_ids(self) -> list[str]:
        """See ``Pool.prompt_ids``."""
        return self._client.prompt_ids()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _token(file: Path) -> str:
    """What the file holds. Raises ``ConfigError``."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"pool.token_file = {file} cannot be read: {why}") from None
    if not token or len(token.split()) != 1:
        raise ConfigError(f"pool.token_file = {file} does not hold one token and nothing else")
    return token
