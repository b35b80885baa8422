"""Faults planted in losses."""

from __future__ import annotations

from mutants.mutant import Mutant

FILE = "tests/functional/test_losses.py"
CHOSEN = "tests/api/test_chosen.py"
LINEAR = "tests/functional/test_linear_losses.py"
OF_PRODUCTS = f"{LINEAR}::test_losses_of_the_users_own"
SHARDED = "tests/distributed/test_sharded.py"
DRAWN = f"{FILE}::test_losses_and_gradients_are_torchs"

LOSSES = (
    Mutant(
        "a target that is no class has the loss of the first one",
        "api/losses.py",
        "math.where(inside, 1.0, NAN)",
        "1.0",
        (f"{FILE}::test_where_nothing_checks_targets_such_a_row_is_nan",),
    ),
    Mutant(
        "ignored rows count in a mean",
        "api/losses.py",
        'self._counted(v, classes, v.get("weight", 1.0))',
        'v.get("weight", 1.0)',
        (DRAWN, f"{FILE}::test_all_ignored_and_no_rows[mean]"),
    ),
    Mutant(
        "the target's own element loses its part of the smoothing",
        "api/losses.py",
        'self._parts(v)[0] + self._share(classes, [v["weight"]] if self.weighted else [])',
        "self._parts(v)[0]",
        (DRAWN,),
    ),
    Mutant(
        "the cap's slope is left out",
        "api/losses.py",
        "return g * (1.0 - bent * bent)",
        "return g * 1.0",
        (DRAWN, f"{FILE}::test_derivatives_of_both_orders[all-indices]"),
    ),
    Mutant(
        "the z-loss's slope is half of it",
        "api/losses.py",
        "(2.0 * self.z_loss)",
        "(1.0 * self.z_loss)",
        (DRAWN, f"{FILE}::test_derivatives_of_both_orders[all-indices]"),
    ),
    Mutant(
        "the log-sum-exp's cotangent is lost",
        "api/losses.py",
        'for name in ("of_lse", "of_logarithm") if name in v',
        'for name in ("of_logarithm",) if name in v',
        (DRAWN, f"{FILE}::test_derivatives_of_both_orders[all-indices]"),
    ),
    Mutant(
        "second derivatives take the logarithm as a constant",
        "api/losses.py",
        'name in ("loss", "lse", "logarithm", "logit")',
        'name in ("loss", "lse", "logit")',
        (f"{FILE}::test_derivatives_of_both_orders[plain-indices]",),
    ),
    Mutant(
        "second derivatives take the target's logit as a constant",
        "api/losses.py",
        'name in ("loss", "lse", "logarithm", "logit")',
        'name in ("loss", "lse", "logarithm")',
        (f"{FILE}::test_derivatives_of_both_orders[plain-indices]",),
    ),
    Mutant(
        "the target's class keeps the element of the others",
        "api/losses.py",
        "if not self.probabilities:\n                of_x =",
        "if self.probabilities:\n                of_x =",
        (DRAWN,),
    ),
    Mutant(
        "a kernel takes an index that is no class for a place",
        "backends/triton/kernels/chosen.py",
        "tl.where((place >= 0) & (place < classes), place, 0)",
        "place",
        (f"{CHOSEN}::test_an_index_chooses_elements",),
    ),
    Mutant(
        "a value is stored as its row's first element",
        "backends/triton/kernels/chosen.py",
        "far_offset(row, sizes, y.rows) + place * y.step",
        "far_offset(row, sizes, y.rows)",
        (f"{CHOSEN}::test_values_become_the_chosen_elements",),
    ),
    Mutant(
        "a loss converts its result by an operation of torch's",
        "api/losses.py",
        "found = self._folded([*values.values()], fold, over, False, self.dtype)",
        "found = self._folded([*values.values()], fold, over, False, wide)\n"
        "            found[:1] = dispatch.noted(lambda t: [t.to(self.dtype)], found[0])",
        (f"{CHOSEN}::test_a_loss_and_its_gradient_are_launches_joined",),
    ),
    Mutant(
        "targets are not checked again where a call is repeated",
        "api/losses.py",
        "dispatch.noted(checked, target)",
        "checked(target)",
        (f"{FILE}::test_a_target_that_is_no_class_is_refused[4]",),
    ),
    Mutant(
        "members of a batch share a mean",
        "api/other_operations.py",
        "OPERATIONS.cross_entropy(given, dim + 1, members + 1, *rest)",
        "OPERATIONS.cross_entropy(given, dim + 1, members, *rest)",
        (f"{FILE}::test_compiled_mapped_and_transformed",),
    ),
    Mutant(
        "values of rows are loaded beside every element",
        "planner/choose.py",
        "return plain and len(varies) > 1 and",
        "return False and len(varies) > 1 and",
        (f"{FILE}::test_kernels_from_their_ptx[4x1000--]",),
    ),
    Mutant(
        "a rank takes a target of another's for its own",
        "distributed/losses.py",
        "torch.where((own >= 0) & (own < x.shape[self.dim]), own, -1)",
        "torch.where(own < x.shape[self.dim], own.clamp(min=0), -1)",
        (f"{SHARDED}::test_a_loss_of_sharded_classes_is_that_of_all",),
    ),
    Mutant(
        "another rank's target writes a gradient here",
        "distributed/losses.py",
        "torch.where(chosen >= 0, made, of_x.gather(self.dim, here))",
        "made",
        (f"{SHARDED}::test_a_loss_of_sharded_classes_is_that_of_all",),
    ),
    Mutant(
        "smoothing is shared among a rank's classes alone",
        "distributed/losses.py",
        "return monoid_of(part(self.of_rows(self.classes).text",
        "return monoid_of(part(self.of_rows(max(1, tensors[0].shape[self.dim])).text",
        (f"{SHARDED}::test_a_loss_of_sharded_classes_is_that_of_all",),
    ),
    Mutant(
        "ranks that hold other numbers of classes are not told",
        "distributed/losses.py",
        "fits = (begins[1:] == ends[:-1]).all() & (ends[-1] == self.classes)",
        "fits = (begins[1:] == begins[1:]).all()",
        (f"{SHARDED}::test_losses_that_are_refused",),
    ),
    Mutant(
        "a target has its logit of every chunk",
        "api/linear.py",
        "torch.where(chunk == start // size, own, 0.0)",
        "own",
        (OF_PRODUCTS,),
    ),
    Mutant(
        "states of chunks before are dropped",
        "api/linear.py",
        "found = [joined(found, known.joined)]",
        "found = [found[-1]]",
        (f"{LINEAR}::test_states_of_many_chunks",),
    ),
    Mutant(
        "a target's own cotangent goes to one place of every chunk",
        "api/linear.py",
        "t[start:stop].expand(shape) for t in columns",
        "t[: stop - start].expand(shape) for t in columns",
        (OF_PRODUCTS,),
    ),
    Mutant(
        "rows' gradients are those of the last chunk",
        "api/linear.py",
        "of_x = _added(of_x, made, w[start:stop])",
        "of_x = _added(None, made, w[start:stop])",
        (OF_PRODUCTS,),
    ),
    Mutant(
        "positions count from 0 in each chunk",
        "api/linear.py",
        "numbers[start].expand",
        "numbers[0].expand",
        (f"{LINEAR}::test_how_often_a_target_is_among_the_largest",),
    ),
    Mutant(
        "an ignored target that is a class gives its logit",
        "api/linear.py",
        " & (target != self.ignore_index)",
        "",
        (f"{LINEAR}::test_the_logit_of_an_ignored_target",),
    ),
    Mutant(
        "chunks are as large as the rows are few",
        "api/linear.py",
        "// (rows * (wide + x.dtype.itemsize))",
        "// (wide + x.dtype.itemsize)",
        (f"{LINEAR}::test_no_logits_are_held", f"{LINEAR}::test_chunks_keep_to_their_memory"),
    ),
    Mutant(
        "a fold whose derivative reads more than the total is differentiated",
        "api/linear.py",
        "if ends.places and not (ends.total_is_enough and not ends.gradient.shares_ties):",
        "if False:",
        (f"{LINEAR}::test_refusals_of_folds",),
    ),
    Mutant(
        "the derivative of a log-sum-exp takes a logit for what is lifted of it",
        "algebra/derivatives/folds.py",
        "program.lift.graph(*v[n:])[0]",
        "v[n]",
        (f"{LINEAR}::test_derivatives_of_pairs_of_options[z_loss softcap]",),
    ),
)
