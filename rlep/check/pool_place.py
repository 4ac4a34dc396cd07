"""From the config to where a run's pool is."""

from __future__ import annotations

from pathlib import Path

from rlep.config.schema import Config
from rlep.services.pool.values import PoolPlace


def pool_place(config: Config) -> PoolPlace:
    """Absolute, for an actor in another directory."""
    pool = config.pool
    token, authority = (_absolute(path) for path in (pool.token_file, pool.ca_file))
    return PoolPlace(pool.url, config.pool_directory.absolute(), pool.name, token, authority)


def pool_exists(config: Config) -> bool:
    """Tell whether the embedded pool's directory holds one; what is at ``pool.url`` says so itself."""
    return config.pool.url is not None or (config.pool_directory / "redis.conf").is_file()


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
