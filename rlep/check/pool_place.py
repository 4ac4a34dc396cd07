"""From the config to where a run's pool is."""

from __future__ import annotations

import os
from pathlib import Path

from rlep.config.schema import Config
from rlep.services.pool.values import PoolPlace


def pool_place(config: Config) -> PoolPlace:
    """Absolute, for an actor in another directory."""
    pool = config.pool
    token, authority = (_absolute(path) for path in (pool.token_file, pool.ca_file))
    # An actor has the environment of its node, which may not name the file; a password that stands in ours stays here.
    named = None if os.environ.get("RLEP_REDIS_PASSWORD") else os.environ.get("RLEP_REDIS_PASSWORD_FILE")
    password = _absolute(Path(named)) if named and pool.url else None
    directory = config.pool_directory.absolute()
    return PoolPlace(pool.url, directory, pool.name, token, authority, password_file=password)


def pool_exists(config: Config) -> bool:
    """Tell whether the embedded pool's directory holds one; what is at ``pool.url`` says so itself."""
    return config.pool.url is not None or (config.pool_directory / "redis.conf").is_file()


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
