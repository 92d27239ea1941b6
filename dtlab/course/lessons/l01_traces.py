"""Step traces of lesson 01: four jobs on two ranks, nine steps each, recorded on a busy two-core CPU.

Microseconds of (data, compute, sync) by rank and step. What each job was:

- A: rank 1 reads from a slow disk, rank 0 has its rows in memory, so rank 0 waits for it in the all-reduce.
- B: a small network beside an embedding table whose whole gradient (9.6 MB) is reduced in every step.
- C: both ranks read from one slow disk.
- D: a wide network; step 5 opens the next file, which takes 0.6 s.
"""

from __future__ import annotations

Step = dict[str, int]

# fmt: off
_RECORDED = {
    "A": (
        ((269, 1662, 18260), (99, 539, 22416), (89, 439, 28440),
         (109, 513, 21546), (94, 442, 21882), (90, 452, 24201),
         (105, 531, 22452), (83, 461, 21919), (88, 399, 32019)),
        ((21313, 1729, 1902), (20943, 756, 319), (25065, 572, 3562),
         (20922, 559, 448), (21736, 536, 1136), (23008, 526, 1336),
         (21190, 496, 315), (21621, 513, 330), (21618, 521, 10741)),
    ),
    "B": (
        ((302, 5518, 49629), (129, 7013, 32162), (112, 10664, 15396),
         (90, 3634, 10460), (69, 3351, 9584), (72, 3001, 12283),
         (97, 7274, 16223), (95, 3418, 14784), (84, 3390, 8028)),
        ((273, 30940, 17947), (119, 24142, 20591), (81, 8270, 8543),
         (93, 3424, 11162), (86, 3012, 10969), (95, 6555, 18647),
         (92, 3805, 15827), (90, 3489, 7496), (93, 3036, 11438)),
    ),
    "C": (
        ((44505, 2226, 5037), (21121, 717, 20733), (21055, 755, 24972),
         (21137, 741, 24791), (45973, 789, 420), (21510, 712, 20158),
         (21386, 564, 20663), (43770, 640, 871), (40433, 644, 650)),
        ((21160, 1822, 29294), (40540, 965, 1104), (45027, 757, 1021),
         (42174, 743, 3176), (24808, 884, 22024), (40691, 637, 927),
         (40674, 576, 362), (21052, 632, 23781), (21210, 616, 20132)),
    ),
    "D": (
        ((276, 35886, 17940), (128, 26580, 12494), (126, 26692, 28801),
         (140, 15845, 19506), (148, 17495, 11308), (600389, 26080, 19753),
         (126, 26823, 11420), (122, 34341, 5543), (103, 32149, 9311)),
        ((278, 41848, 11982), (145, 33656, 5368), (128, 40036, 18052),
         (142, 19158, 23887), (143, 13607, 5104), (602106, 22601, 14264),
         (138, 39994, 6830), (107, 25716, 12609), (5208, 22862, 9696)),
    ),
}
# fmt: on


def recorded_traces() -> dict[str, list[list[Step]]]:
    """`{"A": trace, ...}`: `trace[rank][step]` is `{"data": us, "compute": us, "sync": us}`, a fresh copy.

    >>> recorded_traces()["A"][1][0]
    {'data': 21313, 'compute': 1729, 'sync': 1902}
    """
    parts = ("data", "compute", "sync")
    return {
        name: [[dict(zip(parts, step, strict=True)) for step in steps] for steps in ranks]
        for name, ranks in _RECORDED.items()
    }
