"""Shapes of the models that published runs name, each with its source. A name alone may mean several models.

A row names its model ("8B", "Llama 3.1 8B", "Llama-like 3B (L28 h3072 ffn8192 V131072)") and may give the
number of parameters. Numbers in the name win; among models of one name the number of parameters decides.
"""

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.run_table import whole
from dtlab.cost.builders import MOST_LAYERS, transformer
from dtlab.cost.presets import BERT_LARGE, Preset
from dtlab.errors import UserError

_NANOTRON = "huggingface/nanotron scripts/scaling_benchmarks.py, seq 4096, vocabulary 131072"
_FORGE = "KempnerInstitute/KempnerForge configs/train/"
_LLAMA_2, _LLAMA_3 = "Touvron et al., arXiv 2307.09288", "Llama team, arXiv 2407.21783, table 3"
# Key in lower case, layers, hidden, ffn, heads, kv_heads, vocab, seq_len, tied, source.
_SHAPES = (
    ("nanotron 1b", 16, 2048, 8192, 32, 32, 131072, 4096, True, _NANOTRON),
    ("nanotron 3b", 28, 3072, 8192, 32, 32, 131072, 4096, True, _NANOTRON),
    ("nanotron 8b", 32, 4096, 14336, 32, 32, 131072, 4096, False, _NANOTRON),
    ("nanotron 80b", 80, 8192, 28672, 64, 64, 131072, 4096, False, _NANOTRON + ", the 70B entry with MHA"),
    ("llama 7b", 32, 4096, 11008, 32, 32, 32000, 4096, False, _LLAMA_2),
    ("llama 7b", 32, 4096, 14336, 32, 8, 128256, 4096, False, _FORGE + "7b_32gpu_fsdp.toml"),
    ("llama 13b", 40, 5120, 13824, 40, 40, 32000, 4096, False, _LLAMA_2),
    ("llama 29b", 56, 6144, 21504, 48, 8, 128256, 4096, False, _FORGE + "29b_32gpu_tp4_pp2.toml"),
    ("llama 8b", 32, 4096, 14336, 32, 8, 128256, 8192, False, _LLAMA_3),
    ("llama 70b", 80, 8192, 28672, 64, 8, 128256, 8192, False, _LLAMA_3),
    ("llama 70b", 80, 8192, 28672, 64, 8, 32000, 4096, False, _LLAMA_2),
    ("llama 405b", 126, 16384, 53248, 128, 8, 128256, 8192, False, _LLAMA_3),
    ("qwen3 8b", 36, 4096, 12288, 32, 8, 151936, 4096, False, "Qwen team, Qwen3-8B config.json"),
)  # fmt: skip
_NUMBERS = {
    "layers": r"\bL\s*=?\s*(\d+)", "hidden": r"\bh\s*=?\s*(\d+)", "ffn": r"\b(?:ffn|f)\s*=?\s*(\d+)",
    "vocab": r"\bV\s*=?\s*(\d+)", "heads": r"\ba\s*=?\s*(\d+)",
}  # fmt: skip
_COLUMNS = {
    "layers": ("layers", "num_layers"), "hidden": ("hidden", "hidden_size"), "vocab": ("vocab", "vocab_size"),
    "ffn": ("ffn", "ffn_size", "intermediate_size"), "heads": ("heads", "num_heads"),
    "kv_heads": ("kv_heads", "num_kv_heads"),
}  # fmt: skip
_MOST = {
    "layers": MOST_LAYERS,
    "hidden": 10**6,
    "ffn": 10**7,
    "heads": 10**4,
    "kv_heads": 10**4,
    "vocab": 10**8,
}


