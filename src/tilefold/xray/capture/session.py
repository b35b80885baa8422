"""`capture`: within, torch and Triton answer for a chip, and every launch is kept and carried out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from tilefold.errors import ArgumentError, CompileError
from tilefold.planner.chips import chip_of
from tilefold.xray.capture import cuda, driver, inductor, marks, tensors
from tilefold.xray.capture.arguments import address
from tilefold.xray.capture.launches import Captured, Launch, Tried
from tilefold.xray.capture.patches import Patches, script_line
from tilefold.xray.capture.running import Carried, carry_out
from tilefold.xray.compile.offline import jitted

# Instructions of warps, of which this machine executes some 70,000 a second: of one launch, and of all of a script.
LAUNCH, SCRIPT = 1_000_000, 10_000_000
_without_modes = torch.utils._python_dispatch._disable_current_modes
_running: list[Captured] = []


@contextlib.contextmanager
def capture(
    target: str = "sm_90", *, budget: int = LAUNCH, in_all: int = SCRIPT, every_configuration: bool = False
) -> Iterator[Captured]:
    """Within, this process has the chip `target`: torch and Triton answer for it, and Triton's launches are captured.

    Tensors "on the device" lie in the host's memory and answer as if they did not. A launch is compiled as by Triton,
    kept, and executed from its PTX, so that the script goes on with its results; nothing is timed. If all its programs would
    need more than `budget` instructions of warps (`in_all`: of all launches together), or it reaches an instruction that the
    X-ray's machine lacks, the tensors that it writes are marked as unknown, as is what is computed of them; comparisons of
    unknown values hold, and a note says so.

    Args:
        target: a chip as of `explain`.
        budget: 0 executes the first program of each launch alone.
        every_configuration: try all configurations of autotuned kernels, in place of the first that compiles.

    Raises:
        ArgumentError: no such chip, or a capture within another.
        CaptureError: within, where the script asks for what cannot be pretended (a CUDA graph, NCCL); it names the line.

    Example:
        >>> from tilefold import xray
        >>> with xray.capture("h100") as captured:
        ...     train()
        >>> [launch.report().codes() for launch in captured.distinct()]
    """
    if _running:
        raise ArgumentError("xray: a capture must not lie within another, got a second one; end the first")
    chip, captured = chip_of(target), Captured(chip_of(target).target)
    session = _Session(captured, budget, in_all, every_configuration)
    mode = tensors.Standing(session.tell, {})
    with Patches() as patches, cuda.quiet():
        _running.append(captured)
        patches.callback(_running.clear)
        cuda.stand_in(patches, chip, mode)
        tensors.stand_in(patches, session.addresses, mode)
        inductor.stand_in(patches, mode, captured.note)
        patches.callback(setattr, mode, "running", False)
        driver.stand_in(patches, chip, session.tuning, session.carry, session.refuse, session.strange)
        patches.put(torch.testing, "assert_close", session.comparing(torch.testing.assert_close))
        patches.enter_context(mode)
        yield captured


class _Session:
    """One capture: what Triton launches is kept, carried out, and told."""

    def __init__(self, captured: Captured, budget: int, in_all: int, every: bool) -> None:
        self.captured, self.addresses = captured, marks.Addresses()
        self.tuning = driver.Tuning(every)
        self._budget, self._left, self._strange = budget, in_all, tuple[str, ...]()

    def strange(self, options: tuple[str, ...]) -> None:
        """Options of the next launch that Triton does not know."""
        self._strange = options

    def carry(self, asked: driver.Asked) -> None:
        """Keep a launch and carry it out."""
        with _without_modes():
            if self.tuning.now:
                if self.tuning.every:
                    self.tuning.tried.append((self.tuning.now, asked.job(self.addresses, keep=True)))
                return
            self._carry(asked)

    def _carry(self, asked: driver.Asked) -> None:
        start = time.perf_counter()
        captured, job = self.captured, asked.job(self.addresses, keep=False)
        launch = Launch(
            len(captured.launches) + 1, job.name, script_line(), job, unknown_options=self._strange
        )
        if captured.add(launch):
            launch.job = asked.job(self.addresses, keep=True)
        launch.tried = tuple(Tried(text, tried) for text, tried in self.tuning.tried)
        self.tuning.tried = []
        try:
            compiled = driver.compiled_of(asked.launcher, launch.job)
        except CompileError as error:
            done = Carried(why=str(error))
        else:
            done = carry_out(asked, compiled, self.addresses, max(min(self._budget, self._left), 0))
        self._left -= done.instructions
        launch.executed, launch.why, launch.outside = not done.why, done.why, done.outside
        launch.instructions, launch.programs = done.instructions, done.programs
        launch.seconds = time.perf_counter() - start
        if done.outside:
            captured.note(f"{launch.place}: {launch.kernel}: {done.outside}; nothing of that is moved")
        if done.why:
            self._forget(asked, launch, done)
        elif why := next((w for s in done.read if (w := marks.unknown_in(s))), ""):
            for storage in done.written:
                marks.forget(storage, why)

    def _forget(self, asked: driver.Asked, launch: Launch, done: Carried) -> None:
        """What a launch would have written is unknown: of one of which nothing ran, all that it points to."""
        why = f"launch {launch.number}, {launch.kernel}, was not executed"
        self.captured.note(f"{launch.place}: {why}: {launch.why}; what it writes is unknown")
        pointers = (l.value[0] if l.type == "map" else l.value for l in asked.leaves if l.type[0] in "*m")
        held = done.written or [s for p in pointers if (s := self.addresses.find(address(p))) is not None]
        for storage in held:
            marks.forget(storage, why)

    def refuse(self, kernel: Any, error: Exception) -> None:
        """A launch that did not come to be."""
        if not self.tuning.now:
            first = str(error).strip().partition("\n")[0]
            self.captured.refused.append(
                f"{script_line()}: {jitted(kernel).__name__}: {type(error).__name__}: {first}"
            )

    def tell(self, why: str) -> None:
        """A script looks at values that are unknown."""
        self.captured.note(f"{script_line()}: looks at values that are unknown ({why})")

    def comparing(self, original: Any) -> Any:
        """`torch.testing.assert_close`, which holds for what is unknown."""

        def assert_close(actual: Any, expected: Any, *args: Any, **given: Any) -> None:
            pair = [t for t in (actual, expected) if isinstance(t, torch.Tensor)]
            why = next((w for t in pair if (w := marks.unknown(t))), "")
            if why:
                self.tell(why)
                return
            original(actual, expected, *args, **given)

        return assert_close
