"""Which attention heads vLLM computes on CPUs."""

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from rlep.engines.families import CPU_HEAD_SIZES


def test_the_sizes_that_are_taken_are_vllms() -> None:
    assert list(CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()
