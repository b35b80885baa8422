"""Instructions without effects in C++: operators, functions that CUDA has, and functions of inline PTX for the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilefold.xray.cuda.readable.kinds import types_of
from tilefold.xray.cuda.readable.text import PRIMARY, PRODUCT, SUM, UNARY, Text
from tilefold.xray.cuda.readable.tree import Assembly, Atomic
from tilefold.xray.cuda.readable.values import Value

# What nvcc makes of an operator with -fmad=false is the same instruction, rounded to nearest.
OPERATORS = {
    f"{op}{mode}.{kind}": (sign, {"f32": "float", "f64": "double"}[kind])
    for op, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))
    for mode in ("", ".rn")
    for kind in ("f32", "f64")
}
OPERATORS |= {
    "div.rn.f32": ("/", "float"),
    "div.rn.f64": ("/", "double"),
    "div.s32": ("/", "int"),
    "rem.s32": ("%", "int"),
    "div.u32": ("/", "unsigned"),
    "rem.u32": ("%", "unsigned"),
    "div.s64": ("/", "long long"),
    "rem.s64": ("%", "long long"),
}
FUNCTIONS = {
    "fma.rn.f32": ("fmaf", "float", "float"),
    "fma.rn.f64": ("fma", "double", "double"),
    "max.f32": ("fmaxf", "float", "float"),
    "min.f32": ("fminf", "float", "float"),
    "max.f64": ("fmax", "double", "double"),
    "min.f64": ("fmin", "double", "double"),
    "abs.f32": ("fabsf", "float", "float"),
    "abs.f64": ("fabs", "double", "double"),
    "sqrt.rn.f32": ("sqrtf", "float", "float"),
    "sqrt.rn.f64": ("sqrt", "double", "double"),
    "min.s32": ("min", "int", "int"),
    "max.s32": ("max", "int", "int"),
    "min.u32": ("min", "unsigned", "unsigned"),
    "max.u32": ("max", "unsigned", "unsigned"),
    "min.s64": ("min", "long long", "long long"),
    "max.s64": ("max", "long long", "long long"),
    "mul.hi.s32": ("__mulhi", "int", "int"),
    "mul.hi.u32": ("__umulhi", "unsigned", "unsigned"),
    "cvt.rn.f32.s32": ("(float)", "int", "float"),
    "cvt.rn.f32.u32": ("(float)", "unsigned", "float"),
    "cvt.rzi.s32.f32": ("__float2int_rz", "float", "int"),
    "cvt.rzi.u32.f32": ("__float2uint_rz", "float", "unsigned"),
    "cvt.f64.f32": ("(double)", "float", "double"),
    "cvt.rn.f32.f64": ("(float)", "double", "float"),
    "cvt.f32.f16": ("__half2float", "__half", "float"),
    "cvt.rn.f16.f32": ("__float2half_rn", "float", "__half"),
    "cvt.f32.bf16": ("__bfloat162float", "__nv_bfloat16", "float"),
    "cvt.rn.bf16.f32": ("__float2bfloat16_rn", "float", "__nv_bfloat16"),
    "popc.b32": ("__popc", "unsigned", "int"),
    "clz.b32": ("__clz", "int", "int"),
    "brev.b32": ("__brev", "unsigned", "unsigned"),
}
# Operations that a thread folds with, one value after another.
FOLDS = {
    "add.f32",
    "add.rn.f32",
    "mul.f32",
    "max.f32",
    "min.f32",
    "fma.rn.f32",
    "add.f64",
    "max.f64",
    "min.f64",
    "fma.rn.f64",
}
_LETTERS = {
    "float": "f",
    "double": "d",
    "unsigned short": "h",
    "int": "r",
    "unsigned": "r",
    "long long": "l",
    "unsigned long long": "l",
    "short": "h",
}
_NUMBERS = {16: "unsigned short", 32: "int", 64: "long long"}


def wanted(value: Value) -> list[str]:
    """The types of an instruction's operands in C++."""
    name = value.data[0]
    if name in OPERATORS:
        return [OPERATORS[name][1]] * len(value.args)
    if name in FUNCTIONS:
        return [FUNCTIONS[name][1]] * len(value.args)
    if name in ("neg.f32", "neg.f64"):
        return [{"f32": "float", "f64": "double"}[name[-3:]]]
    of = types_of(value)[1]
    return [_passed(of[a.bits], a.bits) for a in value.args]


def written(value: Value, given: Sequence[Text], helpers: dict[str, str]) -> Text:
    """The expression of an instruction; a function that it needs is added to `helpers`."""
    name = value.data[0]
    if name in OPERATORS:
        sign, kind = OPERATORS[name]
        level = SUM if sign in "+-" else PRODUCT
        return Text(f"{given[0].at(level)} {sign} {given[1].at(level + 1)}", level, kind)
    if name in ("neg.f32", "neg.f64"):
        return Text(f"-{given[0].at(PRIMARY)}", UNARY, given[0].type)
    if name in FUNCTIONS:
        word, _, kind = FUNCTIONS[name]
        if word.startswith("("):
            return Text(f"{word}{given[0].at(UNARY)}", UNARY, kind)
        return Text(f"{word}({', '.join(t.text for t in given)})", PRIMARY, kind)
    result = types_of(value)[0]
    function = _function(value, result, helpers)
    return Text(
        f"{function}({', '.join(t.text for t in given)})",
        PRIMARY,
        result if result == "bool" else _passed(result, value.bits),
    )


def _passed(kind: str, bits: int) -> str:
    """A type that inline PTX takes."""
    return kind if kind in _LETTERS else _NUMBERS[bits]


