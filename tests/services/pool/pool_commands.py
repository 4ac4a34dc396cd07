"""``rlep pool …`` as a test runs it, and the questions it is about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from rlep.cli import app
from rlep.core.types import Provenance, Sampling, Trajectory, Verdict, prompt_id_of
from rlep.engines.tokenizer import Tokenizer
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.pool import Pool

MODEL = Path(__file__).parents[3] / "rlep" / "quickstart" / "model"
ROWS = [{"problem": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
IDS = [prompt_id_of(row["problem"], row["answer"]) for row in ROWS]


class Commands:
    """``rlep pool VERB …`` on the pools of one directory."""

    def __init__(self, server: EmbeddedRedis, tokenizer: Tokenizer, data: Path, name: str) -> None:
        self.server, self.tokenizer, self.name = server, tokenizer, name
        self.settings = ["--set", f'model.path="{MODEL}"', "--set", f'data.train="{data}"']
        self.place = [f'pool.directory="{server.directory}"']
        """Settings that say where the pools are."""

    def words(self, *words: str | Path, name: str | None = None) -> list[str]:
        where = [word for text in self.place for word in ("--set", text)]
        return ["pool", *map(str, words), *where, "--name", name or self.name, *self.settings]

    def run(self, *words: str | Path, name: str | None = None, given: str | None = None) -> Result:
        return CliRunner().invoke(app, self.words(*words, name=name), input=given)

    def ok(self, *words: str | Path, name: str | None = None) -> str:
        """What it prints; nothing goes to standard error, for that is no terminal here."""
        result = self.run(*words, name=name)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    def json(self, *words: str | Path, name: str | None = None) -> Any:
        return json.loads(self.ok(*words, "--json", name=name))

    def checked(self, name: str | None = None) -> dict[str, Any]:
        """The findings of ``rlep check`` about the pool, by what they are about."""
        where = [*self.place, f'pool.name="{name or self.name}"']
        words = ["check", "--json", *(word for text in where for word in ("--set", text)), *self.settings]
        found = json.loads(CliRunner().invoke(app, words).stdout)["findings"]
        return {finding["what"]: finding for finding in found if finding["what"].startswith("pool ")}

    def mistake(self, *words: str | Path, name: str | None = None, status: int = 2) -> str:
        result = self.run(*words, name=name)
        assert (result.exit_code, result.stdout) == (status, ""), result.output
        return result.stderr.removeprefix("error: ").strip()

    def pool(self, name: str | None = None) -> Pool:
        password = self.server.password_file
        digest = self.tokenizer.digest
        return Pool.open(self.server.url, name or self.name, tokenizer_digest=digest, password_file=password)

    def answer(self, n: int, text: str, **changes: Any) -> Trajectory:
        """An answer to question n with this text, found correct by ``math`` of version 0."""
        tokens = self.tokenizer.encode_response(text)
        verdict = Verdict("correct", ROWS[n]["answer"], "math", "0")
        origin = Provenance("policy", 1, self.tokenizer.digest, Sampling())
        logprobs = np.full(len(tokens), -0.5, np.float32)
        return replace(Trajectory(IDS[n], tokens, logprobs, "stop", verdict, origin, 1000.0), **changes)
