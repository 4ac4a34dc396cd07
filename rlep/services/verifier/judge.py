"""Profile ``judge:FILE``: a model behind an OpenAI-compatible address scores responses, as the file says."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import os
import re
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rlep.core.errors import ConfigError
from rlep.services.verifier.answers import after_thinking
from rlep.services.verifier.reward_call import UnknownName

if TYPE_CHECKING:
    import httpx

JUDGE = "judge "
"""A worker's task, before the path of the file."""
TOKEN = "RLEP_JUDGE_TOKEN"
"""Environment variable with the token that the server asks for, if it does."""
_NAMES = re.compile(r"\{(\{)?([A-Za-z_]\w*)\}(?(1)\})")
_CONNECT_S = 10.0
_MAX_ANSWER = 1 << 24
"""Bytes of an answer that are read."""
HIDDEN = "[token]"
"""Text in place of the token, where a server repeats it."""


class NoScore(ValueError):
    """The judge's answer has no score: the response is ``crashed``, as the judge says nothing about it."""


@dataclass(frozen=True, slots=True)
class JudgeFile:
    """Settings of a judge, as the TOML file has them."""

    url: str
    """Address up to the version, e.g. ``http://127.0.0.1:8000/v1``."""
    model: str
    """Name under which the server knows the model."""
    prompt: str
    """Message to the judge; ``{prompt}``, ``{response}``, ``{reference}`` and columns are filled in; ``{{x}}`` is ``{x}``."""
    score: str = r"<score>\s*([-+.\d]+)\s*</score>\W*$"
    """Regular expression; group 1 of its last match in the answer, after any thinking, is the score.

    By default the answer has to end with it: a judge that quotes a score out of the response gives none.
    """
    range: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """Lowest and highest score that the prompt asks for."""
    temperature: float = 0.0
    max_tokens: int = 1024
    extra: dict[str, object] = field(default_factory=dict)
    """Further fields of the request, e.g. ``chat_template_kwargs``."""

    @property
    def digest(self) -> str:
        """Eight hex digits that name the judge, wherever it is served."""
        named = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "url"}
        return hashlib.blake2b(json.dumps(named, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()


def read_judge(path: Path) -> JudgeFile:
    """Read the settings of a judge. Raises ConfigError naming the key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"judge file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"judge file {path} is not TOML: {error}") from None
    texts, numbers = ("url", "model", "prompt", "score"), ("temperature", "max_tokens")
    known = (*texts, *numbers, "range", "extra")
    kinds = dict.fromkeys(texts, (str,)) | dict.fromkeys(numbers, (int, float)) | {"range": (list,), "extra": (dict,)}
    faults = [f"has no {key}" for key in texts[:3] if key not in raw]
    faults += [f"has an unknown key {key}; known are {', '.join(known)}" for key in raw if key not in known]
    faults += [f"{key} = {raw[key]!r}" for key in known if key in raw and not isinstance(raw[key], kinds[key])]
    if faults:
        raise ConfigError(f"judge file {path}: {faults[0]}")
    judge = JudgeFile(**raw)
    if fault := _fault_of(judge):
        raise ConfigError(f"judge file {path}: {fault}")
    return judge


def _fault_of(judge: JudgeFile) -> str:
    try:
        parts = urlsplit(judge.url)
        host = parts.hostname if parts.scheme in ("http", "https") and parts.port != 0 else None
    except ValueError:
        host = None
    if not host:
        return f"url = {judge.url!r} is not http://HOST:PORT/v1 or https://…"
    if parts.username or parts.password:
        return f"url holds a name or password; give the token in {TOKEN} instead"
    if os.environ.get(TOKEN) and parts.scheme == "http" and not _is_loopback(host):
        return f"url = {judge.url!r} would carry the token in {TOKEN} in the clear: take https://, or unset it"
    if (token := os.environ.get(TOKEN)) and not (token.isascii() and token.isprintable() and " " not in token):
        return f"the token in {TOKEN} has a character that no header may have, e.g. a line break at its end"
    if ("", "response") not in _NAMES.findall(judge.prompt):
        return "prompt does not hold {response}, so every response would get the same score"
    try:
        groups = re.compile(judge.score).groups
    except re.error as error:
        return f"score = {judge.score!r} is no regular expression: {error}"
    if not groups:
        return f"score = {judge.score!r} has no group (…) for the number"
    numbers = [number for number in judge.range if isinstance(number, int | float) and math.isfinite(number)]
    if len(judge.range) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
        return f"range = {judge.range} is not two numbers, the lowest score and the highest"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def judge_function(judge: JudgeFile) -> Callable[..., Awaitable[float]]:
    """The judge as a reward function."""
    import httpx

    token = os.environ.get(TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # The deadline is the caller's.
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    # A proxy before loopback would get the token.
    direct = {judge.url: None} if _is_loopback(urlsplit(judge.url).hostname or "") else {}
    client = httpx.AsyncClient(headers=headers, timeout=timeout, mounts=direct)
    low, high = judge.range

    async def score(prompt: str, response: str, reference: str, **columns: object) -> float:
        given = columns | {"prompt": prompt, "response": response, "reference": reference}
        message = {"role": "user", "content": filled(judge.prompt, given)}
        sampling = {"temperature": judge.temperature, "max_tokens": judge.max_tokens}
        request = {"model": judge.model, "messages": [message]} | sampling | judge.extra
        async with client.stream("POST", f"{judge.url.rstrip('/')}/chat/completions", json=request) as answer:
            body = await _body_of(answer, token)
        if not answer.is_success:  # the server says why, in a field that is not the same everywhere
            moved = hide(answer.headers.get("location", ""), token)
            text = hide(body.decode(answer.encoding or "utf-8", errors="replace"), token)
            reason = f"to {moved}, which is not followed" if moved else " ".join(text[:300].split())
            raise httpx.HTTPStatusError(f"{answer.status_code} {reason}", request=answer.request, response=answer)
        found = score_in(hide(text_of(body), token), judge.score)
        if not low <= found <= high:
            raise NoScore(f"the judge gave {found:g}, which is not in range = [{low:g}, {high:g}]")
        return found

    vars(score)["score_range"] = (low, high)
    return score


async def _body_of(answer: httpx.Response, token: str | None) -> bytes:
    """Read an answer, the token replaced. Raises NoScore where it is too long."""
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > _MAX_ANSWER:
            raise NoScore(f"the server's answer has more than {_MAX_ANSWER} bytes")
    return bytes(body).replace(token.encode(), HIDDEN.encode()) if token else bytes(body)


def hide(text: str, token: str | None) -> str:
    """Replace the token, which a server may repeat: the reasons of verdicts are stored and shown."""
    return text.replace(token, HIDDEN) if token else text


def filled(prompt: str, values: Mapping[str, object]) -> str:
    """The prompt with its names in braces replaced, once: no text that is filled in is looked at. Raises UnknownName."""

    def value(match: re.Match[str]) -> str:
        doubled, name = match.groups()
        if doubled:
            return f"{{{name}}}"
        if name not in values:
            raise UnknownName(
                f"the judge's prompt holds {{{name}}}: the row has {', '.join(values)}; braces themselves are {{{{{name}}}}}"
            )
        found = values[name]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return _NAMES.sub(value, prompt)


def text_of(body: bytes) -> str:
    """The answer in a chat completion. Raises NoScore."""
    try:
        text = json.loads(body)["choices"][0]["message"]["content"] or ""
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise NoScore(f"the server's answer is no chat completion: {body[:120]!r}")
    return text


def score_in(answer: str, pattern: str) -> float:
    """The number that an answer ends with. Raises NoScore."""
    final = after_thinking(answer)
    found = re.findall(pattern, final or "")
    text = found[-1] if found else ""
    try:
        return float(text[0] if isinstance(text, tuple) else text)
    except ValueError:
        said = f"ends with {answer[-80:]!r}" if answer else "is empty"
        raise NoScore(f"the judge's answer {said}, in which score = {pattern!r} finds no number") from None
