"""README and docs/: in their places, and about what exists."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rlep.cli import app
from rlep.config.schema import Config
from rlep.metrics.catalogue import METRICS, metric_for

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RECIPES = sorted((ROOT / "configs").resolve().glob("*/README.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "README.md",
    *RECIPES,
    *sorted(DOCS.rglob("*.md")),
]
LONGEST_README = 150

FILE_TYPES = ("py", "toml", "json", "jsonl", "proto", "sh", "sbatch", "yaml", "conf", "md")
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of typer's tree, with the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


COMMANDS = dict(commands(get_command(app), ("rlep",)))


def called(words: list[str]) -> str | None:
    """What is wrong with a command line that begins with ``rlep``, or None."""
    path: tuple[str, ...] = ("rlep",)
    while len(path) < len(words) and (*path, words[len(path)]) in COMMANDS:
        path = (*path, words[len(path)])
    command, rest = COMMANDS[path], words[len(path) :]
    if hasattr(command, "commands"):
        return f"{' '.join(path)} has no command {' '.join(rest[:1])!r}"
    if path == ("rlep", "submit") and "--" in rest:
        inner = rest[rest.index("--") + 1 :]
        return called(["rlep", *inner]) if inner else None
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    options = {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("--") and word.split("=")[0] not in options | {"--help"}:
            return f"{' '.join(path)} has no option {word}"
    for flag, value in itertools.pairwise(rest):
        if flag == "--set" and path != ("rlep", "tasks", "make") and not is_key(value.split("=")[0]):
            return f"there is no key {value.split('=')[0]}"
    missing = [word for word in rest if word.startswith("configs/") and not (ROOT / word).is_file()]
    return f"there is no {missing[0]}" if missing else None


def shell_lines(text: str) -> Iterator[list[str]]:
    """The ``rlep`` lines of a page's shell blocks, in words."""
    for block in SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("rlep "):
                yield shlex.split(line, comments=True)


def is_key(name: str) -> bool:
    """Whether a configuration has this key; keys below a table count."""
    section, _, key = name.partition(".")
    return section in Config.model_fields and key.split(".")[0] in type(getattr(Config(), section)).model_fields


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_every_page_is_in_a_table_of_contents() -> None:
    listed: set[Path] = set()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            for entry in block.split():
                listed |= set() if entry.startswith(":") else set(page.parent.glob(f"{entry}.md"))
    pages = set(DOCS.rglob("*.md")) - {DOCS / "index.md"}
    assert pages == listed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_on_a_page_exist(page: Path) -> None:
    assert [wrong for words in shell_lines(page.read_text()) if (wrong := called(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_keys_and_metrics_named_on_a_page_exist(page: Path) -> None:
    prefixes = {metric.name.split("/")[0] for metric in METRICS}
    wrong = []
    for code in CODE.findall(own_cells(page)):
        key = re.fullmatch(r"([a-z]+)\.([a-z_]+)(?:[ =].*)?", code)
        if key and key.group(1) in Config.model_fields and key.group(2) not in FILE_TYPES:
            wrong += [] if is_key(f"{key.group(1)}.{key.group(2)}") else [code]
        elif re.fullmatch(r"[a-z]+(?:/[a-z_]+)+", code) and code.split("/")[0] in prefixes and not path_of(code):
            try:
                metric_for(code)
            except ValueError as error:
                wrong.append(str(error))
    assert wrong == []


def own_cells(page: Path) -> str:
    """A page without its fenced blocks, and without the first cells of tables that begin with keys of other programs."""
    text = FENCE.sub("", page.read_text())
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.M) if page.stem == "come-from-verl-or-trl" else text


def path_of(code: str) -> Path | None:
    """The file or folder of the repository that a piece of code names, or None; a module needs no ``.py``."""
    places = [base / name for base in (ROOT, ROOT / "rlep") for name in (code, f"{code}.py")]
    return next((place for place in places if place.exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_on_a_page_exist(page: Path) -> None:
    homes = [path.name for path in (ROOT / "rlep").iterdir() if path.is_dir()]
    folders = "|".join([*homes, "rlep", "tests", "benchmarks", "scripts", "configs", "deploy"])
    named = re.compile(rf"(?:{folders})/[\w/.-]+\.(?:{'|'.join(FILE_TYPES)})|rlep/[\w/]+/")
    codes = CODE.findall(FENCE.sub("", page.read_text()))
    assert [code for code in codes if named.fullmatch(code) and not path_of(code)] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_within_the_repository_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_named_in_code_and_configs_exist() -> None:
    files = [path for folder in ("rlep", "configs", "benchmarks", "deploy") for path in (ROOT / folder).rglob("*")]
    named = {
        (name_of(path), page)
        for path in files
        if path.suffix in {".py", ".toml", ".yaml", ".sh", ".conf", ".md"}
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert [(where, page) for where, page in sorted(named) if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("rlep train configs/paper/rlep.toml --set run.seed=3", None),
        ("rlep trane configs/paper/rlep.toml", "rlep has no command 'trane'"),
        ("rlep pool stats --nmae pool", "rlep pool stats has no option --nmae"),
        ("rlep train configs/paper/rlep.toml --set run.sede=3", "there is no key run.sede"),
        ("rlep train configs/nothing.toml", "there is no configs/nothing.toml"),
        ("rlep submit --no-wait -- scale generators 3 --runn x", "rlep scale has no option --runn"),
    ],
)
def test_a_wrong_command_line_is_found(line: str, wrong: str | None) -> None:
    assert called(shlex.split(line)) == wrong


def test_slugs_are_those_of_the_site() -> None:
    assert slug("How weights reach the generators") == "how-weights-reach-the-generators"
    assert slug("`[run]`") == "run"
