"""Wrong answers of lesson 15: what people write before they get it right."""

import hashlib
import math
import subprocess

from dtlab.course.mutants import edit


def _any_rank_stops_all(w, fit, patience, most):
    """Agreed, on the wrong question: one rank's own rows are enough to stop all."""
    best, best_epoch, best_at, epochs = math.inf, 0, 0, 0
    while epochs < most:
        fit.epoch()
        epochs += 1
        total, rows = fit.validate()
        if total / rows < best:
            best, best_epoch, best_at = total / rows, epochs, fit.samples
            fit.keep()
        if w.all_agree(fit.samples - best_at >= patience, rule="any"):
            break
    fit.put_back()
    return epochs, best_epoch


def _state(repository):
    def git(*words):
        return subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True).stdout.strip()

    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}


def _all_bytes_in_one(settings, repository, data):
    digest = hashlib.sha256()
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return {"settings": settings, **_state(repository), "data_version": digest.hexdigest()}


def _times_and_sizes(settings, repository, data):
    seen = [
        (str(p.relative_to(data)), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(data.rglob("*"))
    ]
    version = hashlib.sha256(repr(seen).encode()).hexdigest()
    return {"settings": settings, **_state(repository), "data_version": version}


def _names_only(settings, repository, data):
    seen = [str(path.relative_to(data)) for path in sorted(data.rglob("*"))]
    version = hashlib.sha256(repr(seen).encode()).hexdigest()
    return {"settings": settings, **_state(repository), "data_version": version}


MUTANTS = {
    "15-request": {
        "numbers as they are": edit("v if isinstance(v, str) else json.dumps(v)", "v"),
        "Python's words": edit("v if isinstance(v, str) else json.dumps(v)", "str(v)"),
        "text in quotes": edit("v if isinstance(v, str) else json.dumps(v)", "json.dumps(v)"),
        "hours as they are": edit('3600 * job["hours"]', 'job["hours"]'),
        "minutes": edit('3600 * job["hours"]', '60 * job["hours"]'),
        "waits as long as it runs": edit("2 * seconds", "seconds"),
        "always waits": edit('if job["spot"]:', "if True:"),
        "never waits": edit('if job["spot"]:', "if False:"),
        "no checkpoints": edit(
            'request["CheckpointConfig"] = {"S3Uri": job["checkpoints"], "LocalPath": "/opt/ml/checkpoints"}',
            "pass",
        ),
        "checkpoints beside the model": edit('{"S3Uri": job["checkpoints"]', '{"S3Uri": job["output"]'),
        "checkpoints at another place": edit('"/opt/ml/checkpoints"', '"/opt/ml/checkpoint"'),
        "ranks instead of hosts": edit('"InstanceCount": hosts', '"InstanceCount": 4 * hosts'),
        "one channel": edit('job["channels"].items()]', 'list(job["channels"].items())[:1]]'),
        "all from one folder": edit("channel(name, uri)", 'channel(name, job["output"])'),
        "S0's spelling": edit('"ResourceConfig"', '"resource_config"'),
        "type without ml.": edit('"InstanceType": job["instance"]', '"InstanceType": job["instance"][3:]'),
        "always spot": edit('"EnableManagedSpotTraining": job["spot"]', '"EnableManagedSpotTraining": True'),
        "no variables": edit('        "Environment": job["variables"],\n', ""),
        "the job itself": lambda job: job,
    },
    "15-stop": {
        "each for itself": edit("w.gather(fit.validate(), dst=None)", "[fit.validate()]"),
        "the loss of rank 0": edit("w.gather(fit.validate(), dst=None)", "[w.broadcast(fit.validate())]"),
        "any rank stops all": _any_rank_stops_all,
        "a mean of means": edit(
            "sum(total for total, _ in parts) / sum(rows for _, rows in parts)",
            "sum(total / rows for total, rows in parts) / len(parts)",
        ),
        "gathered on rank 0 alone": edit(", dst=None)", ")"),
        "the last weights": edit("    fit.put_back()\n", ""),
        "keeps nothing": edit("            fit.keep()\n", ""),
        "keeps every epoch": edit("        if loss < best:", "        fit.keep()\n        if loss < best:"),
        "as good is better": edit("if loss < best:", "if loss <= best:"),
        "nan is better": edit("if loss < best:", "if not loss >= best:"),
        "one look too patient": edit("best_at >= patience", "best_at > patience"),
        "counts from the start": edit("fit.samples - best_at >= patience", "fit.samples >= patience"),
        "counts epochs": edit("fit.samples - best_at >=", "1000 * (epochs - best_epoch) >="),
        "never stops": edit("            break\n", "            pass\n"),
        "one epoch too many": edit("while epochs < most:", "while epochs <= most:"),
        "larger is better": edit("if loss < best:", "if loss > -best:"),
        "the epoch of the stop": edit("return epochs, best_epoch", "return epochs, epochs"),
    },
    "15-rungs": {
        "the figure at the rung": edit(
            "max(v for v in curves[name][:rung] if not math.isnan(v))", "curves[name][rung - 1]"
        ),
        "the best of the whole curve": edit("curves[name][:rung] if", "curves[name] if"),
        "one look too far": edit("curves[name][:rung] if", "curves[name][: rung + 1] if"),
        "nan is nothing special": edit(
            "-math.inf if lost else max(v for v in curves[name][:rung] if not math.isnan(v))",
            "max(curves[name][:rung])",
        ),
        "the worst go on": edit("key=score, reverse=True)", "key=score)"),
        "a third is dropped": edit("max(1, len(alive) // keep)", "max(1, len(alive) - len(alive) // keep)"),
        "rounded up": edit("max(1, len(alive) // keep)", "max(1, -(-len(alive) // keep))"),
        "none may be left": edit("max(1, len(alive) // keep)", "len(alive) // keep"),
        "all are asked again": edit("        alive = going\n", ""),
        "paid in full": edit("looks |= {name: rung for", "looks |= {name: len(curves[name]) for"),
        "the last rung ends it": edit(
            "looks | {name: len(curves[name]) for name in alive}", "looks | {name: rung for name in alive}"
        ),
        "only what ended": edit(" | {name: len(curves[name]) for name in alive}", ""),
        "only the last survivors": edit("survivors.append(going)", "survivors[:] = [going]"),
    },
    "15-record": {
        "all bytes in one": _all_bytes_in_one,
        "times and sizes": _times_and_sizes,
        "names only": _names_only,
        "the folder's own path": edit("path.relative_to(data).as_posix()", "path.as_posix()"),
        "the name without its folder": edit(
            'sorted(path for path in data.rglob("*") if path.is_file())',
            'sorted(path for path in data.glob("*") if path.is_file())',
        ),
        "the bytes without the name": edit('f"{inner} {hashlib', 'f"{hashlib'),
        "the name without the bytes": edit(
            "{inner} {hashlib.sha256(path.read_bytes()).hexdigest()}", "{inner} {path.stat().st_size}"
        ),
        "where this process is": edit("cwd=repository, ", ""),
        "a short commit": edit('"rev-parse", "HEAD"', '"rev-parse", "--short", "HEAD"'),
        "untracked files do not count": edit('"status", "--porcelain"', '"diff", "HEAD"'),
        "dirty as text": edit('bool(git("status", "--porcelain"))', 'git("status", "--porcelain")'),
        "never dirty": edit('bool(git("status", "--porcelain"))', "False"),
        "the bytes of the hash": edit("digest.hexdigest()}", "digest.digest()}"),
        "no settings": edit('"settings": settings, ', '"settings": {}, '),
        "the newest run": edit("return same[0] if same else None", "return runs[-1]"),
        "by size": edit(
            '(run / "model.safetensors").read_bytes() == wanted',
            'len((run / "model.safetensors").read_bytes()) == len(wanted)',
        ),
        "its name": edit("return same[0] if same else None", "return same[0].name if same else None"),
        "there is always one": edit("return same[0] if same else None", "return (same or runs)[0]"),
    },
}  # fmt: skip
