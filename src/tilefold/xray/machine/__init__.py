"""A numpy interpreter of one CTA: every instruction over all its threads at once.

`load` binds instructions to registers once for all programs of a grid; a step is then a few numpy operations over all
threads of a block. There is a module for each group of instructions. An instruction of no group is an error that names its
line, raised when a thread reaches it.

| modules | what they know |
|---|---|
| `binding`, `kernel`, `cta`, `run`, `order`, `programs` | operands, blocks of steps, a program's run, which programs run |
| `select`, `integers`, `carry`, `floats`, `convert`, `rounding`, `fp8` | arithmetic in any format, rounded once |
| `memory`, `spaces`, `access`, `atomics`, `copies` | allocations, address spaces, loads, stores, `cp.async` |
| `cluster`, `warp`, `gather`, `matrix/`, `bulk/` | clusters, shuffles, votes, `mma`, `wgmma`, tensor maps, `mbarrier` |
| `log`, `counts`, `roles`, `crossings`, `races` | the accesses made, what they cost, what several threads wrote |

Of the threads that can go on, those at the earliest block go first, so they converge as early as their paths do. As long as
threads wait for each other at barriers alone, any order that a chip may choose gives the same values.

A float64 sum is kept with its rounding error, so fma and all directed modes are exact; only a float64 fma whose product
leaves the range of exponents rounds twice. An approximation of the chip (`.approx`, `.full`) is the rounded float64 result.
ptxas may fuse a `mul.f32` and an `add.f32` that name no rounding; nothing here does. A tensor core's instruction is an
exact product, summed in float64 and rounded once: the chip's own order is undocumented.

Asynchronous instructions are executed when they are issued, but the log has them in flight as long as a chip may take. So
code that does not wait may give the right answer here. What `wgmma` reads through descriptors is no access of threads: it
has no bank conflicts, but barriers include it.

Triton 3.6 keeps, for the whole process, how fp8 is converted on the first chip that it compiled for: use a process for each
chip.
"""

from tilefold.xray.machine.bulk.tensormap import TensorMap
from tilefold.xray.machine.kernel import Kernel, load
from tilefold.xray.machine.log import Access, Outcome, Release, Touch, Transfer
from tilefold.xray.machine.memory import Allocation, Fault, Memory
from tilefold.xray.machine.programs import all_programs, chosen_programs, execute
from tilefold.xray.machine.run import run

__all__ = [
    "Access",
    "Allocation",
    "Fault",
    "Kernel",
    "Memory",
    "Outcome",
    "Release",
    "TensorMap",
    "Touch",
    "Transfer",
    "all_programs",
    "chosen_programs",
    "execute",
    "load",
    "run",
]
