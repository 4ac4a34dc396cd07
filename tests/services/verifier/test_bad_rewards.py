"""Reward functions and modules that misbehave, by real worker processes: each is one sentence, and costs nobody else anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlep.core.errors import ConfigError
from rlep.core.types import Asked, Verdict
from rlep.services.verifier.user_function import FunctionVerifier, source_version
from rlep.services.worker.jail import Limits

HERE = "python:verifier_functions"
NETWORK = Limits(network=True, memory_mb=4096, at_once=4)


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The modules of this directory and of the temporary one are on the path, here and in worker processes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def graded(profile: str, responses: list[str], limits: Limits | None = None, **columns: object) -> list[Verdict]:
    with FunctionVerifier(profile, limits=limits) as verifier:
        return verifier.grade("4", responses, [False] * len(responses), Asked("2 + 2?", json.dumps(columns)))


def refusal(profile: str) -> str:
    """Why the profile cannot serve."""
    with FunctionVerifier(profile) as verifier, pytest.raises(ConfigError) as refused:
        verifier.check()
    return str(refused.value)


@pytest.mark.parametrize("limits", [None, NETWORK], ids=["alone", "network"])
@pytest.mark.parametrize("name", ["quits", "quits_later"])
def test_what_would_end_a_program_is_crashed_with_its_traceback(name: str, limits: Limits | None) -> None:
    found = graded(f"{HERE}:{name}", ["exit", "4", "interrupt", "unusual", "5"], limits)
    assert [verdict.status for verdict in found] == ["crashed", "correct", "crashed", "crashed", "wrong"]
    said = [verdict.reason.splitlines() for verdict in found if verdict.reason]
    assert [lines[0] for lines in said] == [
        f"Quit: {name} raised SystemExit: 3",
        f"Quit: {name} raised KeyboardInterrupt: ",
        f"Quit: {name} raised Unusual: no",
    ]
    assert [lines[-1].strip() for lines in said] == ["raise RAISED[response]()"] * 3


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "blind",
            "blind has no parameter response or solution_str or completions, so every response would get the same score",
        ),
        ("blinder", "blinder has no parameter response or solution_str or completions, so every response would"),
        ("Plugin", "Plugin is a class: name an object of it, plugin = Plugin(…)"),
        ("RETURNED", "RETURNED is a dict, not a function"),
        ("absent", "module 'verifier_functions' has no attribute 'absent'"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_before_a_response_is_shown_to_it(name: str, sentence: str) -> None:
    assert sentence in refusal(f"{HERE}:{name}")


def test_objects_positions_keywords_and_the_rest_are_called_as_they_ask() -> None:
    names = ("plugin", "by_position", "by_keyword", "by_prompts")
    found = {name: graded(f"{HERE}:{name}", ["4", "5"], solution="4") for name in names}
    statuses = {name: tuple(verdict.status for verdict in verdicts) for name, verdicts in found.items()}
    assert statuses == dict.fromkeys(names, ("correct", "wrong"))
    (given,) = graded(f"{HERE}:by_keyword", ["4"], extra_info={"index": 1})
    assert given.status == "wrong"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import sys\nsys.exit('usage: rewards FILE')", "cannot serve: SystemExit: usage: rewards FILE"),
        ("open('/nowhere/table.json')", "No such file or directory: '/nowhere/table.json'"),
        ("from .table import TABLE", "ImportError: attempted relative import with no known parent package"),
        ("import a_package_of_elsewhere", "No module named 'a_package_of_elsewhere'"),
        ("def grade(response:", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(functions: Path, source: str, sentence: str) -> None:
    (functions / "bad_module.py").write_text(source)
    assert sentence in refusal("python:bad_module:grade")


def test_no_package_is_run_to_find_a_module_in_it(functions: Path) -> None:
    package = functions / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nif not os.environ.get('PYTHONHASHSEED'): raise RuntimeError('run here')\n"
    )
    (package / "table.py").write_text("RIGHT = '4'\n")
    source = "from .table import RIGHT\ndef grade(response):\n    return response == RIGHT\n"
    (package / "rewards.py").write_text(source)
    (functions / "alone.py").write_text(source)
    assert source_version("a_package.rewards:grade") == source_version("alone:grade")
    assert [verdict.status for verdict in graded("python:a_package.rewards:grade", ["4", "5"])] == ["correct", "wrong"]
    for absent in ("a_package.table.rewards:grade", "a_package.absent:grade", "absent.rewards:grade"):
        with pytest.raises(ConfigError, match=f"no module {absent[:-6]} here or on the path"):
            source_version(absent)


def test_the_limits_of_memory_are_beyond_what_the_imports_took(functions: Path) -> None:
    (functions / "heavy.py").write_text(
        "BALLAST = b'x' * (200 << 20)\nkept = []\n"
        "def grade(response):\n    kept.append(bytearray(int(response) << 20))\n    return True\n"
    )
    limits = Limits(memory_mb=96, recycle_mb=32)
    found = graded("python:heavy:grade", ["16", "48", "200", "1"], limits)
    assert [verdict.status for verdict in found] == ["correct", "correct", "out_of_memory", "correct"]


def test_what_is_printed_goes_nowhere(functions: Path) -> None:
    (functions / "loud.py").write_text(
        "import os, sys\nprint('x' * (1 << 20))\n"
        "def grade(response):\n    os.write(1, b'x' * (1 << 20))\n    print('y' * (1 << 20), file=sys.stderr)\n"
        "    return not sys.stdin.read()\n"
    )
    assert [verdict.status for verdict in graded("python:loud:grade", ["4", "5"])] == ["correct"] * 2


def test_a_call_that_the_limits_refuse_says_what_allows_it() -> None:
    def reason(response: str) -> str:
        (found,) = graded(f"{HERE}:tries", [response])
        return found.reason.splitlines()[0]

    allowed = "(functions start no processes and change no files; the network and threads need verifier.network = true)"
    assert reason("network") == f"PermissionError: [Errno 1] Operation not permitted {allowed}"
    assert reason("thread") == f"RuntimeError: can't start new thread {allowed}"
