"""Checks that answer with a value, a verdict and the fix.

- ``doctor.doctor``: this machine. ``record_review.review_record``: a run that was made.
- ``parity.loss_parity``, ``short_run.config_parity``: one rank against many.
- ``gradient_agreement.gradient_agreement``: the ranks' gradients, inside a loop.
- ``sample_coverage.sample_coverage``: rows seen twice, or never.
- ``profiler.step_profile``, ``short_run.config_profile``: the parts of a step; ``bound.bound_verdict``: what
  bounds it, and what to try; ``utilisation``: the busy share, and what NVML and CloudWatch show instead.
- ``step_trace.record_trace``: one step as spans, and what of its communication nothing hides.
- ``count_module.count_module``: any module as parameters and bytes a sample, for ``dtlab.cost``.
"""
