"""Wrong answers of lesson 14: what people write before they get it right."""

from dtlab.course.mutants import edit


def _not_started(seconds, hosts, usd):
    return round(100 * usd * hosts * max(60, seconds) / 3600)


MUTANTS = {
    "14-prices": {
        "one host only": edit("100 * usd_per_hour * hosts", "100 * usd_per_hour"),
        "cards instead of hosts": edit("100 * usd_per_hour * hosts", "100 * usd_per_hour * cards"),
        "the idle cards are free": edit("100 * usd_per_hour * hosts", "100 * usd_per_hour * cards / of_host"),
        "hosts cut off": edit("math.ceil(cards / of_host)", "cards // of_host"),
        "hosts not whole": edit("math.ceil(cards / of_host)", "cards / of_host"),
        "no minimum": edit("max(60, seconds)", "seconds"),
        "started hours": edit("max(60, seconds) / 3600", "math.ceil(seconds / 3600)"),
        "dollars": edit("round(100 * usd_per_hour", "round(usd_per_hour"),
        "not whole cents": edit("round(100 * usd_per_hour * hosts * max(60, seconds) / 3600)",
                                "100 * usd_per_hour * hosts * max(60, seconds) / 3600"),
        "the efficiency of the whole": edit("speed / (cards * one_card)", "speed / one_card"),
        "seconds of one card": edit("samples / speed", "samples / one_card"),
        "the first machine only": edit("    return priced", "        break\n    return priced"),
    },
    "14-deadline": {
        "the cheapest, late or not": edit('row["seconds"] <= deadline', "True"),
        "the fastest in time": edit('key=lambda row: (row["cents"], row["seconds"]), default', 
                                    'key=lambda row: row["seconds"], default'),
        "before the deadline, not at it": edit('row["seconds"] <= deadline', 'row["seconds"] < deadline'),
        "of equal ones the first": edit('(row["cents"], row["seconds"]), default', 'row["cents"], default'),
        "of nothing an error": edit(", default=None", ""),
        "the cents instead of the row": edit(
            '    return min(in_time, key=lambda row: (row["cents"], row["seconds"]), default=None)',
            '    return min((row["cents"] for row in in_time), default=None)',
        ),
        "all rows, in order": edit('if not kept or row["cents"] < kept[-1]["cents"]:', "if True:"),
        "equals are kept": edit('row["cents"] < kept[-1]["cents"]', 'row["cents"] <= kept[-1]["cents"]'),
        "the dearer ones": edit('row["cents"] < kept[-1]["cents"]', 'row["cents"] > kept[-1]["cents"]'),
        "the slowest first": edit("    return kept", "    return kept[::-1]"),
        "compared with the first only": edit('kept[-1]["cents"]', 'kept[0]["cents"]'),
        "ties by chance": edit('key=lambda row: (row["seconds"], row["cents"])',
                               'key=lambda row: (row["seconds"], -row["cents"])'),
    },
    "14-spot": {
        "the price of the work": edit("statistics.fmean(walls)", "work"),
        "the median": edit("statistics.fmean(walls)", "statistics.median(walls)"),
        "the worst run": edit("statistics.fmean(walls)", "max(walls)"),
        "dollars": edit("cents = round(100 * spot_usd", "cents = round(spot_usd"),
        "a run at the deadline is late": edit("wall > deadline", "wall >= deadline"),
        "a share instead of a count": edit(
            "late = sum(wall > deadline for wall in walls)",
            "late = sum(wall > deadline for wall in walls) / len(walls)",
        ),
        "the mean is in time": edit(
            "late <= most_late * len(walls)", "statistics.fmean(walls) <= deadline"
        ),
        "cheaper is enough": edit("cheaper and late <= most_late * len(walls)", "cheaper"),
        "in time is enough": edit("cheaper and late", "late"),
        "prices compared, not bills": edit("cents < round(100 * on_demand_usd * work / 3600)",
                                           "spot_usd < on_demand_usd"),
        "on demand pays for interruptions": edit("on_demand_usd * work / 3600", 
                                                 "on_demand_usd * statistics.fmean(walls) / 3600"),
        "always spot": lambda walls, work, deadline, spot_usd, *rest: (
            round(100 * spot_usd * sum(walls) / len(walls) / 3600), sum(w > deadline for w in walls), "spot"),
    },
    "14-guard": {
        "one host": edit("usd_per_hour * hosts * max(60", "usd_per_hour * max(60"),
        "no minimum": edit("max(60, math.ceil(seconds))", "math.ceil(seconds)"),
        "seconds not started": _not_started,
        "started hours": edit("max(60, math.ceil(seconds)) / 3600", "math.ceil(seconds / 3600)"),
        "each for itself": edit('if w.all_agree(is_over, rule="any"):', "if is_over:"),
        "any clock counts": edit("w.rank == 0 and spent()", "spent()"),
        "all clocks must agree": edit(
            'is_over = w.rank == 0 and spent() >= limit\n            if w.all_agree(is_over, rule="any")',
            "is_over = spent() >= limit\n            if w.all_agree(is_over)",
        ),
        "all must say so": edit('w.all_agree(is_over, rule="any")', "w.all_agree(is_over)"),
        "only rank 0 asks": edit('if w.all_agree(is_over, rule="any")', 
                                 'if is_over and w.all_agree(is_over, rule="any")'),
        "above the limit only": edit("spent() >= limit", "spent() > limit"),
        "asks in every step": edit("if run.steps % ask == 0:", "if True:"),
        "asks before the step": edit(
            "        run.step()\n        if run.steps % ask == 0:\n"
            "            is_over = w.rank == 0 and spent() >= limit\n"
            '            if w.all_agree(is_over, rule="any"):\n'
            "                save(run)\n"
            '                return "stopped"\n',
            "        if run.steps % ask == 0:\n"
            "            is_over = w.rank == 0 and spent() >= limit\n"
            '            if w.all_agree(is_over, rule="any"):\n'
            "                save(run)\n"
            '                return "stopped"\n'
            "        run.step()\n",
        ),
        "no checkpoint": edit("                save(run)\n", ""),
        "only rank 0 saves": edit("                save(run)\n", 
                                  "                if w.rank == 0:\n                    save(run)\n"),
        "saves at every question": edit(
            '            if w.all_agree(is_over, rule="any"):\n                save(run)\n',
            '            save(run)\n            if w.all_agree(is_over, rule="any"):\n',
        ),
        "goes on after the save": edit('                return "stopped"\n', ""),
        "says finished": edit('return "stopped"', 'return "finished"'),
        "never stops": edit('w.all_agree(is_over, rule="any")', 'w.all_agree(False, rule="any")'),
        "one step too many": edit("while run.steps < total:", "while run.steps <= total:"),
    },
}  # fmt: skip
