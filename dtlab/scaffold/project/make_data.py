"""Writes a small Parquet file to try things with: who bought. Delete it once yours lies in data/."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(folder: Path, rows: int = 4_000) -> Path:
    """``rows`` orders in ``folder/example.parquet``, the same in every call."""
    random = np.random.default_rng(0)
    shop, weekday = random.integers(0, 20, rows), random.integers(0, 7, rows)
    price = random.lognormal(3.0, 0.5, rows)
    logit = random.normal(0, 1, 20)[shop] + 0.5 * (weekday >= 5) - 0.05 * (price - 20)
    table = {
        "order_id": np.arange(rows),
        "shop": [f"shop {number}" for number in shop],
        "weekday": weekday,
        "price": price,
        "bought": random.random(rows) < 1 / (1 + np.exp(-logit)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "example.parquet"
    pq.write_table(pa.table(table), path)
    return path


if __name__ == "__main__":
    print(write(Path(__file__).resolve().parents[1] / "data"))
