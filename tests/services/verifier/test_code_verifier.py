"""Profile ``code``: which block is run, what a test compares, and which references are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlep.config.roles import VerifierConfig
from rlep.core.errors import ConfigError, DataError
from rlep.services.pool.storage.codec import encode
from rlep.services.verifier.code_tests import read_tests, same_output
from rlep.services.verifier.code_verifier import MAX_PROGRAM_CHARS, CodeVerifier, fault_of, program_of
from rlep.services.verifier.grader import configured_verifier
from tests.services.conftest import MakeTrajectory
from tests.small import rlep


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    with CodeVerifier(workers=2) as made:
        yield made


def test_the_last_closed_python_block_is_run() -> None:
    assert program_of("```python\na\n```\nthen\n```py\nb\n```\n") == "b\n"
    assert program_of("```\na\n```\n```\nb\n```") == "b\n"
    assert program_of("```python\na\n```\nIt prints\n```\n3\n```") == "a\n"
    assert program_of("~~~python\na\n```\n~~~~") == "a\n```\n"
    assert program_of("````python title\na\n```\n````") == "a\n```\n"
    assert program_of("```python\na\n```\n```cpp\nb\n```") == "a\n"
    assert program_of("```python\na\n```\n```python\nnot closed") == "a\n"
    assert (
        program_of("```python\na\n```python\nb\n```") == "a\n```python\nb\n"
    )  # a fence with a language closes nothing
    assert program_of("```sh\nls\n```") is None
    assert program_of("no block") is None
    assert program_of("```python\nold\n```<think>```python\na\n```</think>") is None
    assert program_of("<think>```python\na\n```") is None


def test_a_line_of_spaces_is_searched_once() -> None:
    assert program_of(" " * 200_000 + "x\n```python\na\n```") == "a\n"  # a square of that would be hours


def test_a_block_in_a_list_loses_the_indentation_of_its_fence() -> None:
    program = "def g(n):\n    return 2\n"
    assert program_of("- So:\n    ```python\n    def g(n):\n        return 2\n    ```") == program
    assert program_of("1. ```python\n   def g(n):\n       return 2\n   ```") == program
    assert program_of("\t```python\n\tdef g(n):\n\t    return 2\n\t```") == program
    assert program_of("    ```python\ndef g(n):\n    return 2\n    ```") == program  # only the fence is indented
    assert program_of("  ```Python3\n\n  x = '''\ny\n  '''\n  ```") == "\nx = '''\ny\n'''\n"
    assert program_of("- ```sh\n  ls\n- ```\n  ```") is None  # a fence behind a mark closes nothing


def one_test(test: str, value: str) -> bool:
    """Whether ``test`` holds of a program whose ``f()`` is ``value``, asked of the parts that the verifier uses."""
    from rlep.services.verifier.code_run import run_calls
    from rlep.services.worker.jail import Limits

    (call,) = read_tests(json.dumps({"tests": [test]})).calls
    done = run_calls(f"def f(): return {value}", [(call.source, True)], Limits(), expected=99)
    return not fault_of([call], done.output)


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("assert f() == 3", "3", "4"),
        ("assert 3 == f(), 'message'", "3", "'3'"),
        ("assert f() == [1, (2, 'a'), {'k': None}]", "[1, (2, 'a'), {'k': None}]", "[1, [2, 'a'], {'k': None}]"),
        ("assert f() == {1: 2}", "__import__('collections').Counter([1, 1])", "{1: 3}"),
        ("assert set(f()) == set([1, 2])", "[2, 1, 1]", "[1]"),
        ("assert f() == b'\\xff'", "b'\\xff'", "'\\xff'"),
        ("assert f() == '\\ud800'", "'\\ud800'", "''"),
        ("assert f() == float('inf')", "1e999", "1e99"),
        ("assert f() != 3", "4", "3"),
        ("assert f() < 3", "2", "3"),
        ("assert 3 < f()", "4", "3"),
        ("assert f() in (1, 2)", "2", "3"),
        ("assert f() not in (1, 2)", "3", "2"),
        ("assert f() is None", "None", "0"),
        ("assert f() is True", "True", "1"),
        ("assert f() == True", "1", "0"),
        ("assert f()", "[0]", "[]"),
        ("assert not f()", "''", "'x'"),
        ("assert not f() == 3", "4", "3"),
        ("assert abs(f() - 1.5) < 1e-3", "1.5004", "1.502"),
        ("assert abs(1.5 - f()) <= 1e-3", "1.5004", "'1.5'"),
        ("assert math.isclose(f(), 1.5)", "1.5000000001", "1.500001"),
        ("assert math.isclose(1.5, f(), rel_tol=0, abs_tol=0.1)", "1.55", "1.65"),
        ("assert f() == pytest.approx(2.0)", "2.000001", "2.00001"),
        ("assert f() != approx(2.0)", "2.1", "2.0000001"),
        ("assert round(f(), 2) == 1.23", "1.2301", "1.24"),
        ("assert f()['a'][0] == 1", "{'a': (1,)}", "{'a': ()}"),
        ("assert f() == [0] * 3 + [-(2 ** 2)]", "[0, 0, 0, -4]", "[0, 0, -4]"),
        ("assert f() == 10**9 + 7", "1000000007", "10**9"),
        ("assert f() == (3 + 5, 3 / 2)", "(8, 1.5)", "(8, 1)"),
    ],
)
def test_a_test_is_parted_into_what_is_shown_and_what_is_expected(test: str, right: str, wrong: str) -> None:
    (call,) = read_tests(json.dumps({"tests": [test]})).calls
    assert call.source in ("f()", "bool(f())", "set(f())", "round(f(), 2)", "f()['a'][0]")  # nothing of the other side
    assert one_test(test, right)
    assert not one_test(test, wrong)


def test_statements_before_an_assert_and_conjunctions(verifier: CodeVerifier) -> None:
    gold = json.dumps({"tests": ["x = [3, 1]\nf(x)\nassert x == [1, 3] and len(x) == 2", "assert x[0] == 1"]})
    calls = read_tests(gold).calls
    assert [call.source for call in calls] == ["x = [3, 1]", "f(x)", "x", "len(x)", "x[0]"]
    assert [call.check is None for call in calls] == [True, True, False, False, False]
    texts = ["```python\ndef f(x): x.sort()\n```", "```python\ndef f(x): x.sort(reverse=True)\n```"]
    assert [one.status for one in verifier.grade(gold, texts, [False, False])] == ["correct", "wrong"]


CHECK = "METADATA = {'author': 'a'}\n\n\ndef check(candidate):\n    assert True, 'of no use'\n    assert candidate(3) == 9\n"


@pytest.mark.parametrize(
    "gold",
    [{"tests": [CHECK, "check(sq)"]}, {"tests": [CHECK], "entry_point": "sq"}, {"tests": [CHECK + "\ncheck(sq)"]}],
)
def test_a_function_check_is_called_with_what_it_tests(verifier: CodeVerifier, gold: object) -> None:
    calls = read_tests(json.dumps(gold)).calls
    assert [call.source for call in calls] == ["METADATA = {'author': 'a'}", "candidate = sq", "candidate(3)"]  # no 9
    texts = ["```python\ndef sq(x): return x * x\n```", "```python\ndef sq(x): return x + x\n```"]
    assert [one.status for one in verifier.grade(json.dumps(gold), texts, [False, False])] == ["correct", "wrong"]


@pytest.mark.parametrize(
    ("gold", "fault"),
    [
        ("[1]", r'gold is no JSON of the form \{"tests"'),
        ("no json", "gold is no JSON of the form"),
        ('{"tests": []}', "gold is no JSON of the form"),
        ('{"tests": ["assert f() == 1"], "io": []}', "gold is no JSON of the form"),
        ('{"io": [{"stdin": 3, "stdout": ""}]}', r"io\[0\] is not of the form"),
        ('{"tests": ["assert f() == 1", "f() == 1"]}', r"tests\[1\] cannot be run: there is no assert"),
        ('{"tests": ["for i in range(3):\\n    assert f(i) == i"]}', r"tests\[0\].*inside of another statement"),
        (
            '{"tests": ["assert f(1) == g(1)"]}',
            r"tests\[0\].*`g\(1\)` is no literal, so what is expected cannot be kept",
        ),
        ('{"tests": ["assert f() == 1 or f() == 2"]}', "is no conjunction"),
        ('{"tests": ["assert 0 < f() < 2"]}', "compares more than two values"),
        (
            '{"tests": ["assert (f() == 4) == True"]}',
            r"`f\(\) == 4` is compared inside of what the program's process evaluates",
        ),
        ('{"tests": ["assert all(a == b for a, b in zip(f(), [1, 2]))"]}', "is compared inside"),
        ('{"tests": ["assert abs(f() - math.sqrt(2)) < 1e-6"]}', "neither side of `f.. - math.sqrt.2.` is a literal"),
        ('{"tests": ["assert f() == pytest.approx(1, abs=2)"]}', r"only == approx\(number\) is compared"),
        ('{"tests": ["assert 1 == 1"]}', "nothing of the program is tested"),
        ('{"tests": ["assert f() == approx()"]}', "is no literal"),
        ('{"tests": ["assert f() == set(1)"]}', "is no literal"),
        ('{"tests": ["assert f() == 9**9**9"]}', "is no literal"),
        ('{"tests": ["assert f() == [0] * 10**9"]}', "is no literal"),
        ('{"tests": ["assert f(1) == [0]*100000*3000"]}', "is no literal"),
        ('{"tests": ["assert f() == [[[0]*1000]*1000]*1000"]}', "is no literal"),
        ('{"tests": ["assert f() == {((0,)*1000,)*1001: 1}"]}', "is no literal"),
        (json.dumps({"tests": [f"assert f() == [{', '.join(['[0]*999999'] * 9)}]"]}), "is no literal"),
        ('{"tests": ["assert f() == \'%99999999d\' % 1"]}', "is no literal"),
        ('{"tests": ["assert f() == 1 / 0"]}', "is no literal"),
        ('{"tests": ["assert True"]}', r"tests\[0\].*there is no assert"),
        ('{"tests": ["def check(g):\\n    assert g(1) == 2"]}', r'tests\[0\].*nothing calls check: add "entry_point"'),
        (
            '{"tests": ["def check(g, h):\\n    assert g(1) == 2", "check(f)"]}',
            r"tests\[1\].*no call of check with its arg",
        ),
        (
            '{"tests": ["def check(g):\\n    for i in (1, 2):\\n        assert g(i) == i"], "entry_point": "f"}',
            "inside of another",
        ),
        ('{"tests": ["def check(g):\\n    assert g(1) == 2\\n    return"], "entry_point": "f"}', "returns early"),
        ('{"tests": ["assert ("]}', r"tests\[0\] cannot be run"),
        ('{"tests": [3]}', r"tests\[0\] cannot be run"),
    ],
)
def test_a_reference_without_tests_that_can_be_run_is_refused(verifier: CodeVerifier, gold: str, fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        read_tests(gold)
    assert verifier.reference_fault(gold)
    with pytest.raises(DataError, match=fault):
        verifier.grade(gold, ["```\nx\n```"], [False])


def test_scripts_are_run_once_for_each_exchange(verifier: CodeVerifier) -> None:
    gold = json.dumps({"io": [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "4 5", "stdout": "9"}, {"stdout": "0"}]})
    programs = {
        "print(sum(map(int, input().split())) if (line := 1) and __import__('sys').stdin else 0)": "wrong",  # no third line
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))": "correct",
        "import os\nprint(sum(map(int, os.read(0, 99).split())), ' \\n\\n')": "correct",
        "def main():\n    print(sum(map(int, open(0).read().split())))\nif __name__ == '__main__':\n    main()": "correct",
        "import atexit, io, sys\nout = io.StringIO()\natexit.register(lambda: sys.stdout.write(out.getvalue()))\n"
        "out.write(str(sum(map(int, sys.stdin.read().split()))))": "correct",
        "out = open(1, 'w')\nout.write(str(sum(map(int, open(0).read().split()))))": "correct",
        "import io, sys\nsys.stdout = io.StringIO()\n"
        "sys.__stdout__.write(str(sum(map(int, sys.stdin.read().split()))))": "correct",
        "print(5)": "wrong",
        "import numpy": "wrong",  # the standard library alone
        "x = [": "wrong",
    }
    texts = [f"```python\n{program}\n```" for program in programs]
    verdicts = verifier.grade(gold, texts, [False] * len(texts))
    assert {program: verdict.status for program, verdict in zip(programs, verdicts, strict=True)} == programs
    assert verdicts[1].extracted == "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
    assert same_output("a \nb\n\n", "a\nb")
    assert not same_output("a\n\nb", "a\nb")
    assert not same_output(" a", "a")


def test_a_verdict_names_the_test_that_failed(verifier: CodeVerifier) -> None:
    gold = json.dumps({"tests": ["assert f(2) == 4", "x = 3\nassert f(x) > 8 and f(0) == 0"]})
    reasons = {
        "def f(n): return n * n": "",
        "def f(n): return 4": "tests[1]: f(x) > 8 and f(0) == 0 does not hold: it is 4",
        "def f(n): return '\\x1b\\n' if n == 2 else 4": "tests[0]: f(2) == 4 does not hold: it is '\\x1b\\n'",
        "def f(n): return 10**9999": "tests[0]: f(2) == 4 does not hold: it is a very long int",
        "def f(n): return 4 if n == 2 else 1 / 0": "ZeroDivisionError: division by zero",
        "def f(n): raise ValueError('a\\x1b[1mb')": "ValueError: a [1mb",
        "def f(n: return n": "SyntaxError: invalid syntax (answer.py, line 1)",
        "import sys; sys.exit()": "the program ended before its tests",
    }
    texts = [f"```python\n{program}\n```" for program in reasons]
    verdicts = verifier.grade(gold, texts, [False] * len(texts))
    assert {program: one.reason for program, one in zip(reasons, verdicts, strict=True)} == reasons
    assert [one.status for one in verdicts] == ["correct", *["wrong"] * 7]
    gold = json.dumps({"io": [{"stdin": "4", "stdout": "4"}, {"stdin": "5", "stdout": "25"}]})
    reasons = {
        "print(input())": "io[1]: it printed '5\\n'",
        "print(4 if input() == '4' else 1 / 0)": "io[1]: it ended with code 70, as for an exception",
        "while True: print(1)": "io[0]: it printed too much",
        "while True: pass": "io[0]: timeout",
    }
    verdicts = verifier.grade(gold, [f"```python\n{program}\n```" for program in reasons], [False] * 4)
    assert {program: one.reason for program, one in zip(reasons, verdicts, strict=True)} == reasons


def test_tested_programs_may_have_dataclasses_and_end_by_exit_within(verifier: CodeVerifier) -> None:
    gold = json.dumps({"tests": ["assert f(2) == 4"]})
    programs = {
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(n): return A(n).x + 2": "correct",
        "import typing\nclass A:\n    x: 'int'\ndef f(n): return n + len(typing.get_type_hints(A)) + 1": "correct",
        "def f(n):\n    if n > 2: exit()\n    return 4": "correct",
        "def f(n): return 4\nexit()": "wrong",
        "def f(n): quit()": "wrong",
    }
    verdicts = verifier.grade(gold, [f"```python\n{program}\n```" for program in programs], [False] * 5)
    assert {program: one.status for program, one in zip(programs, verdicts, strict=True)} == programs


def test_programs_that_are_not_run(verifier: CodeVerifier) -> None:
    gold = json.dumps({"tests": ["assert f() == 1"]})
    texts = ["no block", "```\n" + "#" * MAX_PROGRAM_CHARS + "\n```", "```\ndef f(): return 1\n```"]
    statuses = [verdict.status for verdict in verifier.grade(gold, texts, [False, False, True])]
    assert statuses == ["no_answer", "unparsable", "correct"]
    with pytest.raises(ConfigError, match="workers must be at least 1"):
        CodeVerifier(workers=0)


def test_a_long_program_is_graded_whole_and_its_verdict_can_be_stored(
    verifier: CodeVerifier, trajectory: MakeTrajectory
) -> None:
    program = "# " + "漢" * 30_000 + "\ndef f():\n    return 1"
    (verdict,) = verifier.grade(json.dumps({"tests": ["assert f() == 1"]}), [f"```python\n{program}\n```"], [False])
    assert (verdict.status, verdict.extracted) == ("correct", program[:4000])
    encode(replace(trajectory(), verdict=verdict))


def test_rlep_grade_runs_programs(tmp_path: Path) -> None:
    gold = json.dumps({"tests": ["assert f(2) == 4"]})
    rows = [
        {"gold": gold, "response": "So:\n```python\ndef f(x):\n    return x * x\n```"},
        {"gold": gold, "response": "```python\ndef f(x):\n    return x + 1\n```"},
        {"gold": "4", "response": "```python\nx\n```"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = rlep("grade", file, "--profile", "code", check=False)
    graded = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("status") for row in graded] == ["correct", "wrong", None]
    assert done.returncode != 0
    assert "line 3: gold is no JSON of the form" in done.stderr
    assert isinstance(configured_verifier(VerifierConfig(profile="code")), CodeVerifier)