def shape_of(row: Mapping[str, str], program: str) -> Preset:
    """The model of a row.

    Columns of its shape win (layers, hidden, ffn, heads, kv_heads, vocab, tied), then numbers in its name,
    then the table above.

    Raises:
        UserError: no shape is known under that name, or its number of parameters is another.
    """
    name = row.get("model", "").strip()
    if not name:
        raise UserError("model is blank: give the name of a known model, or its shape")
    given = _given(row, name)
    if given:
        return given
    if "bert-large" in name.lower() or "bert large" in name.lower():
        return BERT_LARGE
    if re.search(r"moe|mixture", name.lower()):
        raise UserError(f"model = {name!r}: memory of mixtures of experts is not predicted")
    size = re.search(r"(\d+(?:\.\d+)?)\s*[bB]\b", name)
    own = program == "nanotron" and not re.search(r"llama(?!.?like)", name.lower())
    family = "qwen3" if "qwen3" in name.lower() else "nanotron" if own else "llama"
    llama = family != "llama" or program == "kempner" or "llama" in name.lower()
    llama = llama or (size is not None and size.group(0) == name)
    key = f"{family} {size.group(1)}b" if size else ""
    found = [entry for entry in _SHAPES if entry[0] == key]
    if not found or not llama:
        raise UserError(
            f"model = {name!r}: its shape is not known; give columns layers, hidden, ffn, heads, vocab"
        )
    if program == "torchtitan" or re.search(r"llama.?3", name.lower()):
        found = [entry for entry in found if entry[6] == 128256] or found
    columns = _columns(row)
    presets = [one for one in map(_preset, found) if all(getattr(one, f) == n for f, n in columns.items())]
    if not presets:
        raise UserError(
            f"{', '.join(f'{field} = {size}' for field, size in columns.items())}: not the model known as "
            f"{name!r}; give all of layers, hidden, ffn, heads, vocab"
        )
    stated = parameters(row.get("params", ""))
    near = [one for one in presets if stated is None or abs(one.parameters / stated - 1) < 0.04]
    if not near:
        known = ", ".join(f"{one.parameters / 1e9:.2f}B" for one in presets)
        raise UserError(f"params = {row['params']!r} of {name!r}: known under that name are {known}")
    return near[0]


def parameters(text: str) -> float | None:
    """ "3.57B (tied)", "336M", "29,975,214,080" as a number; None when blank.

    >>> parameters("3.57B (tied)"), parameters("336M"), parameters("")
    (3570000000.0, 336000000.0, None)

    Raises:
        UserError: no number above 0.
    """
    if not text.strip():
        return None
    found = re.match(
        r"~?\s*(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d{1,2})?)\s*([kmbt]?)(?![\w.])", text.strip().lower()
    )
    value = float(found.group(1).replace(",", "")) if found else 0.0
    if not found or not value:
        raise UserError(f"params = {text!r}: give the number of parameters, such as 6.74B or 6738415616")
    return value * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[found.group(2)]


def _columns(row: Mapping[str, str]) -> dict[str, int]:
    """Sizes that the columns give."""
    sizes = {field: whole(row, *columns) for field, columns in _COLUMNS.items()}
    found = {field: size for field, size in sizes.items() if size is not None}
    for field, most in _MOST.items():
        if found.get(field, 0) > most:
            raise UserError(f"{field} = {found[field]}: give that of a real model, at most {most:,}")
    return found


def _given(row: Mapping[str, str], name: str) -> Preset | None:
    named = {field: re.search(pattern, name) for field, pattern in _NUMBERS.items()}
    sizes: dict[str, Any] = {
        field: int(found.group(1)) for field, found in named.items() if found
    } | _columns(row)
    if not {"layers", "hidden", "ffn", "vocab"} <= set(sizes):
        return None
    heads = sizes.pop("heads", max(1, sizes["hidden"] // 128))
    stated = parameters(row.get("params", ""))
    tied = row.get("tied", "").strip().lower() in ("1", "1.0", "y", "yes", "true")
    made = [transformer(seq_len=4096, heads=heads, tied=tie, name=name, **sizes) for tie in (tied, not tied)]
    if stated is None:
        return made[0]
    best = made[0] if row.get("tied", "").strip() else min(made, key=lambda one: abs(one.parameters - stated))
    if abs(best.parameters / stated - 1) > 0.25:
        raise UserError(
            f"params = {row['params']!r} of {name!r}: its layers, hidden, ffn and vocab make "
            f"{best.parameters / 1e9:.2f}B; give one or the other"
        )
    return best


def _preset(entry: tuple) -> Preset:
    _, layers, hidden, ffn, heads, kv_heads, vocab, seq_len, tied, _ = entry
    return transformer(
        layers, hidden, vocab, seq_len, heads=heads, kv_heads=kv_heads, ffn=ffn, tied=tied, name=entry[0]
    )
