"""Worker processes: killed when they must be, replaced at once, no job lost, nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlep.config.roles import VerifierConfig
from rlep.config.settings import section_of
from rlep.core.errors import ConfigError, VerifierError
from rlep.services.verifier.grader import configured_verifier
from rlep.services.verifier.grading_job import GradingJob
from rlep.services.verifier.user_function import FunctionVerifier, source_version
from rlep.services.verifier.verifier import Verifier
from rlep.services.verifier.worker_pool import WorkerPool
from rlep.services.worker.jail import Limits

FUNCTIONS = "verifier_functions"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return FUNCTIONS


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(limits=Limits(cpu_seconds=0.5)) as made:
        yield made


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def hosts() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def statuses(verifier: FunctionVerifier, *responses: str) -> list[str]:
    return [verdict.status for verdict in verifier.grade("x", responses, [False] * len(responses))]


def test_a_job_that_ends_its_process_is_reported_once_and_the_others_are_graded(functions: str) -> None:
    limits = Limits(cpu_seconds=0.3, memory_mb=512)
    with FunctionVerifier(f"python:{functions}:misbehave", limits=limits) as verifier:
        found = statuses(
            verifier, "x", "loop", "y", "die", "leave", "desert", "segfault", "memory", "raise", "truthy", "x"
        )
    expected = ["correct", "timeout", "wrong", *["crashed"] * 4, "out_of_memory", "crashed", "correct", "correct"]
    assert found == expected


def test_a_job_that_ends_its_process_is_the_last_of_it_and_an_exception_ends_nothing(functions: str) -> None:
    limits = Limits(cpu_seconds=0.3, memory_mb=512)
    ends = ["loop", "die", "leave", "desert", "segfault", "memory"]
    responses = ["pid", *(text for end in ends for text in (end, "pid")), "raise", "pid"]
    with FunctionVerifier(f"python:{functions}:misbehave", limits=limits) as verifier:
        found = verifier.grade("x", responses, [False] * len(responses))
    pids = [verdict.extracted for verdict in found[::2]]
    assert len({*pids[:-1]}) == 1 + len(ends)
    assert pids[-1] == pids[-2] is not None


def break_engine(monkeypatch: pytest.MonkeyPatch, directory: Path, verdict: str) -> None:
    """Workers find a math-verify whose ``verify`` is this expression."""
    package = directory / "math_verify"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "grader.py").write_text(
        f"def should_treat_as_complex(latex): return False\n\ndef verify(*_, **__): return {verdict}\n"
    )
    monkeypatch.syspath_prepend(str(directory))


def test_a_broken_engine_is_refused_by_the_answer_it_grades_wrongly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    break_engine(monkeypatch, tmp_path, "False")
    with (
        Verifier() as verifier,
        pytest.raises(VerifierError, match=r"cannot serve: .*the answer .*cup.* to .* as wrong, which is correct"),
    ):
        verifier.grade("x+1", ["\\boxed{1+x}"], [False])


def test_exceptions_are_crashed_and_logged_once_for_each_kind(functions: str, caplog: pytest.LogCaptureFixture) -> None:
    with FunctionVerifier(f"python:{functions}:misbehave") as verifier:
        assert statuses(verifier, "raise", "raise", "x") == ["crashed", "crashed", "correct"]
        assert statuses(verifier, "raise") == ["crashed"]
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("rlep.services.verifier")]
    file = Path(__file__).with_name("verifier_functions.py")
    line = file.read_text().splitlines().index('        raise ValueError("no")') + 1
    assert messages == [
        f"grading ({functions}:misbehave) failed, the answer is crashed: ValueError: no\n"
        f'Traceback (most recent call last):\n  File "{file}", line {line}, in misbehave\n    raise ValueError("no")'
    ]


def test_a_verdict_says_how_its_process_ended(functions: str) -> None:
    with FunctionVerifier(f"python:{functions}:misbehave") as verifier:
        found = verifier.grade("x", ["die", "leave", "segfault", "x"], [False] * 4)
    ended = "Ended: its process, with"
    assert [one.reason for one in found] == [f"{ended} exit code 3", f"{ended} exit code 0", f"{ended} signal 11", ""]


def test_what_the_grammar_refuses_is_unparsable(verifier: Verifier) -> None:
    answers = ["\\boxed{43=\\max\\frac}", "\\boxed{1+/2}"]
    found = [verdict.status for verdict in verifier.grade("42", answers, [False, False])]
    assert found == ["unparsable", "unparsable"]


@pytest.mark.parametrize(
    ("tower", "status"),
    [("9^{9^{9^{9}}}", "wrong"), ("e^{e^{e^{e^{e}}}}", "timeout"), ("10^{10^{10}}", "wrong"), ("(9!)!", "wrong")],
)
def test_a_tower_for_a_plain_number_is_wrong_or_uses_up_its_time(verifier: Verifier, tower: str, status: str) -> None:
    (verdict,) = verifier.grade("42", [f"\\boxed{{{tower}}}"], [False])
    assert (verdict.status, verdict.path) == (status, "full")


def test_a_job_that_sleeps_meets_the_wall_clock(functions: str) -> None:
    with FunctionVerifier(f"python:{functions}:misbehave", limits=Limits(wall_seconds=3)) as verifier:
        assert statuses(verifier, "sleep", "x") == ["timeout", "correct"]


def test_the_first_call_of_a_process_may_build_what_later_ones_use_and_they_have_their_own_limit(
    functions: str,
) -> None:
    config = VerifierConfig(profile=f"python:{functions}:build_at_first", cpu_seconds=0.5)
    with configured_verifier(config) as verifier:
        found = verifier.grade("x", ["x", "y", "loop", "x", "x"], [False] * 5)
    assert [one.status for one in found] == ["correct", "wrong", "timeout", "correct", "correct"]
    assert found[0].extracted == found[1].extracted != found[3].extracted == found[4].extracted


@pytest.mark.parametrize("network", [False, True])
def test_a_function_that_never_answers_has_the_time_of_a_first_call_twice(functions: str, network: bool) -> None:
    limits = Limits(cpu_seconds=0.2, first_seconds=1.0, network=network, memory_mb=4096)
    with FunctionVerifier(f"python:{functions}:misbehave", limits=limits) as verifier:
        found = verifier.grade("x", ["loop", "loop", "loop", "x"], [False] * 4)
    assert [one.status for one in found] == ["timeout", "timeout", "timeout", "correct"]
    if not network:
        assert min(one.seconds for one in found[:2]) > 0.9


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no system call filter for this machine")
@pytest.mark.parametrize("attempt", ["network", "process", "thread", "signal", "signal through a descriptor"])
def test_the_jail_refuses(functions: str, attempt: str) -> None:
    with FunctionVerifier(f"python:{functions}:escape") as verifier:
        assert statuses(verifier, attempt) == ["correct"]


def test_a_worker_cannot_write_files(functions: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with FunctionVerifier(f"python:{functions}:escape") as verifier:
        verifier.grade(str(path), ["file"], [False])
    assert not path.exists() or path.read_text() == ""


def test_the_users_function_says_what_it_extracted(functions: str) -> None:
    with configured_verifier(VerifierConfig(profile=f"python:{functions}:same_length")) as verifier:
        verdicts = verifier.grade("abc", ["xyz", "toolong", "xyz"], [False, False, True])
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong", "no_answer"]
    assert [verdict.extracted for verdict in verdicts] == ["3", "7", None]
    assert verdicts[0].verifier == f"python:{functions}:same_length"


@pytest.mark.parametrize("profile", ["maths", "python:module", "python::f", "regex:", "regex:(", ""])
def test_an_unknown_profile_is_refused(profile: str) -> None:
    with pytest.raises(ConfigError):
        configured_verifier(section_of(VerifierConfig, "verifier", {"profile": profile}))


def test_a_module_that_is_not_on_the_path_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="no module no_such_module here or on the path"):
        FunctionVerifier("python:no_such_module:f")


def test_a_function_that_cannot_be_imported_is_an_error_that_says_why(functions: str) -> None:
    with (
        FunctionVerifier(f"python:{functions}:no_such_function") as verifier,
        pytest.raises(VerifierError, match=r"AttributeError.*no_such_function"),
    ):
        verifier.grade("x", ["x"], [False])


def test_a_function_is_found_missing_before_it_is_given_a_response(functions: str) -> None:
    for function, error in {"no_such_function": "AttributeError", "RETURNED": "TypeError: RETURNED is a dict"}.items():
        with FunctionVerifier(f"python:{functions}:{function}") as verifier, pytest.raises(ConfigError, match=error):
            verifier.check()
    with FunctionVerifier(f"python:{functions}:numbered") as verifier:
        verifier.check()
        assert verifier.grade("x", ["x"], [False])[0].extracted == "1"


def test_the_version_of_the_users_function_is_that_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "rewards_of_a_user.py"
    module.write_text("one")
    first = source_version("rewards_of_a_user:f")
    module.write_text("two")
    assert first != source_version("rewards_of_a_user:f")
    module.write_text("one")
    assert first == source_version("rewards_of_a_user:f")


def test_no_process_outlives_the_verifier() -> None:
    before = children()
    with Verifier(workers=2) as verifier:
        assert verifier.grade("x^2-1", ["\\boxed{(x-1)(x+1)}"], [False])[0].status == "correct"
        assert len(children() - before) >= 2
    assert children() == before
    verifier.close()
    with pytest.raises(VerifierError):
        verifier.grade("x^2-1", ["\\boxed{(x-1)(x+1)}"], [False])


def test_a_call_that_meets_the_end_of_the_pool_is_refused_and_does_not_wait() -> None:
    pool = WorkerPool("math", Limits(), 1)

    class EndsThePool(list[GradingJob]):
        """Jobs that close the pool while they are being queued."""

        def __len__(self) -> int:
            pool.close()
            return super().__len__()

    with pytest.raises(VerifierError, match="closed"):
        pool.grade(EndsThePool([GradingJob("x+1", "1+x")]))


def test_a_process_that_cannot_be_started_is_an_error_and_the_next_call_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as without_python:
        without_python.setattr(sys, "executable", "/no/such/python")
        verifier = Verifier()
        with pytest.raises(VerifierError, match=r"no verifier process .* can be started: .*/no/such/python"):
            verifier.grade("x+1", ["\\boxed{1+x}"], [False])
    with verifier:
        assert verifier.grade("x+1", ["\\boxed{1+x}"], [False])[0].status == "correct"


def test_workers_die_with_a_parent_that_is_killed() -> None:
    script = (
        "import signal\n"
        "from rlep.services.verifier.verifier import Verifier\n"
        "verifier = Verifier()\n"
        "verifier.grade('x^2-1', ['\\\\boxed{(x-1)(x+1)}'], [False])\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 2  # the host and its runner
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def test_a_worker_killed_from_outside_loses_no_job() -> None:
    before = children()
    with Verifier() as verifier:
        for _ in range(3):
            assert verifier.grade("x^2-1", ["\\boxed{(x-1)(x+1)}"], [False])[0].status == "correct"
            for pid in children() - before:
                os.kill(pid, signal.SIGKILL)


def test_processes_are_recycled_after_their_number_of_jobs() -> None:
    texts = [f"\\boxed{{x+{number}}}" for number in range(40)]
    others = hosts()
    with Verifier(limits=Limits(recycle_jobs=5)) as verifier:
        found = [verdict.status for verdict in verifier.grade("7+x", texts[:20], [False] * 20)]
        host = hosts() - others
        found += [verdict.status for verdict in verifier.grade("7+x", texts[20:], [False] * 20)]
        assert hosts() - others == host  # which starts the next one itself
    assert found == ["correct" if number == 7 else "wrong" for number in range(40)]


def test_grading_from_many_threads_at_once(verifier: Verifier) -> None:
    results: dict[int, list[str]] = {}

    def grade(number: int) -> None:
        texts = [f"\\boxed{{{number}+x}}", f"\\boxed{{x-{number}}}", f"\\boxed{{{number}}}"]
        results[number] = [verdict.status for verdict in verifier.grade(f"x+{number}", texts, [False] * 3)]

    threads = [threading.Thread(target=grade, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: ["correct", "wrong", "wrong"] for number in range(1, 9)}


def test_verdicts_do_not_depend_on_the_number_of_workers_or_the_order() -> None:
    references = ["x^2-1", "\\sqrt{8}", "(1,2]", "42", "\\frac{1}{3}"]
    answers = ["(x-1)(x+1)", "2\\sqrt{2}", "1<x\\le 2", "42", "0.\\overline{3}", "\\frac{", "9^{9^{9^9}}", "6\\cdot 7"]
    pairs = [(reference, f"\\boxed{{{answer}}}", False) for reference in references for answer in answers]
    limits = Limits(cpu_seconds=2.0)
    with Verifier(workers=1, limits=limits) as one, Verifier(workers=4, limits=limits) as four:
        forward = [verdict.status for verdict in one.grade_pairs(pairs)]
        backward = [verdict.status for verdict in four.grade_pairs(pairs[::-1])]
    assert forward == backward[::-1]
    assert forward.count("correct") == 6  # one per reference, and 6·7


def test_equal_answers_are_compared_once_and_each_has_its_verdict() -> None:
    with Verifier() as verifier:
        verdicts = verifier.grade("x+1", ["\\boxed{1+x}"] * 100 + ["\\boxed{7}"], [False] * 101)
        decided = verifier.grade("7", ["\\boxed{7}", "none"], [False, False])
    assert [verdict.status for verdict in verdicts] == ["correct"] * 100 + ["wrong"]
    assert {verdict.path for verdict in verdicts} == {"full"}
    assert len({verdict.seconds for verdict in verdicts}) == 2
    assert [(verdict.status, verdict.path) for verdict in decided] == [("correct", "fast"), ("no_answer", "fast")]
