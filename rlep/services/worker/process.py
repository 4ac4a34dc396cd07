"""The parent's side of a worker process: its start and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

from rlep.services.worker.jail import Limits, warn_of_missing_layers

START_SECONDS = 120.0
"""Longest wait for a sign of life of a new process."""
_PASSED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TEMP", "TMP", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ENDPOINT",
    "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TORCH_HOME",
    "TOKENIZERS_PARALLELISM", "NLTK_DATA", "TIKTOKEN_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
})  # fmt: skip
"""Variables that every worker gets, and ``LC_…``: places, languages and switches."""
_PASSED_FOR_NETWORK = frozenset({
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
})  # fmt: skip
"""Variables that workers with the network get: certificates and proxies."""


def start_process(module: str, task: str, limits: Limits) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a session of its own without waiting for it to be ready. Raises OSError.

    It finds modules where this process does: a file of the working directory takes the place of none of Python's own.
    The kernel kills the process when the thread that called this ends.
    """
    warn_of_missing_layers()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(os.getpid()), task, json.dumps(asdict(limits))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
        env=environment_of(os.environ, limits),
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the process and its runner now, and close its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def environment_of(variables: Mapping[str, str], limits: Limits) -> dict[str, str]:
    """Choose the variables of a worker: those without secrets, and those that ``limits`` names.

    They are made reproducible: fixed hash order (sets are iterated over), one thread, the modules of this process.
    """
    passed = {*_PASSED, *limits.variables} | ({*_PASSED_FOR_NETWORK} if limits.network else set())
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {
        **{name: value for name, value in variables.items() if name in passed or name.startswith("LC_")},
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
