"""The catalogues without PyTorch: the same source files, loaded with placeholders for what is slow to import.

Importing the real catalogues takes seconds because of PyTorch. But names, signatures, defaults, docstrings,
facts and the checks of arguments are plain Python. So the files are loaded a second time, as modules of their
own under the name `coterie_blueprints`, where every package outside the standard library is a placeholder.
What is built from them can be inspected and checked, but does nothing. Errors are the real ones.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie import catalogue
from coterie.registry import Registry

PACKAGE = Path(__file__).parents[1]
SHADOW = "coterie_blueprints"
SHARED = ("coterie.errors", "coterie.registry", "coterie.training")  # quick to import, and must be the same


@dataclasses.dataclass(frozen=True)
class Catalogues:
    """All the names that an experiment may use."""

    algorithms: Registry[Any]
    sources: Registry[Any]
    models: Registry[Any]
    partitions: Registry[Any]
    topologies: Registry[Any]


REAL = Catalogues(
    catalogue.algorithms, catalogue.sources, catalogue.models, catalogue.partitions, catalogue.topologies
)


@functools.cache
def catalogues() -> Catalogues:
    """The five catalogues as blueprints; the real ones should the files not load without PyTorch."""
    try:
        data = _load("coterie.data")
        return Catalogues(
            algorithms=_load("coterie.algorithms").algorithms,
            sources=data.sources,
            models=_load("coterie.models").models,
            partitions=data.partitions,
            topologies=_load("coterie.topology").topologies,
        )
    except Exception:  # a file does more with a slow package while it is loaded than a placeholder can
        return REAL


class Placeholder:
    """Stands for a package that is not imported, and for everything in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args: Any, **keywords: Any) -> Placeholder:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()  # a class may inherit from it

    def __repr__(self) -> str:
        return self._name

    __getitem__ = __or__ = __ror__ = __neg__ = __invert__ = __pow__ = __rpow__ = __call__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __call__


def _load(name: str) -> Any:
    """The shadow of a module, such as `coterie.data.sources.digits`, and of the packages above it."""
    shadow = SHADOW + name.removeprefix("coterie")
    parent, _, last = name.rpartition(".")
    above = _load(parent) if parent else None  # first, for this may load the module itself
    if shadow in sys.modules:
        return sys.modules[shadow]
    path = PACKAGE.joinpath(*name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    module = ModuleType(shadow)
    module.__file__ = str(file)
    if path.is_dir():
        module.__path__ = [str(path)]
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    sys.modules[shadow] = module
    if above is None:  # the public names are not needed
        return module
    try:
        # get_code uses the compiled file in __pycache__, so that this takes a moment only.
        code = importlib.machinery.SourceFileLoader(shadow, str(file)).get_code(shadow)
        assert code is not None
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[shadow]
        raise
    setattr(above, last, module)
    return module


def _import(
    name: str,
    namespace: Mapping[str, Any] | None = None,
    local: Mapping[str, Any] | None = None,
    wanted: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """What `import` does in a shadow module; `wanted` are the names of `from name import ...`."""
    top = name.partition(".")[0]
    if level or top in sys.stdlib_module_names or name in SHARED:
        return builtins.__import__(name, namespace, local, wanted or (), level)
    if top != "coterie":
        return Placeholder(name if wanted else top)
    module = _load(name)
    for part in wanted or ():
        if f"{name}.{part}" in SHARED:
            setattr(module, part, importlib.import_module(f"{name}.{part}"))
        elif not hasattr(module, part) and hasattr(module, "__path__"):
            _load(f"{name}.{part}")
    return module if wanted else sys.modules[SHADOW]
