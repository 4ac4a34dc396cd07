"""RLEP: reinforcement learning with experience replay. The pool clients are loaded when they are first named."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlep.services.pool.rpc.async_client import AsyncPoolClient
    from rlep.services.pool.rpc.client import PoolClient
    from rlep.services.pool.rpc.tls import ClientTls

__all__ = ["AsyncPoolClient", "ClientTls", "PoolClient"]
_HOMES = {"AsyncPoolClient": "rpc.async_client", "PoolClient": "rpc.client", "ClientTls": "rpc.tls"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"rlep.services.pool.{_HOMES[name]}"), name)
