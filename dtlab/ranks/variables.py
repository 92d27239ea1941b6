"""Environment variables of a launched rank: what it is given, what is kept from it, what needs a new server.

- A rank gets the caller's environment of this moment, without the variables of other launchers, plus ``env=``
  and the variables that ``torchrun`` would set, so that plain ``init_process_group`` works in it (lesson 02).
- Some variables act only while torch is imported. A fork server has imported torch already, so a change in
  one of them needs a new server (``import_time``).
"""

import os
import re
from collections.abc import Mapping

from dtlab.errors import UserError
from dtlab.ranks import strays

# Read by torch, NumPy, OpenMP, the loader or Python itself when they start.
_IMPORT_TIME = re.compile(
    r"(TORCH_|PYTORCH_|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|NUMEXPR_|VECLIB_|BLIS_|ATEN_|CUDA_|CUBLAS_|HIP_|ROCR_"
    r"|NPY_|MALLOC_|LD_|DYLD_|PYTHON)"
)
_READ_LATER = {"TORCH_DISTRIBUTED_DEBUG"}  # the worker makes torch read it again

# What another launcher told *this* process about itself would be misread by the ranks.
_OTHER_LAUNCHERS = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|NODE_RANK|NNODES|MASTER_ADDR"
    r"|MASTER_PORT|(ROLE|TORCHELASTIC|OMPI|PMI|PMIX|MV2|MPI|SLURM|SM)_.*)$"
)

_OURS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "DTLAB_LAUNCH", "DTLAB_SEED", strays.MARK,
)  # fmt: skip


def common(env: Mapping[str, str] | None, interface: str | None) -> dict[str, str]:
    """The part that all ranks share: this process's environment now, cleaned, with ``env`` on top.

    Raises:
        UserError: ``env`` is not a mapping of strings, or sets a variable that belongs to launch.
    """
    values = {name: value for name, value in os.environ.items() if not _OTHER_LAUNCHERS.match(name)}
    values.pop(strays.MARK, None)  # in a rank that launches: its own mark takes the place of its launcher's
    # Lets the recorder see gloo's collectives; torch reads it when it is imported.
    values.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    if interface is not None:
        values["GLOO_SOCKET_IFNAME"] = interface
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UserError(f"env: {name!r} = {value!r} is not text; give it as a string, for example '1'")
        if name in _OURS:
            raise UserError(f"env: {name} is set by launch for every rank; leave it out of env")
        values[name] = value
    refuse_unreadable(values)
    return values


def of_rank(
    rank: int,
    nproc: int,
    nnodes: int,
    *,
    port: int,
    launch_id: str,
    seed: int,
    restart: int,
    max_restarts: int,
) -> dict[str, str]:
    """What differs between ranks or launches. ``nproc`` counts the ranks of one (simulated) host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nproc * nnodes),
        "LOCAL_RANK": str(rank % nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(rank // nproc),
        "GROUP_WORLD_SIZE": str(nnodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The launcher hosts the store, as torchrun's agent does: every rank joins as a client.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "DTLAB_LAUNCH": launch_id,
        "DTLAB_SEED": str(seed),
        strays.MARK: strays.mark(),
    }


def refuse_unreadable(values: Mapping[str, str]) -> None:
    """Say in one line what torch would end with a traceback over, or end the process, when it is imported.

    Raises:
        UserError: TORCH_DISTRIBUTED_DEBUG is none of torch's three words.
    """
    level = values.get("TORCH_DISTRIBUTED_DEBUG", "")
    if level and level.upper() not in ("OFF", "INFO", "DETAIL"):
        raise UserError(f"TORCH_DISTRIBUTED_DEBUG={level!r}: set it to OFF, INFO or DETAIL, or unset it")


def import_time(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables of ``values`` that a fork server must have been started with."""
    return tuple(sorted((k, v) for k, v in values.items() if _IMPORT_TIME.match(k) and k not in _READ_LATER))
