"""Which device and number format a model gets, and what that device has room for."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from branchwise.config import check_choice
from branchwise.errors import BackendMemoryError, ConfigError

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DEVICE_KINDS = ("cuda", "mps", "cpu")
TOKEN_BUDGETS = {"cuda": 32768, "mps": 8192, "cpu": 8192}
# A processor keeps the activations of so many tokens near; an accelerator wants the whole pass.
CHUNK_TOKENS = {"cuda": 1 << 20, "mps": 1 << 20, "cpu": 512}
PIECE_TOKENS = {"cuda": 1024, "mps": 1024, "cpu": 1024}

# How the allocator of a processor reports that it got nothing (c10/core/CPUAllocator, alloc_cpu).
_CPU_MESSAGES = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


def choose_device(wanted: str | None) -> torch.device:
    """The named device, or the fastest there is. Raises :class:`ConfigError` for one that is not here."""
    if wanted is None or wanted == "auto":
        return torch.device(next(kind for kind in DEVICE_KINDS if _count(kind) > 0))
    kind, _, number = wanted.partition(":")
    check_choice("device", kind, ("auto", *DEVICE_KINDS))
    if number and not number.isdigit():
        raise ConfigError(f"device is {wanted!r}; write a number after the colon, as in '{kind}:0'")
    if int(number or 0) >= _count(kind):
        here = ", ".join(f"{name} ({_count(name)})" for name in DEVICE_KINDS if _count(name))
        raise ConfigError(f"device is {wanted!r}, which torch does not see; it sees {here}")
    return torch.device(wanted)


def choose_dtype(wanted: str | None, device: torch.device) -> torch.dtype:
    """The named format, or the smallest that the device computes with at full speed."""
    if wanted is not None and wanted != "auto":
        check_choice("dtype", wanted, ("auto", *DTYPES))
        return DTYPES[wanted]
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return torch.float16 if major >= 7 else torch.float32  # no fast half precision before Volta
    if device.type == "mps":
        return torch.bfloat16 if torch.backends.mps.is_macos_or_newer(14, 0) else torch.float16
    return torch.bfloat16 if _cpu_multiplies_bfloat16() else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def free_memory(device: torch.device) -> int:
    """Bytes that the device could still give."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # what others use is not told


@contextmanager
def memory_errors(doing: str) -> Iterator[None]:
    """Translate a failed allocation, and nothing else, into :class:`BackendMemoryError`.

    The frames of the failed work are cleared, so that its tensors are free before the error is seen.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_memory_error(error):
            raise
        traceback.clear_frames(error.__traceback__)
        raise BackendMemoryError(f"out of memory while {doing}") from error


def is_memory_error(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return type(error) is RuntimeError and any(message in str(error) for message in _CPU_MESSAGES)


def _count(kind: str) -> int:
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "mps":
        return 1 if torch.backends.mps.is_available() else 0
    return 1


def _cpu_multiplies_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are instructions; emulated ones are far slower than float32."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16", "bf16"))
