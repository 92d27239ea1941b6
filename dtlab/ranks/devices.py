"""Which device a rank computes on and which backend carries its collectives (lesson 02)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from dtlab.errors import UserError
from dtlab.ranks.environment import Membership


def choose_device(
    wanted: str | torch.device | None, m: Membership, environ: Mapping[str, str]
) -> torch.device:
    """This rank's device: the argument, else DTLAB_DEVICE, else its own CUDA card, else the CPU.

    A bare ``"cuda"`` means the card of the *local* rank: on the second host of two, rank 4 of 8 has card 0.

    Raises:
        UserError: no such device here, or more local ranks than cards.

    Example:
        >>> choose_device("cpu", Membership(), {})
        device(type='cpu')
    """
    source = "device" if wanted is not None else "DTLAB_DEVICE"
    text = str(wanted) if wanted is not None else environ.get("DTLAB_DEVICE", "").strip()
    if not text:
        text, source = ("cuda" if torch.cuda.is_available() else "cpu"), "the default"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UserError(f"{source}={text!r} is not a device: use 'cpu' or 'cuda'") from None
    if device.type not in ("cpu", "cuda") and m.size > 1:
        raise UserError(f"{source}={text!r} has no collectives: use 'cpu' or 'cuda' with several ranks")
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(
            f"{source}={text!r}, but torch sees no CUDA card here: use 'cpu' or install a CUDA build"
        )
    cards = torch.cuda.device_count()
    index = device.index if device.index is not None else (m.local_rank or 0)
    if index >= cards:
        raise UserError(
            f"local rank {m.local_rank or 0} needs cuda:{index}, but this host has {cards} CUDA cards. "
            "Fix: start at most one rank per card, or set DTLAB_DEVICE=cpu"
        )
    return torch.device("cuda", index)


def choose_backend(wanted: str | None, device: torch.device) -> str:
    """``"nccl"`` on CUDA (where torch has it), ``"gloo"`` on the CPU, unless the caller says otherwise.

    Raises:
        UserError: unknown backend, or NCCL without a CUDA device.

    Example:
        >>> choose_backend(None, torch.device("cpu"))
        'gloo'
    """
    if wanted is None:
        return "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    if wanted not in ("gloo", "nccl"):
        raise UserError(f"backend={wanted!r} is not known: use 'gloo' (CPU) or 'nccl' (CUDA)")
    if wanted == "nccl" and device.type != "cuda":
        raise UserError(f"backend='nccl' needs a CUDA device, this rank has {device}: use backend='gloo'")
    if wanted == "nccl" and not dist.is_nccl_available():
        raise UserError("backend='nccl', but this build of torch has no NCCL: use backend='gloo'")
    return wanted
