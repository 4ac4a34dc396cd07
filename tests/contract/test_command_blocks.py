"""Every command block of README and docs is run here, or a comment before it names the test that runs it, or says why none does.

    <!-- tested by: tests/e2e/test_quickstart.py::test_… -->
    <!-- not run: needs two machines -->

A block without a comment is run by bash, after the blocks above it on its page, in an empty directory with the repository's
``configs``, ``rlep`` and ``studies``. Files of a page are written there first: a fenced block after ``<!-- file: NAME -->``,
or the lines of a comment that begins so and goes on.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlep.config.settings import load_config
from tests.contract.test_documents import PAGES, ROOT, name_of, shell_lines

BLOCK = re.compile(r"(?:^<!-- (not run|tested by): (.+?) -->\n)?^```(?:sh|console|bash)\n(.*?)^```", re.M | re.S)
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w*\n(.*?)^```|^<!-- file: (\S+)\n(.*?)^-->", re.M | re.S)
CONFIGURED = {"train", "collect", "sft", "plan"}
"""Commands whose arguments are config files."""


@dataclass(frozen=True)
class Block:
    """A command block of a page."""

    page: Path
    mark: str | None
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}: {self.text.splitlines()[0][:60]}"


def blocks(page: Path) -> list[Block]:
    """The command blocks of a page."""
    return [Block(page, mark or None, why, text) for mark, why, text in BLOCK.findall(page.read_text())]


def files(page: Path) -> dict[str, str]:
    """Files that a page shows or holds, by name."""
    return {shown or hidden: text or more for shown, text, hidden, more in FILE.findall(page.read_text())}


def workplace(directory: Path, page: Path) -> Path:
    """A directory as the page's reader has it."""
    for name in ("configs", "rlep", "studies"):
        (directory / name).symlink_to(ROOT / name)
    for name, text in files(page).items():
        (directory / name).write_text(text)
    return directory


def configured(words: list[str]) -> tuple[list[str], list[str]] | None:
    """Config files and overrides of a command line that takes them, or None."""
    if words[1] == "submit" and "--" in words:
        words = ["rlep", *words[words.index("--") + 1 :]]
    if words[1] not in CONFIGURED:
        return None
    overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    return [word for word in words[2:] if word.endswith(".toml")], overrides


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


MARKED = [block for page in PAGES for block in blocks(page) if block.mark == "tested by"]
RUN = [page for page in PAGES if any(block.mark is None for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_commands_of_a_page_can_be_run_in_their_order(page: Path, tmp_path: Path) -> None:
    home = workplace(tmp_path, page)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{home}",
    }
    for block in blocks(page):
        if block.mark is None:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("block", MARKED, ids=str)
def test_the_test_that_a_block_names_is_there(block: Block) -> None:
    path, _, name = block.reason.partition("::")
    assert name in functions_of(ROOT / path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configurations_of_a_pages_commands_are_accepted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace(tmp_path, page))
    tutorial = ROOT / "docs" / "tutorial" / "own-data.md"
    Path("mine.toml").write_text(files(tutorial)["mine.toml"])
    for words in shell_lines(page.read_text()):
        if (found := configured(words)) is not None:
            paths, overrides = found
            load_config([Path(path) for path in paths], overrides)


def bare_blocks(text: str) -> Iterator[str]:
    """First lines of fenced blocks without a language that hold commands."""
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        first = body.split(maxsplit=1)[0] if body.strip() else ""
        if not language and first in {
            "rlep",
            "make",
            "ray",
            "python",
            "docker",
            "kubectl",
            "helm",
            "sbatch",
            "sudo",
            "git",
        }:
            yield body.splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_commands_say_that_they_are(page: Path) -> None:
    assert list(bare_blocks(page.read_text())) == []


def test_marks_and_files_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a.txt -->\n```text\none\n```\n<!-- file: b.txt\ntwo\n-->\n```sh\nls\n```\n"
        "<!-- not run: needs a GPU -->\n```sh\nrlep train x.toml\n```\n"
    )
    assert files(page) == {"a.txt": "one\n", "b.txt": "two\n"}
    assert [(block.mark, block.reason, block.text) for block in blocks(page)] == [
        (None, "", "ls\n"),
        ("not run", "needs a GPU", "rlep train x.toml\n"),
    ]
    assert list(bare_blocks("```\nrlep train x.toml\n```\n```\n8*7=56.\n```\n")) == ["rlep train x.toml"]
    assert configured(["rlep", "submit", "--", "train", "a.toml", "--set", "run.seed=1"]) == (
        ["a.toml"],
        ["run.seed=1"],
    )
