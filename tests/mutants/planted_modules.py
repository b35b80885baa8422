"""Faults planted in modules and in `swap`."""

from __future__ import annotations

from mutants.mutant import Mutant

ROWS, SWAPPING = "tests/nn/test_rows.py", "tests/nn/test_swapping.py"
UNLIKE = f"{SWAPPING}::test_what_is_no_rms_norm_is_left"

MODULES = (
    Mutant(
        "a norm leaves its epsilon out",
        "nn/rows.py",
        "self.weight, self.bias, self.eps, residual=residual",
        "self.weight, self.bias, residual=residual",
        (f"{ROWS}::test_results_and_gradients[layer_norm without parameters]",),
    ),
    Mutant(
        "groups and channels change places",
        "nn/rows.py",
        "super().__init__(num_groups, num_channels, eps",
        "super().__init__(num_channels, num_groups, eps",
        (f"{ROWS}::test_results_and_gradients[group_norm]",),
    ),
    Mutant(
        "the probe keeps the module's own weight",
        "nn/swapping.py",
        'vars(probe).update(vars(module), _parameters={"weight": own}, training=training)',
        "vars(probe).update(vars(module), training=training); own = module.weight",
        (f"{UNLIKE}[1.0-Unweighted]", f"{SWAPPING}::test_a_model_keeps_all_but_its_kinds_of_modules"),
    ),
    Mutant(
        "the probe runs one mode",
        "nn/swapping.py",
        "(torch.float32, weight.dtype)), (True, False)",
        "(torch.float32, weight.dtype)), (False,)",
        (f"{UNLIKE}[1.0-Noisy]",),
    ),
    Mutant(
        "the probe compares no gradients",
        "nn/swapping.py",
        "zip(made, wanted, terms, strict=True)",
        "zip(made[:1], wanted[:1], terms[:1], strict=True)",
        (f"{UNLIKE}[1.0-StoppedRoot]",),
    ),
    Mutant(
        "the first epsilon is taken, whichever fits",
        "nn/swapping.py",
        'epsilons[reasons.index("")]',
        "epsilons[0]",
        (f"{SWAPPING}::test_each_result_is_what_it_was",),
    ),
    Mutant(
        "a forward of two tensors is taken for one of one",
        "nn/swapping.py",
        "len(taken) == 1 and taken[0].kind",
        "taken[0].kind",
        (f"{SWAPPING}::test_what_is_near_and_left",),
    ),
    Mutant(
        "an object's own forward is overlooked",
        "nn/swapping.py",
        '    if "forward" in vars(module):\n        return Verdict(was, reason=OWN_FORWARD)\n',
        "",
        (f"{SWAPPING}::test_what_is_near_and_left",),
    ),
)
