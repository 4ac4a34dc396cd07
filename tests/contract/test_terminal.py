"""Whatever a command prints, and wherever the text is from: it cannot steer the terminal."""

import ast
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rlep.cli.terminal import PrintableStream, Terminal
from rlep.core.printable import printable

ROOT = Path(__file__).parents[2]
CLEAR = "\x1b[2J"
"""Clears a terminal's screen."""
EVIL = f"{CLEAR}\x1b]0;owned\x07\x9b2Jgone\r\u202eback"


def rlep(*words: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "rlep", *words], cwd=cwd, env=environment, capture_output=True, timeout=120, check=False
    )


def steering(output: bytes) -> list[str]:
    """Characters of an output that are no text."""
    return [one for one in output.decode() if printable(one) != one]


def test_what_is_not_printable_is_shown_as_one_character_and_text_of_any_script_stays() -> None:
    assert printable(EVIL) == "�[2J�]0;owned��2Jgone��back"
    plain = "é \u3000全角\u00a0空白\n\t∫ 🎲"
    assert printable(plain) == plain


def test_streams_of_a_command_print_as_text_what_is_no_text_and_keep_the_order() -> None:
    under = io.BytesIO()
    stream = PrintableStream(io.TextIOWrapper(under, encoding="ascii"))
    console = Terminal()
    console.file = stream.rich_proxied_file
    print(f"first{CLEAR}", file=stream)
    console.print("[red]second[/red]", f"{CLEAR}[/bold]")
    stream.writelines(["third\r\n"])
    assert under.getvalue() == b"first?[2J\n[red]second[/red] ?[2J[/bold]\nthird?\n"


@pytest.mark.slow
def test_a_key_of_a_config_is_printed_as_text(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('"\\u001b[2Jkey" = 1\n["\\u009b2J"]\na = 1\n')
    done = rlep("check", "own.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "�[2Jkey" in done.stderr.decode()
    assert steering(done.stdout + done.stderr) == []


@pytest.mark.slow
def test_the_exception_of_a_reward_function_and_a_traceback_are_printed_as_text(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"def grade(reference, response):\n    raise ValueError({EVIL!r})\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"gold": "1", "response": EVIL}) + "\n")
    done = rlep("grade", "rows.jsonl", "--profile", "python:evil:grade", cwd=tmp_path)
    assert "ValueError: �[2J�]0;owned�" in done.stderr.decode()
    assert steering(done.stdout + done.stderr) == []
    command = "import sys; sys.argv = ['rlep', 'check', '--help']; from rlep.cli import main\ntry: main()\n"
    command += f"except SystemExit: raise RuntimeError({EVIL!r}) from None"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert b"RuntimeError: " in done.stderr
    assert steering(done.stderr) == []


@pytest.mark.slow
def test_on_a_terminal_an_error_is_red_and_its_text_is_text(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('"\\u001b[2Jkey" = 1\n')
    control, terminal = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-m", "rlep", "check", "own.toml"], cwd=tmp_path, env=environment, stderr=terminal
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(control, 1024):
                shown += part
        except OSError:  # the other side is closed
            pass
    os.close(control)
    assert process.returncode == 2
    assert shown.startswith(b"\x1b[31merror: ")
    assert "�[2Jkey" in shown.decode()
    assert CLEAR.encode() not in shown


def test_commands_draw_on_no_console_but_this_one() -> None:
    """Another would write its text past the streams' filter."""
    found = {
        (path.name, alias.name)
        for path in (ROOT / "rlep").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
        for alias in node.names
        if alias.name == "Console" or node.module == "rich"
    }
    assert found == {("terminal.py", "Console")}
    styled = {path.name for path in (ROOT / "rlep").rglob("*.py") if "secho(" in path.read_text()}
    assert styled == set()  # the streams would show its colours as text
