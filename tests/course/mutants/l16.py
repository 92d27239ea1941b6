"""Wrong answers of lesson 16: what people write before they get it right.

The trainer's four planted faults are refused, and named, in ``tests/ranks/test_report_card.py``.
"""

from dtlab.course.mutants import edit

_SHARE = 'data_parallel(shard_embeddings(model, "row_wise"), w)'
_FINAL = 'final = replace(Recipe(order, share, kept, auc), precision=plan["precision"])'
_PLAN = "plan = choose_plan(JOB, machines())"

MUTANTS = {
    "16-trainer": {
        "a rank's share of the batch": edit("rows, GLOBAL_BATCH, seed", "rows, GLOBAL_BATCH // w.size, seed"),
        "the seed is not used": edit("GLOBAL_BATCH, seed=seed)", "GLOBAL_BATCH)"),
        "the tail is dropped": edit("seed=seed)", 'seed=seed, tail="drop")'),
        "tables dealt out, nothing averaged": edit(_SHARE, 'shard_embeddings(model, "row_wise")'),
        "without the generators": edit(', "generators": Generators()', ""),
        "an AUC as it should be": edit("evaluate(model, table).auc", "0.75"),
    },
    "16-plan": {
        "the first that will do": edit(
            '    return min(found, key=lambda row: (row["cents"], row["seconds"]), default=None)',
            "    return found[0] if found else None",
        ),
        "the fastest": edit('(row["cents"], row["seconds"])', 'row["seconds"]'),
        "of equal cents any": edit('(row["cents"], row["seconds"])', '(row["cents"], -row["seconds"])'),
        "one card holds the tables": edit("(hosts * one.cards) >", "one.cards >"),
        "all of the memory": edit("> ROOM * one.card_bytes", "> one.card_bytes"),
        "tables anywhere": edit("> ROOM * one.card_bytes", "> 1e30"),
        "a full card is too full": edit("> ROOM * one.card_bytes", ">= ROOM * one.card_bytes"),
        "emulated bf16": edit('is_native = precision != "bf16" or one.has_bf16', "is_native = True"),
        "never bf16": edit(' or one.has_bf16', ""),
        "hosts in proportion": edit("hosts * job.keeps ** (hosts - 1)", "hosts"),
        "one host is paid": edit("one.usd_per_hour * hosts * max", "one.usd_per_hour * max"),
        "no minimum": edit("max(60, seconds)", "seconds"),
        "late is fine": edit("seconds <= job.deadline_seconds and ", ""),
        "dear is fine": edit(" and cents <= job.budget_cents", ""),
        "just met is missed": edit("seconds <= job.deadline_seconds", "seconds < job.deadline_seconds"),
        "three hosts at most": edit("range(1, MOST_HOSTS + 1)", "range(1, MOST_HOSTS)"),
        "of nothing an error": edit(", default=None", ""),
        "dollars": edit("round(100 * one", "round(one"),
    },
    "16-serving": {
        "nobody waits": edit("(start - arrived, taken)", "(0, taken)"),
        "a request is computed alone": edit("[(start - arrived, taken)", "[(start - arrived, compute(1))"),
        "the wait holds the computing": edit("(start - arrived, taken)", "(start + taken - arrived, taken)"),
        "one at a time": edit("+ most]", "+ 1]"),
        "it waits for a full batch": edit("start = max(free, waiting[0])", "start = max(free, waiting[-1])"),
        "who comes at the start is left": edit("arrived <= start", "arrived < max(start, waiting[0] + 1)"),
        "starts before anybody came": edit("start = max(free, waiting[0])", "start = free or waiting[0]"),
        "all that are there": edit("len(answered) + most]", "len(answered) + 10]"),
        "the process is never busy": edit("free = start + taken", "free = 0"),
    },
    "16-report": {
        "the recipe in fp32": edit(_FINAL, "final = Recipe(order, share, kept, auc)"),
        "the plan that was left behind": edit(
            _PLAN, "from dtlab.course.capstone_plan import FAULTY_PLAN\nplan = FAULTY_PLAN"
        ),
        "cents from nowhere": edit(_PLAN, _PLAN + ' | {"cents": 9_900}'),
        "a plan without a bill": edit(_PLAN, 'plan = {"instance": "ml.p4d.24xlarge", "precision": "bf16"}'),
        "more hosts, the same bill": edit(_PLAN, _PLAN + ' | {"hosts": 4}'),
        "the card instead of the recipe": edit(_FINAL, "final = plan"),
        "the trainer that was left behind": edit("Recipe(order, share, kept, auc)", "FAULTY"),
    },
}  # fmt: skip
