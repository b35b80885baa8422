"""What the compiler made of a Triton kernel, found on a machine with no GPU.

    FILE.py::kernel  -+                    TTIR, TTGIR -> ir/ -> layouts/  -+
    xray_cases()      +-> compile/ Job ->  PTX -> ptx/ -> machine/          +-> report/ -> observe/, render/, page/, JSON
    a fold of ours   -+   Triton, ptxas    SASS, registers, spills         -+

| package or module | what it knows |
|---|---|
| `compile/` | arguments as a user writes them, a `Job`, its texts (`Compiled`); only `offline` calls Triton |
| `ir/`, `ptx/` | the texts as operations and instructions with their lines of source; syntax alone |
| `layouts/` | which threads hold which elements, computed from a layout's text |
| `execution`, `machine/` | memory for a job's arguments; chosen programs executed from their PTX |
| `cuda/` | the kernel as CUDA C++, compiled by nvcc and executed again |
| `report/` | the frozen model: lines of source, occupancy, totals against the chip, how often SASS instructions are issued |
| `evidence`, `examine` | what finders read besides the report |
| `observe/` | finders, `codes` (the closed list of what they say), `trials` (variants of the kernel, compiled and executed) |
| `capture/` | a chip that torch and Triton see where there is none: every launch of a script kept, executed, reported |
| `page/` | a report as one HTML file: texts line by line, tiles, accesses; an index of launches, two kernels side by side |
| `render/` | the terminal's view and the comparison, from the report alone |

Triton's bindings for layouts are private and may end the process, so nothing here calls them. Every file has its own part
of Triton's cache, whose entries name the file that was compiled first. Code inlined from Triton's library counts for the
line of the call.

SASS is not executed. Accesses to global memory, barriers and shuffles are the same in PTX, which says how often a warp
executed each. If one path through the SASS's blocks alone fits these counts, every count of the SASS is known; else none is
reported.

An observation is shown, not guessed: a narrow access is compiled again without its mask or with one more promise; a wrong
fill is followed from its load to the reduction for several values; overflow follows from bounds of every integer; sectors,
conflicts and barriers come from the execution, and the report says that they are of the executed programs.
"""

from tilefold.errors import hint_at_names
from tilefold.xray.capture import capture
from tilefold.xray.capture.launches import Captured
from tilefold.xray.check import check
from tilefold.xray.explain import explain, explain_file, explain_fold
from tilefold.xray.report.model import Report

__all__ = ["Captured", "Report", "capture", "check", "explain", "explain_file", "explain_fold"]
hint_at_names(__name__, __all__)
