"""Profile ``code``: the response's last Python block is run against the reference's tests, in confined processes."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlep.core.errors import ConfigError, DataError, VerifierError
from rlep.core.types import Status, Verdict
from rlep.services.verifier.answers import after_thinking
from rlep.services.verifier.base import BaseVerifier, Pair
from rlep.services.verifier.code_run import Finished, one_line, read_exception, read_values, run_calls, run_script
from rlep.services.verifier.code_tests import Call, CodeTests, read_tests, same_output
from rlep.services.verifier.judgement import MAX_EXTRACTED
from rlep.services.worker.jail import Limits

NAME = "code"
MAX_PROGRAM_CHARS = 65_536
"""Longer programs are never run (``unparsable``)."""
_TEST = '{"tests": ["assert double(3) == 6"]}'
_LANGUAGES = frozenset({"py", "python", "python3"})


class CodeVerifier(BaseVerifier):
    """Runs programs; ``correct`` where every test holds. ``docs/reference/verifier.md`` says what a program can and cannot do.

    References are JSON, see ``read_tests``; ``grade`` raises DataError for any other. ``cpu_seconds`` of the limits is for
    each process: one for all ``tests`` of a program, one for each ``io``.
    """

    self_test = (
        (_TEST, "```python\ndef double(n):\n    return 2 * n\n```", "correct"),
        (_TEST, "```python\ndef double(n):\n    return n\n```", "wrong"),
    )

    def __init__(self, *, workers: int = 1, limits: Limits | None = None) -> None:
        """``workers`` programs run at once. Raises ConfigError where this machine cannot confine them."""
        if workers < 1:
            raise ConfigError(f"verifier workers must be at least 1, not {workers}")
        super().__init__(NAME)
        self._limits = limits or Limits()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="code-verifier")
        try:
            self._threads.submit(run_calls, "", [], self._limits, expected=0).result()
        except VerifierError as error:
            self.close()
            raise ConfigError(f"verifier profile code: {error}") from error

    def reference_fault(self, reference: str) -> str:
        """Why ``reference`` holds no tests that can be run; empty where it does."""
        try:
            read_tests(reference)
        except DataError as error:
            return str(error)
        return ""

    def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        jobs: dict[tuple[str, str], list[int]] = {}
        for index, (reference, text, *_) in enumerate(pairs):
            read_tests(reference)
            program = program_of(text)
            if program is None:
                verdicts[index] = Verdict("no_answer", None, self.name, self.version, "fast")
            elif len(program) > MAX_PROGRAM_CHARS:
                verdicts[index] = Verdict("unparsable", program[:MAX_EXTRACTED], self.name, self.version, "gate")
            else:
                jobs.setdefault((reference, program), []).append(index)
        for indices, verdict in zip(jobs.values(), self._threads.map(self._verdict, jobs), strict=True):
            verdicts |= dict.fromkeys(indices, verdict)
        return [verdicts[index] for index in range(len(pairs))]

    def _verdict(self, job: tuple[str, str]) -> Verdict:
        reference, program = job
        started = time.perf_counter()
        status, reason = self._found(read_tests(reference), program, len(reference))
        seconds = time.perf_counter() - started
        return Verdict(status, program[:MAX_EXTRACTED], self.name, self.version, "full", seconds, reason=reason)

    def _found(self, tests: CodeTests, program: str, size: int) -> tuple[Status, str]:
        """The status, and which test is to blame for it."""
        if tests.calls:
            shown = [(call.source, call.check is not None) for call in tests.calls]
            finished = run_calls(program, shown, self._limits, expected=size)
            reason = fault_of(tests.calls, finished.output)
            status = _status_of(finished, not reason)
            return status, reason if status == "wrong" else ""
        for at, one in enumerate(tests.exchanges):
            finished = run_script(program, one.stdin, self._limits, expected=len(one.stdout))
            printed = finished.output.decode(errors="replace")
            status = _status_of(finished, same_output(printed, one.stdout))
            if status != "correct":
                return status, f"io[{at}]: {_of_exchange(finished, printed) if status == 'wrong' else status}"
        return "correct", ""

    def close(self) -> None:
        """Finish what was begun, then end. Idempotent."""
        self._threads.shutdown()


_FENCE = re.compile(r"([ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]*)?)(`{3,}|~{3,})[ \t]*([^`]*)")
"""The text before it, of a list too, its marks, and the words behind them, of which the first is the language."""


def program_of(text: str) -> str | None:
    """The last closed block fenced with ``python`` or ``py`` after the last closed think block, else without any word.

    Behind a program a block without a word is often what it prints. The lines of a fence that is indented lose as much.
    """
    final = after_thinking(text)
    if final is None:
        return None
    found: dict[bool, str] = {}
    fence: re.Match[str] | None = None
    block: list[str] = []
    for line in final.splitlines(keepends=True):
        this = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            fence, block = this, []
        elif this is not None and not this[1].strip() and not this[3] and this[2].startswith(fence[2]):
            language = fence[3].lower().partition(" ")[0]
            if not language or language in _LANGUAGES:
                found[bool(language)] = "".join(_unindented(block, len(fence[1])))
            fence = None
        else:
            block.append(line)
    return found.get(True, found.get(False))


def _unindented(block: Sequence[str], most: int) -> list[str]:
    """Without the indentation of the first line that is not empty, of which ``most`` characters may go."""
    first = next((line for line in block if line.strip()), "")
    most = min(most, _indentation(first))
    return [line[min(most, _indentation(line)) :] for line in block]


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def fault_of(calls: Sequence[Call], output: bytes) -> str:
    """The first test that does not hold of the values that a program's process reports; empty where all hold."""
    checks = [call for call in calls if call.check is not None]
    values = read_values(output)
    if values is None or len(values) != len(checks):
        return read_exception(output) or "the program ended before its tests"
    for call, value in zip(checks, values, strict=True):
        if not _holds(call.check, value):
            return f"{call.test} does not hold: it is {_shown(value)}"
    return ""


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except ValueError:  # of whole numbers with thousands of digits
        return f"a very long {type(value).__name__}"


def _of_exchange(finished: Finished, printed: str) -> str:
    if finished.flooded:
        return "it printed too much"
    if finished.exit_code:
        return f"it ended with code {finished.exit_code}, as for an exception"
    return f"it printed {one_line(repr(printed))}"


def _holds(check: object, value: object) -> bool:
    assert callable(check)
    try:
        return bool(check(value))
    except (TypeError, ValueError, ArithmeticError):  # as comparing a list with a number
        return False


def _status_of(finished: Finished, right: bool) -> Status:
    if finished.status is not None:
        return finished.status
    if finished.exit_code < 0 and not finished.flooded:
        return "crashed"
    return "correct" if right and finished.exit_code == 0 and not finished.flooded else "wrong"
