"""The random generators of a rank as a part of a checkpoint: Python, NumPy, torch and its card (lesson 13).

A resumed run draws the numbers that the uninterrupted one would have drawn, if the world size is the same:
each rank takes back its own generators. On another world size there is no such thing as "its own": every
rank then starts new generators from (seed, step, rank, world size), which is repeatable but is another
draw.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dtlab.errors import UserError
from dtlab.ranks import seeds
from dtlab.ranks.seeds import mix

__all__ = ["Generators"]


class Generators:
    """The generators of this process, as an object with a state.

    Args:
        device: the card whose generator counts; default: the current CUDA card if CUDA is in use.

    >>> generators = Generators()
    >>> state = generators.state_dict()
    >>> first = random.random(), np.random.rand(), torch.rand(1).item()
    >>> generators.load_state_dict(state)
    >>> first == (random.random(), np.random.rand(), torch.rand(1).item())
    True
    """

    per_rank = True
    """Every rank has its own: a checkpoint keeps all of them."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._device = torch.device(device) if device is not None else None

    def state_dict(self) -> dict[str, Any]:
        """All states: tensors, arrays and numbers only. ``cuda`` is absent without a card."""
        version, words, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        state: dict[str, Any] = {
            "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
            "numpy": {
                "kind": kind,
                "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
                "position": position,
                "has_gauss": has_gauss,
                "cached": cached,
            },
            "torch": torch.get_rng_state(),
            "base_seed": seeds.base_seed(),
        }
        card = self._card()
        if card is not None:
            state["cuda"] = torch.cuda.get_rng_state(card)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where ``state`` was taken; a card's state is left out where there is no card."""
        python, arrays = state["python"], state["numpy"]
        random.setstate((int(python["version"]), tuple(python["words"].tolist()), python["gauss"]))
        if arrays["kind"] != "MT19937":
            raise UserError(f"NumPy generator {arrays['kind']!r} is not known: np.random uses MT19937")
        keys = arrays["keys"].numpy().astype(np.uint32)
        np.random.set_state(
            ("MT19937", keys, int(arrays["position"]), int(arrays["has_gauss"]), float(arrays["cached"]))
        )
        torch.set_rng_state(state["torch"])
        card = self._card()
        if card is not None and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], card)

    def rederive(self, state: Mapping[str, Any], *, step: int, rank: int, world_size: int) -> None:
        """New generators for a world size that the checkpoint was not made with.

        ``state`` is the one of the old rank 0; its words enter the seed where the run had no seed.
        """
        seed = state.get("base_seed")
        if seed is None:
            seed = "/".join(str(int(word)) for word in state["torch"][:64])
        mixed = mix("resumed", seed, step, rank, world_size)
        random.seed(mixed)
        np.random.seed(mixed % 2**32)
        torch.default_generator.manual_seed(mixed)
        card = self._card()
        if card is not None:
            with torch.cuda.device(card):
                torch.cuda.manual_seed(mixed)

    def _card(self) -> torch.device | None:
        if self._device is not None:
            return self._device if self._device.type == "cuda" else None
        # Only a process that uses CUDA already: asking for the state would start it, which costs memory.
        in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
        return torch.device("cuda", torch.cuda.current_device()) if in_use else None
