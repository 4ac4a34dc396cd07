"""Makes TRL's environment where it is not there, on top of this one's torch and transformers; prints its interpreter."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / "runs" / "trl-environment"
PACKAGES = (
    *("trl==1.16.0", "accelerate==1.15.0", "datasets==5.2.0", "pandas==3.1.1", "dill==0.4.1", "multiprocess==0.70.19"),
    *("xxhash==4.1.0", "python-dateutil", "pytz", "tzdata", "six"),
)
"""What TRL needs beside this environment; ``--no-deps``, so that torch and transformers stay the same in every arm."""


def main() -> None:
    """Make it and print the path."""
    python, complete = HOME / "bin" / "python", HOME / "complete"
    if not complete.exists() or complete.read_text() != " ".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(HOME)], check=True, timeout=600)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", *PACKAGES]
        subprocess.run(install, check=True, timeout=1800, stdout=sys.stderr)
        (packages,) = HOME.glob("lib/python*/site-packages")
        (packages / "rlep-environment.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        complete.write_text(" ".join(PACKAGES))
    print(python)


if __name__ == "__main__":
    main()
