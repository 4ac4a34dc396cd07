"""The kernel that ``rlep check --try`` runs on GPUs: compiled here for one that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlep.check.finding import CheckSkipped
from rlep.check.parts.kernel_check import kernel
from rlep.check.parts.synthetic import Rig
from rlep.config.schema import Config


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
def test_the_kernel_compiles_for_an_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rlep.check.parts.triton_kernel import BLOCK, doubled

    signature = {"source": "*fp32", "target": "*fp32", "block": "constexpr"}
    made = triton.compile(ASTSource(doubled, signature, {"block": BLOCK}), target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"].count("st.global") == 1  # each of 128 threads writes its value
    assert made.asm["cubin"].startswith(b"\x7fELF")


def test_without_gpus_there_is_no_kernel_to_try(tmp_path: Path) -> None:
    with pytest.raises(CheckSkipped, match=r"generator.gpus is 0: vLLM runs no Triton on CPUs"):
        kernel(Rig(Config(), tmp_path, tmp_path, tmp_path))
