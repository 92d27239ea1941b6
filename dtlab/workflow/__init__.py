"""From raw rows to a packaged model in one command: prepare, features, train, evaluate, package (lesson 16).

- `config`: the file of a pipeline: the tables of a run, and ``[pipeline]``.
- `inputs`: what each step depends on, and what has changed since it was last done.
- `store`: what a step left behind, and whether that is whole.
- `steps`: the work itself, one function for each step.
- `serving`, `latency`: the packaged model as a request meets it, and how long it takes.
- `archive`: ``model.tar.gz`` with the model, its card and the code that serves it.
- `engine`: run what has changed, skip the rest, say why.
"""
