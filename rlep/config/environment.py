"""The section of the environment that policies act in, and of its workers."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from rlep.config.roles import WorkerRoleConfig
from rlep.config.section import Positive, Seconds, assigned, clashes, option
from rlep.core.errors import ConfigError


class EnvironmentConfig(WorkerRoleConfig):
    """Environment actors; each supervises killable worker processes, and each of those has many episodes."""

    factory: str | None = option(
        None,
        excludes=[
            clashes(
                "rollout.partial",
                "abort",
                because="an episode keeps the turns that are complete, so that it has tokens of several versions anyway; "
                'choose "keep"',
            ),
        ],
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
    )
    """Class of the environment, ``module:Class``, e.g. ``rlep.environments.calculator:Calculator``: one object for each response,
    which is then an episode of several turns; see ``docs/reference/environments.md``. None: no response has one."""
    turns: Positive = 8
    """Most turns of the policy in an episode; the last of them gets no observation."""
    observation_tokens: Positive = 512
    """Longest observation in tokens; a longer one is cut, and says so. A worker keeps 16 characters for each of them."""
    deadline_s: Seconds = 30
    """Longest call of a tool, of ``step``, ``reset`` or ``get_reward``, its waits included; then the episode is ``timeout``."""
    network: bool = False
    """Environments may use the network, and threads."""

    @model_validator(mode="after")
    def _of_use(self) -> Self:
        if self.factory is None:
            for name, field in type(self).model_fields.items():
                if (value := getattr(self, name)) != field.get_default(call_default_factory=True):
                    raise ConfigError(
                        f"{assigned(f'environment.{name}', value)} without environment.factory: no response has an environment; "
                        "set environment.factory, or leave the key out"
                    )
        if self.deadline_s < self.cpu_seconds:
            raise ConfigError(
                f"environment.deadline_s = {self.deadline_s:g} is less than environment.cpu_seconds = {self.cpu_seconds:g}: "
                "a call waits and computes; raise it, or lower environment.cpu_seconds"
            )
        return self
