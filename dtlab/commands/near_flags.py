"""What an unknown flag, or a word that no flag takes, was probably meant to be.

A flag is looked for by the last part of its dotted name, since that is what other programs call it: ``--lr``
is ``--optim.lr``. A small table holds the words of other programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dtlab.settings_file import near_name

__all__ = ["meant_flag", "once_for_each"]

_SYNONYMS = {
    "learning-rate": "lr", "epochs": "max-epochs", "num-epochs": "max-epochs", "batch-size": "global-batch",
    "batch": "global-batch", "train-batch-size": "global-batch", "micro-batch-size": "micro-batch",
    "steps": "max-steps", "num-steps": "max-steps", "gpus": "nproc", "num-gpus": "nproc", "nprocs": "nproc",
    "nproc-per-node": "nproc", "num-workers": "workers", "grad-clip": "clip", "max-grad-norm": "clip",
    "optimizer": "optim.name", "dataset": "data.name", "output-dir": "output", "layers": "num-layers",
    "num-instances": "count",
}  # fmt: skip
_WITH_VALUE = {
    "spot": "kind spot",
    "ec2": "kind ec2",
    "fp16": "precision.name fp16",
    "bf16": "precision.name bf16",
}


def meant_flag(word: str, known: Iterable[str]) -> str | None:
    """The known flag, with a value where it needs one, that ``word`` stands for; None where there is none.

    >>> meant_flag("--learning-rate", ["--run.seed", "--optim.lr"])
    '--optim.lr'
    >>> meant_flag("--no-run.refit", ["--run.refit", "--run.no-refit"])
    '--run.no-refit'
    """
    names = {name[2:]: name for name in known if name.startswith("--")}
    asked = word.partition("=")[0].lstrip("-").replace("_", "-").lower()
    table, _, last = asked.rpartition(".")
    if asked.startswith("no-"):
        table, _, last = asked[3:].rpartition(".")
        last = f"no-{last}"
    flag, _, value = _WITH_VALUE.get(last, "").partition(" ")
    if flag and flag in names:
        return f"--{flag} {value}"
    for meant in (last, _SYNONYMS.get(last, last)):
        same = [name for name in names if name == meant or name.rpartition(".")[2] == meant]
        if same:
            return names[next((name for name in same if name.startswith(f"{table}.")), same[0])]
    near = near_name(asked, names)
    if near is None:
        by_last = {name.rpartition(".")[2]: name for name in names}
        near = by_last.get(near_name(last, by_last) or "")
    return None if near is None else names[near]


def once_for_each(words: Sequence[str], unused: str, lists: Iterable[str]) -> str | None:
    """The way out for a second value of a flag; None where ``unused`` follows none such.

    Args:
        words: of the command line.
        unused: the first word that nothing took.
        lists: flags that may be given several times.

    >>> once_for_each(["train", "--data.numeric", "price", "bought"], "bought", ["--data.numeric"])
    'give the flag once for each value: --data.numeric price --data.numeric bought'
    """
    place = next((at for at in range(len(words) - 1, 0, -1) if words[at] == unused), 0)
    first = next((at for at in range(place - 1, 0, -1) if words[at].startswith("--")), None)
    if first is None:
        return None
    after = next((at for at in range(place, len(words)) if words[at].startswith("-")), len(words))
    flag, equals, value = words[first].partition("=")
    values = [*([value] if equals else []), *words[first + 1 : after]]
    if flag not in lists:
        return None
    return "give the flag once for each value: " + " ".join(f"{flag} {each}" for each in values)
