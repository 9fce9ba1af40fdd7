"""How much memory is free for this process: of the machine, and of its container. Needs no PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource

GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(proc: Path = Path("/proc"), cgroup: Path = _CGROUP) -> int | None:
    """Bytes; None where the system does not say."""
    found = [free for free in (_available(proc), _left_in(cgroup)) if free is not None]
    return min(found, default=None)


def _available(proc: Path) -> int | None:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    if sys.platform == "win32":
        return None
    try:  # macOS has no such file; half of its memory is a cautious guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return None


def used_memory() -> int:
    """Bytes that this process uses; where the system does not say, the most that it used; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    else:  # mypy leaves out what another system has
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most * 1024


def _left_in(cgroup: Path) -> int | None:
    """Of the container's limit; what its page cache holds can be had back."""
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = (int((cgroup / name).read_text()) for name in (limit, used))
            lines = ((cgroup / limit).parent / "memory.stat").read_text().splitlines()
            back = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
            return max(0, most - now + back)
        except (OSError, ValueError, IndexError):  # no limit is the word max
            continue
    return None


def in_gib(size: float) -> str:
    """As people read it."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.0f} MiB"
