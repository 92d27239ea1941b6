"""Your own Parquet: one file or a folder of shards, with its columns named in the configuration.

- Names and types are checked against the footers first, before any row is read; an error lists what the
  file holds and the nearest name. All shards must agree on the columns used.
- The label is 0/1 or boolean, without nulls. The id, if named, is a column of unique whole numbers;
  otherwise ids are row numbers over the shards in name order.
- Rows are split by a column that says train, validation or test, or by a hash of their id in stated
  fractions: a row keeps its part when rows are added, if the id is a column.
- ``version`` is a hash of the bytes of the files and of how they are split.

Taught in lesson 11; ``dtlab predict`` reads its input through ``read_features``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from dtlab.data import columns
from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.features import Features, FeatureSpec
from dtlab.data.prepare import file_digest
from dtlab.data.source import SPLITS, Source
from dtlab.errors import UserError

ROW = "__row__"  # the id column of files that name none


def files(path: str | Path, field: str = "data.path") -> list[Path]:
    """The Parquet files at ``path`` in name order: the file itself, or those of a folder and its sub-folders.

    Names that begin with ``.`` or ``_`` are skipped. Raises UserError when there is nothing to read.
    """
    path = Path(path)
    try:
        path.stat()
        if not path.is_dir():
            return [path]
        found = [
            file for file in sorted(path.rglob("*.parquet"))
            if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        ]  # fmt: skip
        os.listdir(path)  # rglob is silent about a folder without rights
    except FileNotFoundError:
        there = sorted(other.name for other in path.parent.iterdir()) if path.parent.is_dir() else []
        near = columns.near(path.name, there)
        raise UserError(f"{field} = {str(path)!r}: there is no such file or folder{near}") from None
    except OSError as error:
        raise UserError(f"{field} = {str(path)!r}: {error.strerror}; check its rights") from None
    if not found:
        raise UserError(f"{field} = {str(path)!r}: the folder holds no .parquet file")
    return found


def schema(paths: Sequence[Path], used: Sequence[str] | None = None, field: str = "data.path") -> pa.Schema:
    """The common schema of some shards, from their footers.

    ``used`` are the columns on which the shards must agree (None: all of them). Types agree when they are
    equal, dictionary encoding aside; a shard in which a column is all null fits any type.
    """
    common: dict[str, tuple[pa.DataType, Path]] = {}
    first: pa.Schema | None = None
    for path in paths:
        found = _footer(path, field)
        if first is None:
            first = found
        names = list(first.names) if used is None else list(used)
        columns.require(found, names, str(path))
        for name in names:
            kind = _value_type(found.field(name).type)
            known, where = common.setdefault(name, (kind, path))
            if pt.is_null(known):
                common[name] = (kind, path)
            elif kind != known and not pt.is_null(kind):
                raise UserError(
                    f"column {name!r} is {known} in {where} and {kind} in {path}: give all shards one schema"
                )
    return pa.schema([(name, kind) for name, (kind, _) in common.items()])


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _footer(path: Path, field: str) -> pa.Schema:
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{field}: {path} is empty (0 bytes), not a Parquet file")
        return pq.read_schema(path)
    except pa.ArrowInvalid:
        raise UserError(f"{field}: {path} is not a Parquet file, or is damaged; write it again") from None
    except OSError as error:
        raise UserError(f"{field}: cannot read {path}: {error.strerror or error}; check its rights") from None


def read_table(path: str | Path, used: Sequence[str] | None = None, field: str = "parquet") -> pa.Table:
    """All rows of a file or of a folder of shards, in name order; ``used`` limits the columns.

    Raises UserError for a path, a file or a schema that does not fit, and when there are no rows.
    """
    paths = files(path, field)
    return _read(paths, schema(paths, used, field), field)


def read_features(
    path: str | Path, features: Features, field: str = "parquet", *, row_numbers: bool = True
) -> Batch:
    """The rows at ``path`` as the model that ``features`` belongs to expects them, without labels.

    Rows come in file order; ids are the id column when the files hold it, else row numbers.
    """
    paths = files(path, field)
    used = features.spec.inputs()
    name = features.spec.id
    held = _footer(paths[0], field)
    if name is not None and name in held.names:
        used = [*used, name]
    elif name not in (None, ROW) and not row_numbers:
        raise UserError(
            f"{field}: {paths[0]} has no column {name!r}, the model's id, so scores would carry row numbers; "
            "add the column, or ask for them with --row-numbers"
        )
    return features.transform(_read(paths, schema(paths, used, field), field), labels=False)


def _read(paths: Sequence[Path], wanted: pa.Schema, field: str) -> pa.Table:
    parts = []
    for path in paths:
        try:
            part = pq.read_table(path, columns=wanted.names, partitioning=None)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{field}: cannot read {path}, which seems damaged: {reason}") from None
        parts.append(part.select(wanted.names).cast(wanted))
    table = pa.concat_tables(parts)
    if table.num_rows == 0:
        raise UserError(f"{field}: {paths[0] if len(paths) == 1 else paths[0].parent} holds no rows")
    return table


def source(config: DataConfig, root: Path) -> Source:
    """What ``load_dataset`` reads for ``name = "parquet"``; see the module for what is checked."""
    if config.path is None:
        raise UserError("data.path is not set: name a Parquet file or a folder of .parquet shards")
    paths = files(config.path)
    if config.label is None:
        held = columns.listed(_footer(paths[0], "data.path"))
        raise UserError(f"data.label is not set: name the column of 0/1 labels; {paths[0]} holds: {held}")
    if not (config.categorical or config.numeric or config.hashed):
        held = columns.listed(_footer(paths[0], "data.path"))
        raise UserError(
            "no feature column is named: set data.categorical, data.numeric or data.hashed; "
            f"{paths[0]} holds: {held}"
        )
    spec = FeatureSpec(
        categorical=config.categorical,
        numeric=config.numeric,
        hashed=config.hashed,
        hash_buckets=config.hash_buckets,
        label=config.label,
        id=config.id,
    )
    if config.split is not None and config.split in spec.columns():
        raise UserError(f"data.split = {config.split!r}: the column is also named as feature, label or id")
    used = list(dict.fromkeys([*spec.columns(), *([config.split] if config.split is not None else [])]))
    wanted = schema(paths, used)
    if config.id is None:  # the row numbers become a column, so that ids stay unique over the three parts
        spec = dataclasses.replace(spec, id=ROW)
    settings = (config.split, config.id, config.validation_fraction, config.test_fraction)
    version = hashlib.blake2b(f"{file_digest(paths)} {settings}".encode(), digest_size=8).hexdigest()

    @functools.cache
    def parts() -> dict[str, pa.Table]:
        table = _read(paths, wanted, "data.path")
        columns.labels(table, config.label or "")
        ids = columns.ids(table, config.id)
        _require_unique(ids, config.id)
        if config.id is None:
            table = table.append_column(ROW, pa.array(ids))
        return split_rows(table, ids, config)

    return Source("parquet", version, spec, lambda split: parts()[split])


def _require_unique(ids: np.ndarray, name: str | None) -> None:
    if name is None:
        return
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise UserError(
            f"the id column {name!r} holds {twice[0]} more than once: make ids unique, or leave data.id out"
        )


def split_rows(table: pa.Table, ids: np.ndarray, config: DataConfig) -> dict[str, pa.Table]:
    """The rows of train, validation and test: by ``config.split``, or by a hash of the id."""
    if config.split is not None:
        values = pc.cast(columns.plain(table, config.split), pa.string())
        masks = {split: pc.fill_null(pc.equal(values, split), False) for split in SPLITS}
        known = functools.reduce(pc.or_, masks.values())
        if not pc.all(known).as_py():
            odd = values.filter(pc.invert(known))[0].as_py()
            raise UserError(
                f"the split column {config.split!r} holds {odd!r}: its values must be {', '.join(SPLITS)}"
            )
        reason = f"give some rows the value of that part in the column {config.split!r}"
    else:
        share = (columns.mix(ids.astype(np.uint64) + np.uint64(1)) >> np.uint64(11)) / float(1 << 53)
        validation = share < config.validation_fraction
        test = ~validation & (share < config.validation_fraction + config.test_fraction)
        masks = {
            "train": pa.array(~validation & ~test),
            "validation": pa.array(validation),
            "test": pa.array(test),
        }
        reason = "give more rows, larger fractions, or a split column"
    parts = {split: table.filter(mask) for split, mask in masks.items()}
    for split, part in parts.items():
        if part.num_rows == 0:
            raise UserError(f"of {table.num_rows} rows none is in the {split} part: {reason}")
    return parts
