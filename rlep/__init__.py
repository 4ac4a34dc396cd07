"""RLEP: reinforcement learning with experience replay. Each name is loaded from its module when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlep.algorithms.advantages import group_advantages
    from rlep.algorithms.loss import policy_loss
    from rlep.algorithms.shaping import overlong_penalty
    from rlep.core.types import Provenance, Sampling, Trajectory, Verdict, prompt_id_of
    from rlep.engines.tokenizer import load_tokenizer
    from rlep.services.pool.files.texts import trajectory_from_text
    from rlep.services.pool.rpc.async_client import AsyncPoolClient
    from rlep.services.pool.rpc.client import PoolClient
    from rlep.services.pool.rpc.tls import ClientTls

__all__ = [
    "AsyncPoolClient",
    "ClientTls",
    "PoolClient",
    "Provenance",
    "Sampling",
    "Trajectory",
    "Verdict",
    "group_advantages",
    "load_tokenizer",
    "overlong_penalty",
    "policy_loss",
    "prompt_id_of",
    "trajectory_from_text",
]
_HOMES = {
    "AsyncPoolClient": "rlep.services.pool.rpc.async_client",
    "ClientTls": "rlep.services.pool.rpc.tls",
    "PoolClient": "rlep.services.pool.rpc.client",
    "group_advantages": "rlep.algorithms.advantages",
    "load_tokenizer": "rlep.engines.tokenizer",
    "overlong_penalty": "rlep.algorithms.shaping",
    "policy_loss": "rlep.algorithms.loss",
    "trajectory_from_text": "rlep.services.pool.files.texts",
} | dict.fromkeys(("Provenance", "Sampling", "Trajectory", "Verdict", "prompt_id_of"), "rlep.core.types")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from rlep.core.versions import missing_extra

        raise missing_extra(error) or error from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
