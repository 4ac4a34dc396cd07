"""The name of a grader, by which a continued run knows that it is graded as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.config.roles import VerifierConfig
from rlep.services.verifier.grader import grader_of

TOML = 'url = "http://127.0.0.1:1/v1"\nmodel = "m"\nprompt = "{response}"\n'


def named(profile: str) -> dict[str, str]:
    """The parts of a grader's name."""
    parts = grader_of(VerifierConfig(profile=profile)).split(", ")
    return {part.partition(" ")[0]: part.partition(" ")[2] for part in parts}


def test_a_functions_name_changes_with_its_file_and_with_each_module_of_the_users_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "rules_of_mine"
    package.mkdir()
    files = {
        tmp_path / "rw_of_mine.py": "import json, sympy\nfrom rules_of_mine import even\ndef f(response): return 1\n",
        package / "__init__.py": "",
        package / "even.py": "def g():\n    from .deeper import x\n    raise RuntimeError\n",
        package / "deeper.py": "from rw_of_mine import f\nx = 1\n",  # in a circle
    }
    for file, text in files.items():
        file.write_text(text)
    before = named("python:rw_of_mine:f")
    own = {"rw_of_mine", "rules_of_mine", "rules_of_mine.even", "rules_of_mine.deeper"}
    assert before.keys() == {"python:rw_of_mine:f", *own, "sympy"}
    for file, text in files.items():
        file.write_text(text + "# another\n")
        after = named("python:rw_of_mine:f")
        module = ".".join(file.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        assert {name for name in own if after[name] != before[name]} == {module}
        file.write_text(text)
    assert named("python:rw_of_mine:f") == before


def test_a_function_of_an_installed_package_has_the_packages_version() -> None:
    assert named("python:sympy.core.numbers:igcd")["sympy"]


def test_a_judges_name_changes_with_its_file_but_not_with_its_address(tmp_path: Path) -> None:
    file = tmp_path / "judge.toml"
    names = []
    for text in (TOML, TOML.replace("127.0.0.1:1", "127.0.0.1:2"), TOML.replace("{response}", "{response} good?")):
        file.write_text(text)
        names.append(grader_of(VerifierConfig(profile=f"judge:{file}")))
    assert names[0] == names[1] != names[2]


def test_rleps_own_graders_have_the_versions_of_what_grades() -> None:
    assert named("math").keys() == {"math", "math-verify", "latex2sympy2-extended", "sympy"}
    assert named("code").keys() == {"code", "Python"}
    assert named("dapo").keys() == {"dapo"}


def test_a_module_in_folders_without_init_files_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "bare_outer" / "bare_inner"
    folder.mkdir(parents=True)
    (folder / "rule.py").write_text("from .other import x\ndef f(response): return x\n")
    (folder / "other.py").write_text("x = 1\n")
    profile = "python:bare_outer.bare_inner.rule:f"
    assert named(profile).keys() == {profile, "bare_outer.bare_inner.rule", "bare_outer.bare_inner.other"}
