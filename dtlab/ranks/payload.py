"""How a function, its arguments and its results travel between the caller and the ranks.

- Functions and arguments go by cloudpickle, so what a notebook cell defines works: functions, lambdas,
  closures, classes. They are written once into a file in memory that all ranks map.
- Results come back the same way, with every tensor as a plain tensor on the CPU (values only: no gradient, no
  graph, no device). Parameters inside a returned ``nn.Module`` stay parameters, on the CPU.
- The source lines of cells travel too, so that a traceback made in a rank can show them.
"""

import collections
import inspect
import io
import json
import linecache
import mmap
import os
import pickle
import struct
import sys
import tempfile
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

from dtlab.errors import UserError

_LENGTH = struct.Struct("!Q")
_MOST_SOURCE = 4 << 20  # bytes of cell source sent along


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call as bytes.

    Raises:
        UserError: something in it cannot be pickled; the message names it.
    """
    module = _module_that_ranks_cannot_import(fn)
    try:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        return _dumps((fn, args, kwargs))
    except Exception as error:
        raise UserError(_why_not(fn, args, kwargs, error)) from None
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)


def _module_that_ranks_cannot_import(fn: Callable[..., Any]) -> types.ModuleType | None:
    """The module of ``fn`` when only this process has it: loaded from a file by hand, or made up."""
    name = getattr(fn, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if name is None or module is None or name == "__main__":
        return None
    parent, _, _ = name.rpartition(".")
    if parent and parent in sys.modules:
        where: Any = getattr(sys.modules[parent], "__path__", None)
    else:
        where = None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            if find is not None and find(name, where) is not None:
                return None
        except Exception:
            continue
    return module


def _why_not(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> str:
    """Which part of the call cannot travel, in one line."""
    name = getattr(fn, "__name__", repr(fn))
    parts: list[tuple[str, Any]] = [(f"argument {i}", value) for i, value in enumerate(args)]
    parts += [(f"argument {key}", value) for key, value in kwargs.items()]
    target = inspect.unwrap(fn) if callable(fn) else fn
    if isinstance(target, types.FunctionType):
        found = inspect.getclosurevars(target)
        variables = {**found.globals, **found.nonlocals}
        parts += [(f"the variable {key} that {name} uses", value) for key, value in variables.items()]
    cause = " ".join(str(error).split())
    for what, value in parts:
        try:
            _dumps(value)
        except Exception as reason:
            cause = " ".join(str(reason).split())
            return (
                f"fn: {name} cannot be sent to the ranks: {what} ({type(value).__name__}) cannot be pickled "
                f"({cause}); make it inside {name}, or put {name} in a module"
            )
    return f"fn: {name} cannot be sent to the ranks ({cause}); put it in a module that the ranks can import"


def write(header: dict[str, Any], call: bytes) -> int:
    """A descriptor of a file in memory that holds the header (JSON) and the call.

    Raises UserError when a limit of this process or the memory does not allow it.
    """
    head = json.dumps(header).encode()
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("dtlab-call")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(_LENGTH.pack(len(head)))
            file.write(head)
            file.write(call)
    except OSError as error:
        os.close(fd)
        raise UserError(
            f"fn and its arguments, {len(head) + len(call):,} bytes, cannot be handed to the ranks: "
            f"{error.strerror}; raise the limit of file sizes (ulimit -f unlimited) or free memory"
        ) from None
    return fd


def read(fd: int) -> tuple[dict[str, Any], memoryview]:
    """What :func:`write` wrote. Several processes may read one descriptor at once."""
    view = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    (size,) = _LENGTH.unpack(view[: _LENGTH.size])
    start = _LENGTH.size
    header: dict[str, Any] = json.loads(bytes(view[start : start + size]))
    return header, view[start + size :]


def unpack(call: memoryview) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call again, in a rank. What ``__main__`` defined is put into this process's ``__main__``."""
    fn, args, kwargs = pickle.loads(call)
    target = inspect.unwrap(fn) if callable(fn) else fn
    names = getattr(target, "__globals__", {})
    main = types.ModuleType("__main__")
    # Loader workers pickle by name what a cell defined; a module without a file is never run again by spawn.
    if names.get("__name__") == "__main__":
        main.__dict__.update(names)
    sys.modules["__main__"] = main
    return fn, args, kwargs


def _code_with_file_name(code: types.CodeType) -> Any:
    """cloudpickle's reduction of a code object with its file name, which cloudpickle drops."""
    kind, values = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return kind, tuple(code.co_filename if value == "<dynamic-code>" else value for value in values)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle whose functions know where they were written."""

    dispatch_table = collections.ChainMap(  # noqa: RUF012
        {types.CodeType: _code_with_file_name}, cloudpickle.Pickler.dispatch_table
    )


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _ResultPickler(_Pickler):
    """The same, turning every tensor into its values on the CPU."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._parameters: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.nn.Module):
            # A module's state is pickled after the module itself, so its parameters are known by then.
            self._parameters.update(id(p) for p in value._parameters.values())
        elif isinstance(value, torch.Tensor):
            keep = id(value) in self._parameters and isinstance(value, torch.nn.Parameter)
            plain = value
            if hasattr(plain, "to_local"):  # a DTensor: this rank's shard
                plain = plain.to_local()
            plain = plain.detach().cpu()
            if keep:
                return _parameter, (plain, value.requires_grad)
            if plain.layout == torch.strided and not plain.is_quantized:
                plain = plain.resolve_conj().resolve_neg().contiguous()
                raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
                return _tensor, (raw, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))
            if type(plain) is torch.Tensor:
                return plain.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(value)


def _tensor(raw: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not raw:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)


def _parameter(values: Any, requires_grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(values, requires_grad=requires_grad)


def pack_result(value: Any) -> bytes:
    """A rank's result as bytes; raises what the pickler raises."""
    file = io.BytesIO()
    _ResultPickler(file).dump(value)
    return file.getvalue()


def unpack_result(data: bytes) -> Any:
    """The result in the caller's process."""
    return pickle.loads(data)


def cell_sources() -> dict[str, list[str]]:
    """Source lines that exist only in this process: notebook cells, ``exec`` with a registered source."""
    found: dict[str, list[str]] = {}
    budget = _MOST_SOURCE
    for name, entry in reversed(list(linecache.cache.items())):
        if len(entry) != 4 or entry[1] is not None or os.path.exists(name):
            continue
        lines = list(entry[2])
        budget -= sum(map(len, lines))
        if budget < 0:
            break
        found[name] = lines
    return found


def add_sources(sources: dict[str, list[str]]) -> None:
    """Make the lines of :func:`cell_sources` known here."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
