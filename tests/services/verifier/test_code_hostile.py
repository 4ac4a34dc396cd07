"""More than ninety hostile programs: none is graded correct, none leaves a trace, and the verifier goes on."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlep.core.errors import ConfigError, VerifierError
from rlep.services.verifier import code_run
from rlep.services.verifier.code_child import plain
from rlep.services.verifier.code_verifier import CodeVerifier
from rlep.services.worker.jail import Limits
from tests.services.verifier.code_hostile import EXHAUSTING, FORGING, REACHING, READING

GOLD = json.dumps({"tests": ["assert f(2) == 7310462"]})
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=4, memory_mb=256)


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    with CodeVerifier(workers=2, limits=LIMITS) as made:
        yield made


def block(program: str) -> str:
    return f"```python\n{program}\n```"


def programs_left() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "code_child.py" in " ".join(one.cmdline())]


@pytest.mark.parametrize("kind", [READING, FORGING, EXHAUSTING, REACHING], ids=["read", "forge", "exhaust", "reach"])
def test_no_hostile_program_is_correct_or_leaves_a_trace(
    verifier: CodeVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    monkeypatch.setenv("EXPECTED", "7310462")
    canary, new = tmp_path / "canary.py", tmp_path / "new"
    canary.write_text("7310462")
    before = canary.stat()
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as local,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
    ):
        local.bind(str(tmp_path / "socket"))
        local.listen()
        values = {"CANARY": canary, "NEW": new, "PORT": tcp.getsockname()[1], "SOCKET": tmp_path / "socket"}
        values |= {"VICTIM": victim.pid, "PARENT": os.getpid()}
        texts = [block(re.sub("|".join(values), lambda found: str(values[found[0]]), one)) for one in kind.values()]
        verdicts = verifier.grade(GOLD, texts, [False] * len(texts))
        found = {name: verdict.status for name, verdict in zip(kind, verdicts, strict=True)}
        assert "correct" not in found.values(), found
        endless = {"sleep", "a closed pipe", "a slow pattern", *(name for name in kind if name.startswith("a loop"))}
        assert all(found[name] == "timeout" for name in endless & {*kind}), found
        memory = ("one allocation", "a list without end")
        assert all(found[name] == "out_of_memory" for name in memory if name in kind), found
        assert victim.poll() is None
        watched = psutil.Process(victim.pid)
        assert (watched.nice(), len(watched.cpu_affinity())) == (psutil.Process().nice(), len(os.sched_getaffinity(0)))
        assert watched.rlimit(psutil.RLIMIT_NOFILE) != (5, 5)
        for listener in (tcp, local):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
        victim.communicate(b"\n")
    assert {path.name for path in tmp_path.iterdir()} == {"canary.py", "socket"}
    after = canary.stat()
    assert canary.read_text() == "7310462"
    assert (after.st_mtime_ns, stat.S_IMODE(after.st_mode)) == (before.st_mtime_ns, stat.S_IMODE(before.st_mode))
    assert programs_left() == []
    right = verifier.grade(GOLD, [block("def f(n): return 7310460 + n")], [False])
    assert right[0].status == "correct"


SAME_HASH = [["int", hex((2**61 - 1) * number)] for number in range(300)]  # each has the hash 0


@pytest.mark.parametrize(
    "claimed",
    [
        *("", "[", "3", "null", "{}", "[null]", "[[]]", '[["int"]]', '[["int", "0x1", 2]]', "[[[], []]]", "[[{}, 1]]"),
        *(
            '[["int", 3]]',
            '[["int", null]]',
            '[["int", "x"]]',
            '[["int", "0x1e400"], 3]',
            '[["bool", 1]]',
            '[["str", 1]]',
        ),
        *(
            '[["float", 1e400]]',
            f'[["float", 1{400 * "0"}]]',
            f'[["float", "{33 * "1"}"]]',
            f'[["int", 1{5000 * "0"}]]',
        ),
        *(
            '[["bytes", "0"]]',
            '[["bytes", 3]]',
            '[["object", 3]]',
            '[["list", 3]]',
            '[["list", {"a": 1}]]',
            '[["dict", 3]]',
        ),
        *('[["set", [["list", []]]]]', '[["dict", [["str", "a"]]]]', '[["dict", [[["list", []], ["None", null]]]]]'),
        60 * '[["list", ' + "[]" + 60 * "]]",
        "[" * 100_000,
        json.dumps([["set", SAME_HASH]]),
        json.dumps([["frozenset", SAME_HASH]]),
        json.dumps([["dict", [[key, ["None", None]] for key in SAME_HASH]]]),
    ],
)
def test_what_a_program_claims_in_another_form_is_no_value(claimed: str) -> None:
    assert code_run.read_values(claimed.encode()) is None


def test_values_in_their_form_are_read() -> None:
    values = [{1: [True, None]}, {(-1, 2.5)}, "\ud800", b"\xff", float("inf"), frozenset({10**5000}), {2**61 - 1, 0}]
    assert code_run.read_values(json.dumps([plain(value, 0) for value in values]).encode()) == values


def test_scripts_neither_flood_nor_hang(verifier: CodeVerifier) -> None:
    gold = json.dumps({"io": [{"stdin": "1\n", "stdout": "1\n"}]})
    programs = {
        "print(input())": "correct",
        "while True: print('1')": "wrong",
        "import os\nwhile True: os.write(1, b'x' * 65536)": "wrong",
        "print(input())\nwhile True: pass": "timeout",
        "print(input())\nimport os\nos.close(1)\nwhile True: pass": "timeout",
        "print(input())\nraise ValueError": "wrong",
        "print(input())\nimport os\nos.abort()": "crashed",
        "import sys\nprint(input())\nsys.exit(3)": "wrong",
        "import sys\nprint(input())\nsys.exit()": "correct",
        "print(input()); input()": "wrong",
        "print(input())\nexit(0)": "correct",
        "def main():\n    print(input())\n    quit()\nmain()\nprint(2)": "correct",
        "print(2)\nexit()": "wrong",
        "print(input())\nexit('no')": "wrong",
    }
    verdicts = verifier.grade(gold, [block(program) for program in programs], [False] * len(programs))
    assert {name: one.status for name, one in zip(programs, verdicts, strict=True)} == programs


def test_where_a_layer_is_missing_no_program_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Path(code_run._CHILD)
    confinement = Path("worker", "confinement.py")
    written = (child.parents[1] / confinement).read_text()
    assert written.count("_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446") == 1
    crippled = tmp_path / "verifier" / child.name
    for path in (crippled, tmp_path / confinement):
        path.parent.mkdir()
    crippled.write_text(child.read_text())
    (tmp_path / confinement).write_text(written.replace("_SELF = 444, 445, 446", "_SELF = 9999, 445, 446"))
    monkeypatch.setattr(code_run, "_CHILD", str(crippled))
    with pytest.raises(ConfigError, match=r"profile code: no program can be confined here.*Landlock \(Linux 5\.13"):
        CodeVerifier(limits=LIMITS)
    crippled.write_text("raise SystemExit(3)")
    with pytest.raises(VerifierError, match="ended with code 3 before it was confined"):
        code_run.run_calls("", [], LIMITS, expected=0)


def test_it_works_without_privileges() -> None:
    script = (
        "from rlep.services.verifier.code_run import read_values, run_calls\nfrom rlep.services.worker.jail import Limits\n"
        "print(open('/proc/self/status').read().split('CapEff:')[1].split()[0])\n"
        "print(read_values(run_calls('x = 3', [('x + 1', True)], Limits(), expected=0).output))"
    )
    # A new user namespace without any user of the old one: what is started in it has no capability.
    start = "import ctypes, os, sys\nctypes.CDLL(None).unshare(0x10000000)\n"
    start += f"os.execv(sys.executable, [sys.executable, '-c', {script!r}])"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0000000000000000\n[4]\n"), done.stderr
