"""Reports as pages: one HTML file for each kernel, an index for a script, two kernels side by side.

`data` and `diff` make plain values of reports and their evidence: `source` (the kernel's source), `texts` (rows of a text,
with their colours and the lines of source that they come from), `passes` (the IR after each pass of the compiler), `accesses`
(one warp's addresses). The templates show them; page.js lights up, draws, and counts nothing.
"""

from tilefold.xray.page.data import document
from tilefold.xray.page.diff import diff_document, read_page
from tilefold.xray.page.render import render_diff, render_index, render_page

__all__ = ["diff_document", "document", "read_page", "render_diff", "render_index", "render_page"]
