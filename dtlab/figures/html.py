"""HTML that a notebook's front end shows as it is: dollars stay dollars, and are no formulas."""

from __future__ import annotations

import re

# The class that MathJax 3 and later skip (JupyterLab), and that of MathJax 2 (older notebooks, some sites).
NO_FORMULAS = "mathjax_ignore tex2jax_ignore"
_DOLLAR_IN_TEXT = re.compile(r"\$(?![^<>]*>)")


def without_formulas(html: str) -> str:
    """`html` such that no front end takes what stands between two dollars for a formula.

    The classes say so to MathJax. A dollar in a `<span>` of its own says so to every typesetter: none looks
    for a formula across elements. Texts and attributes must be escaped (`html.escape`) before.

    >>> without_formulas("<b>$5 or $6</b>")
    '<div class="mathjax_ignore tex2jax_ignore"><b><span>$</span>5 or <span>$</span>6</b></div>'
    """
    return f'<div class="{NO_FORMULAS}">{_DOLLAR_IN_TEXT.sub("<span>$</span>", html)}</div>'
