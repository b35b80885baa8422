"""Calls of operations by their overloads, as graphs' code makes them: `torch.ops.tilefold.reduce.default(...)`.

A repeated one goes past torch's dispatcher to its launches, where nothing but the implementation would see it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _dispatch_tls_is_dispatch_key_included as is_included
from torch._C import _get_deterministic_algorithms, _len_torch_function_stack

from tilefold.api import dispatch
from tilefold.planner.products.cublas import cublas_setting
from tilefold.runtime.switch import named_key

_RECORDS: Any = torch._C.DispatchKey.PreDispatch  # in force where calls are recorded before autograd


def repeat(operation: Any, follows_cublas: bool = False) -> None:
    """Have an operation's repeated calls be answered by their launches.

    For operations whose calls depend on nothing but their arguments, what a call's key holds, and, where a call
    `follows_cublas`, torch's settings of it. `_op` is a private name of torch's; without it calls go the whole way.
    """
    whole, name = getattr(operation, "_op", None), str(operation)
    is_one = str(operation._schema.returns[0].type) == "Tensor"
    kinds = [str(a.type) for a in operation._schema.arguments]
    kinds = [k if k.startswith("List[") or "Tensor" in k else "" for k in kinds]
    if whole is None:
        return

    def call(*arguments: Any, **named: Any) -> Any:
        if named or is_grad_enabled() or _len_torch_function_stack() or is_included(_RECORDS):
            return whole(*arguments, **named)
        given, rest = list[Tensor](), list[Any]()
        for kind, a in zip(kinds, arguments, strict=False):  # torch leaves out what equals a default
            if not kind or a is None:
                rest.append(a)
            elif kind == "List[Tensor]":
                given += a
                rest.append(len(a))
            elif kind.startswith("List["):
                rest.append(tuple(a))
            else:
                given.append(a)
                rest.append(kind)
        settings = _get_deterministic_algorithms(), cublas_setting(given[0].dtype) if follows_cublas else None
        key, made = dispatch.again(named_key, given, name, None, (*settings, *rest))
        if made is None:
            made = dispatch.replayed(
                key, lambda given: [whole(*arguments)] if is_one else whole(*arguments), given
            )
        return made[0] if is_one else made

    operation._op = call
