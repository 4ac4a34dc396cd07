"""A CPU as a platform of verl, by its plug-in (``VERL_PLATFORM``, ``VERL_USE_EXTERNAL_MODULES``): gloo, and no device memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_begin = torch.distributed.init_process_group


def _begin_once_for_each_device(backend: str | None = None, **given: Any) -> None:
    """As torch's, but for a device that verl names twice: its own and the CPU, which torch refuses."""
    parts = dict.fromkeys((backend or "").split(","))
    _begin(backend=",".join(parts) or None, **given)


torch.distributed.init_process_group = _begin_once_for_each_device


class _Device(ModuleType):
    """What verl asks of ``torch.cuda``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("is_available", "is_initialized"):
            return lambda: False
        return lambda *_, **__: {"mem_get_info": (0, 0), "get_device_name": "CPU"}.get(name, 0)


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    """Ray places its workers by a logical GPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def get_collective_module(self) -> Any:
        return None

    def cudart(self) -> Any:
        return None
