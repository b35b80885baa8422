"""torch's reductions by torch's names, folded by this library: same arguments, result dtypes, NaN rules and error kinds.

Each function is one `fold_tensors` with a monoid made beforehand; `fold_tensors` chooses the backend. All of them share:

    dims      One, several where torch takes several, or None for all (not in `prod`). `dim=()` folds all dims, as in torch,
              except in `any` and `all`, where it folds none. In the equations k is a position in the output dims, p in the
              reduced dims (n elements). Shapes are for `x` of [M, K] and `dim=1`; `keepdim=True` makes [M] an [M, 1].
    names     `axis` is `dim` and `keepdims` is `keepdim`, as keywords, but in `norm`, where torch has them not either.
    dtypes    bool, integers of 8 to 64 bits and floats of 8 to 64 bits, unless a function says otherwise; no complex ones.
              Floats are accumulated in float32 (float64 in float64) and rounded once, at the end. Conversions (`dtype=`,
              integers in `logsumexp`) happen as elements are read; Python's float, int and bool are torch.float64, int64
              and bool there, as in torch. NaN stays NaN, counts as non-zero, and is the
              extreme of all.
    strides   Any, overlapping and expanded ones too, read in place: the kernels and the lanes copy no input. Two things
              do: a view with the negative bit set has no memory of its own values, and a fold that torch itself runs
              (on a CPU; `last_plan` says so) may take temporary copies there.
    out       Is written from the finished result. It must have the result's dtype, shape and device, and overlap neither
              an input nor itself nor another `out`; it may stand beside the input in one buffer. Softmax, norms and scans
              take an input itself, exactly: the same memory in the same strides. Scans then make the result in memory of
              its own and copy it.
    bits      The same from run to run ("run_to_run"); docs/guarantees.md says what they depend on, and has the error bounds.
    errors    Those of `tilefold.errors`, which are of torch's kinds as well. Everywhere: DimError, RepeatedDimError and
              KindError for `dim`; KindError for a `keepdim` that is no bool; DtypeError, ShapeError and DeviceError for
              inputs and `out`, ShapeError for more than 64 dims too; GradientError for a dual tensor, and while grad mode is
              on for an input that requires grad beside an `out`. Below, `Raises` names the errors that a
              function adds, or the likeliest ones.

Messages hold the words of torch's own. Where `var`, `std` and their kin have no degrees of freedom, a UserWarning says so,
as torch's does.
"""

from tilefold.errors import hint_at_names
from tilefold.functional.clipping import clip_grad_norm_ as clip_grad_norm_
from tilefold.functional.extremes import amax as amax
from tilefold.functional.extremes import amin as amin
from tilefold.functional.extremes import aminmax as aminmax
from tilefold.functional.extremes import argmax as argmax
from tilefold.functional.extremes import argmin as argmin
from tilefold.functional.extremes import max as max
from tilefold.functional.extremes import min as min
from tilefold.functional.linear_losses import linear_cross_entropy as linear_cross_entropy
from tilefold.functional.losses import cross_entropy as cross_entropy
from tilefold.functional.moments import std as std
from tilefold.functional.moments import std_mean as std_mean
from tilefold.functional.moments import var as var
from tilefold.functional.moments import var_mean as var_mean
from tilefold.functional.normalized import group_norm as group_norm
from tilefold.functional.normalized import layer_norm as layer_norm
from tilefold.functional.normalized import log_softmax as log_softmax
from tilefold.functional.normalized import normalize as normalize
from tilefold.functional.normalized import rms_norm as rms_norm
from tilefold.functional.normalized import softmax as softmax
from tilefold.functional.norms import norm as norm
from tilefold.functional.norms import vector_norm as vector_norm
from tilefold.functional.quantized import rms_norm_quantized as rms_norm_quantized
from tilefold.functional.scans import cummax as cummax
from tilefold.functional.scans import cummin as cummin
from tilefold.functional.scans import cumprod as cumprod
from tilefold.functional.scans import cumsum as cumsum
from tilefold.functional.scans import logcumsumexp as logcumsumexp
from tilefold.functional.sums import logsumexp as logsumexp
from tilefold.functional.sums import mean as mean
from tilefold.functional.sums import prod as prod
from tilefold.functional.sums import sum as sum
from tilefold.functional.truth import all as all
from tilefold.functional.truth import any as any
from tilefold.functional.truth import bitwise_and as bitwise_and
from tilefold.functional.truth import bitwise_or as bitwise_or
from tilefold.functional.truth import bitwise_xor as bitwise_xor
from tilefold.functional.truth import count_nonzero as count_nonzero

__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "bitwise_and", "bitwise_or", "bitwise_xor",
    "clip_grad_norm_", "count_nonzero", "cross_entropy", "cummax", "cummin", "cumprod", "cumsum", "group_norm",
    "layer_norm", "linear_cross_entropy", "log_softmax", "logcumsumexp", "logsumexp", "max", "mean", "min", "norm",
    "normalize", "prod", "rms_norm", "rms_norm_quantized", "softmax", "std", "std_mean", "sum", "var", "var_mean",
    "vector_norm",
]  # fmt: skip
hint_at_names(__name__, __all__)
