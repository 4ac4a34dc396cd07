"""Wrong versions of ray and transformers are refused by one sentence, before either is imported."""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from rlep.core import versions
from rlep.core.errors import WrongVersionError

ROOT = Path(__file__).parents[3]


def pretend(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    """Metadata of these packages."""

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(versions, "version", version)


@pytest.mark.parametrize(("ray", "transformers"), [("2.60.0", "5.16.1"), ("2.60.3", "5.19.0"), ("2.60.1+cpu", "5.19")])
def test_versions_within_the_bounds_pass(monkeypatch: pytest.MonkeyPatch, ray: str, transformers: str) -> None:
    pretend(monkeypatch, ray=ray, transformers=transformers)
    versions.check_versions()


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        ({"ray": "2.61.0", "transformers": "5.19.0"}, "rlep needs ray >= 2.60.0 and < 2.61.0, 2.61.0 is installed"),
        ({"ray": "2.9.3", "transformers": "5.19.0"}, "rlep needs ray >= 2.60.0 and < 2.61.0, 2.9.3 is installed"),
        ({"ray": "2.60.0", "transformers": "5.16.0"}, "transformers >= 5.16.1 and < 5.20.0, 5.16.0 is installed"),
        ({"ray": "2.60.0", "transformers": "5.20.0"}, "transformers >= 5.16.1 and < 5.20.0, 5.20.0 is installed"),
        ({"ray": "2.60.0"}, "rlep needs transformers >= 5.16.1 and < 5.20.0, which is not installed"),
    ],
)
def test_others_are_refused_by_the_version_needed(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], sentence: str
) -> None:
    pretend(monkeypatch, **installed)
    with pytest.raises(WrongVersionError) as refused:
        versions.check_versions()
    assert sentence in str(refused.value)


def test_the_bounds_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "ray[default]>=2.60.0,<2.61.0" in project["dependencies"]
    assert "transformers>=5.16.1,<5.20.0" in project["dependencies"]
    assert versions.BOUNDS == {"ray": ((2, 60, 0), (2, 61, 0)), "transformers": ((5, 16, 1), (5, 20, 0))}


def test_a_command_is_refused_before_ray_is_imported(tmp_path: Path) -> None:
    metadata = tmp_path / "ray-2.99.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.99.0\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rlep.cli import app\n"
        "try: app(['train', 'configs/paper/rlep.toml'])\n"
        "except SystemExit as end: sys.exit(end.code if 'ray' not in sys.modules else 99)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "rlep needs ray >= 2.60.0 and < 2.61.0, 2.99.0 is installed" in done.stderr
