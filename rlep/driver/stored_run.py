"""Trust in the config of a run directory, which may come from anybody: an archive, a shared disk, the hub.

A run seals its config with a key that only this user reads. A sealed config is used whole. Of any other, `evaluate` takes
what describes model, sampling and grading: no address, module, engine argument or resource.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlep.config.roles import FUNCTIONS
from rlep.config.schema import Config
from rlep.config.settings import as_override, differences, parse_stored_config
from rlep.core.errors import CheckpointError, ConfigError
from rlep.core.paths import check_own, read_own, read_regular

CONFIG, MANIFEST, SEAL = "config.json", "manifest.json", "config_seal"
MAX_BYTES = 1 << 24
"""Bytes of a recorded file that is read."""

DESCRIBING = (
    *("model.chat_template", "model.system_prompt", "model.template"),
    *("data.question", "data.answer", "data.max_prompt_tokens", "data.max_bad_rows"),
    *("rollout.max_tokens", "rollout.stop", "rollout.stop_tokens", "evaluation."),
    *("reward.overlong_buffer", "verifier.profile", "verifier.correct_at", "verifier.answer_after"),
    *("verifier.cpu_seconds", "generator.dtype"),
)
"""Keys of an unsealed config that an evaluation uses; a name with a final dot is a whole section."""
FILES = ("data.evaluation", "model.template_file")
"""Keys that name files to read: used where config and directory are this user's (``check_own``), e.g. of an own old run."""
DECIDING = ("model.template_file", "verifier.profile", "environment.factory")
"""Keys without which the evaluation would measure something else, so that the command has to name them."""
_USED = ("model.", "data.evaluation", "generator.", "verifier.", "environment.", "cluster.")
_UNUSED = ("model.path", "model.revision")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The config of a run, as far as an evaluation may use it."""

    config: Config
    whole: Config
    """Everything that is recorded: facts about the run, never instructions."""
    left_out: tuple[str, ...]
    """Lines for the user about keys that were not used."""


def read_recorded(path: Path, name: str) -> dict[str, Any]:
    """Return what a file of the run directory ``path`` records. Raises ``CheckpointError`` where it is damaged or missing."""
    try:
        found = json.loads(read_regular(path / name, most=MAX_BYTES))
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        return found
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise CheckpointError(
            f"{path / name} is damaged: restore it, or choose another run.directory ({error})"
        ) from None


def stored_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Return the config that a run left in ``path``. Raises ``CheckpointError`` or ``ConfigError`` where it cannot be used.

    Whoever acts on its addresses, files or modules asks ``is_sealed`` first.
    """
    return parse_stored_config(read_recorded(path, CONFIG), path / CONFIG, overrides)


def seal(config: str) -> str:
    """Return the seal of a config's text: its HMAC-SHA256 by this user's key; empty where no key can be kept."""
    try:
        key = _key(make=True)
    except (OSError, ConfigError):  # no home directory, or a full one
        return ""
    return hmac.new(key, config.encode(), hashlib.sha256).hexdigest()


def is_sealed(run: Path) -> bool:
    """Tell whether rlep wrote the run's config as this user, and nobody has changed it since."""
    try:
        text, key = read_regular(run / CONFIG, most=MAX_BYTES), _key(make=False)
        manifest = json.loads(read_regular(run / MANIFEST, most=MAX_BYTES))
    except (OSError, ValueError, RecursionError, ConfigError):
        return False
    found = manifest.get(SEAL) if isinstance(manifest, dict) else None
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return isinstance(found, str) and hmac.compare_digest(found.encode(), expected.encode())


def evaluated_config(run: Path, overrides: Sequence[str] = ()) -> StoredRun:
    """Return the run's config for an evaluation, with ``key=value`` overrides of the command.

    Raises ``ConfigError`` where an unsealed config names a file or module that decides the result: the command names it then.
    """
    whole = stored_config(run)
    if is_sealed(run):
        config = stored_config(run, overrides)
        return StoredRun(config, config, ())
    named = {text.partition("=")[0].strip() for text in overrides}
    taken = [*DESCRIBING, *(FILES if _is_own(run) else ())]
    taken += ["environment.turns", "environment.observation_tokens"] if "environment.factory" in named else []
    recorded = whole.model_dump(mode="json")
    if whole.verifier.profile.startswith(FUNCTIONS):  # code, or the file of a judge that would get the user's token
        taken.remove("verifier.profile")
    changed = {key: value for key, (_, value) in differences(Config(), whole).items()}
    left = {key: value for key, value in changed.items() if not (_is_below(key, taken) or _is_below(key, named))}
    why = f"{run / CONFIG} was not written by rlep as this user, or has changed since"
    for key in DECIDING:
        if left.get(key):
            raise ConfigError(
                f"{why}, so its {key} = {json.dumps(left[key])} is not used: see what that is, then name it in this command, "
                f"{as_override(key, left[key])}, or give a config of your own (--config)"
            )
    config = parse_stored_config(_part(recorded, taken), run / CONFIG, overrides)
    unused = [f"{key} = {json.dumps(left[key])}" for key in left if _is_below(key, _USED) and key not in _UNUSED]
    lines = [f"{why}: left out {', '.join(unused)}; name what you need by --set"] if unused else []
    return StoredRun(config, whole, tuple(lines))


def _part(recorded: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return these keys and sections of a recorded config."""
    part: dict[str, Any] = {}
    for section, _, key in (name.partition(".") for name in names):
        part.setdefault(section, {}).update({key: recorded[section][key]} if key else recorded[section])
    return part


def _is_below(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(name if name.endswith(".") else f"{name}.") for name in names)


def _is_own(run: Path) -> bool:
    try:
        check_own(run, run.stat())
        read_own(run / CONFIG, most=MAX_BYTES)
    except (OSError, ConfigError):
        return False
    return True


def _key(*, make: bool) -> bytes:
    """Return this user's key. Raises ``OSError`` or ``ConfigError`` where there is none that only the user reads."""
    state = os.environ.get("XDG_STATE_HOME", "")
    path = (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "rlep" / "seal.key"
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            with suppress(FileExistsError):  # another process of this user was first
                os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
    return read_own(path, most=1024, others=0o077).encode()