def _function(value: Value, result: str, helpers: dict[str, str]) -> str:
    """The name of a function of one instruction."""
    text, *fixed = value.data
    takes = wanted(value)
    name = re.sub(r"_(f32|rn|b32|s32)(?=_|$)", "", re.sub(r"\W+", "_", text)) + "".join(
        f"_{n}" for n in fixed
    )
    name += "".join(
        _LETTERS[t] for t in takes if t in ("unsigned short", "long long", "double") and f".{t}" not in text
    )
    held = "int" if result == "bool" else _passed(result, value.bits)
    places = ", ".join([f"%{n + 1}" for n in range(len(takes))] + [str(n) for n in fixed])
    given = ", ".join(f'"{_LETTERS[t]}"({c})' for t, c in zip(takes, "abcd", strict=False))
    says = f"{text} %0, {places};"
    if result == "bool":
        says = f"{{ .reg .pred p; {text} p, {places}; selp.b32 %0, 1, 0, p; }}"
    arguments = ", ".join(f"{t} {c}" for t, c in zip(takes, "abcd", strict=False))
    back = "bool" if result == "bool" else held
    return _added(
        helpers,
        name,
        f"static __device__ {back} @({arguments}) "
        f'{{ {held} r; asm("{says}" : "={_LETTERS[held]}"(r) : {given}); return r; }}',
    )


def _added(helpers: dict[str, str], name: str, text: str) -> str:
    """The name of a function, with another ending where one of that name says something else; "@" stands for it."""
    chosen, n = name, 1
    while helpers.setdefault(chosen, text.replace("@", chosen, 1)) != text.replace("@", chosen, 1):
        n += 1
        chosen = f"{name}_{n}"
    return chosen


def atomic(effect: Atomic, kind: str, helpers: dict[str, str]) -> str:
    """The function of an atomic operation, with the order of memory that its instruction names."""
    name = re.sub(r"\W+", "_", re.sub(r"\.(global|gpu|f32)", "", effect.name.replace("red.", "atom.")))
    takes = "".join(f", {kind} {c}" for c, _ in zip("abc", effect.values, strict=False))
    given = "".join(f', "{_LETTERS[kind]}"({c})' for c, _ in zip("abc", effect.values, strict=False))
    places = "".join(f", %{n + 2}" for n in range(len(effect.values)))
    shared = effect.space == "shared"
    where = '"r"((unsigned)__cvta_generic_to_shared(p))' if shared else '"l"(p)'
    says = f"{effect.name.replace('red.', 'atom.', 1)} %0, [%1]{places};"
    return _added(
        helpers,
        name,
        f"static __device__ {kind} @({kind}* p{takes}) "
        f'{{ {kind} r; asm volatile("{says}" : "={_LETTERS[kind]}"(r) : {where}{given} : "memory"); return r; }}',
    )


def product(effect: Assembly, helpers: dict[str, str]) -> tuple[str, list[int]]:
    """The function of a warp's matrix product onto an array, `d += a b`, and how many values each of a and b has."""
    count = len(effect.results)
    groups = [len(g.split(",")) for g in re.findall(r"\{([^}]*)\}", effect.template)]
    name = re.sub(r"_(sync|aligned|row|col)(?=_|$)", "", re.sub(r"\W+", "_", effect.name))
    places = iter(range(count, count + groups[1] + groups[2]))
    sets = [", ".join(f"%{next(places)}" for _ in range(n)) for n in groups[1:3]]
    held = ", ".join(f"%{n}" for n in range(count))
    kind = "float" if effect.name.endswith("f32") and ".f32." in effect.name else "int"
    outputs = ", ".join(f'"+{_LETTERS[kind]}"(d[{n}])' for n in range(count))
    inputs = ", ".join(
        f'"r"({c}[{n}])' for c, many in zip("ab", groups[1:3], strict=True) for n in range(many)
    )
    name = _added(
        helpers,
        name,
        f"static __device__ void @({kind}* d, const int* a, const int* b) "
        f'{{ asm volatile("{effect.name} {{{held}}}, {{{sets[0]}}}, {{{sets[1]}}}, {{{held}}};" : {outputs} : {inputs}); }}',
    )
    return name, groups[1:3]


def assembly(effect: Assembly, result: str, helpers: dict[str, str]) -> tuple[str, list[str]]:
    """The function of any other instruction, and the types that it takes; results go through a pointer."""
    takes = [
        {"value": _NUMBERS.get(v.bits, "int")}.get(role, "const void*")
        for v, role in zip(effect.inputs, effect.roles, strict=True)
    ]
    if effect.name.startswith("mma") and result == "float":
        count = len(effect.results)
        takes[-count:] = ["float"] * count
    code = [
        '"r"((unsigned)__cvta_generic_to_shared({}))'
        if role == "shared"
        else f'"{_LETTERS.get(t, "l")}"({{}})'
        for t, role in zip(takes, effect.roles, strict=True)
    ]
    name = re.sub(
        r"_(sync|aligned|shared|global|b16|row|col|cg|ca|m8n8)(?=_|$)", "", re.sub(r"\W+", "_", effect.name)
    )
    fixed = re.findall(r"(?<![%\w])-?\d+(?=[,;])", effect.template.partition(" ")[2])
    name += "".join(f"_{n}" for n in fixed).replace("-", "m")
    outputs = ", ".join(f'"={_LETTERS[result]}"(d[{n}])' for n in range(len(effect.results)))
    inputs = ", ".join(c.format(f"a{n}") for n, c in enumerate(code))
    arguments = [f"{result}* d"] if effect.results else []
    arguments += [f"{t} a{n}" for n, t in enumerate(takes)]
    name = _added(
        helpers,
        name,
        f"static __device__ void @({', '.join(arguments)}) "
        f'{{ asm volatile("{effect.template}" : {outputs} : {inputs} : "memory"); }}',
    )
    return name, takes
