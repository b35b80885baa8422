"""Instructions without effects in C++: operators, functions that CUDA has, and functions of inline PTX for the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
# Of 16 bits, which C++ computes in 32.
NARROW = {
    "and.b16": "&",
    "or.b16": "|",
    "xor.b16": "^",
    "add.s16": "+",
    "sub.s16": "-",
    "mul.lo.s16": "*",
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
    "cvt.rn.f32.s16": ("(float)", "short", "float"),
    "cvt.rn.f32.u16": ("(float)", "unsigned short", "float"),
    "cvt.u16.u32": ("(unsigned short)", "unsigned", "unsigned short"),
    "cvt.u32.u16": ("(unsigned)", "unsigned short", "unsigned"),
    "cvt.s32.s16": ("(int)", "short", "int"),
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
    "add.f32", "add.rn.f32", "mul.f32", "max.f32", "min.f32", "fma.rn.f32", "add.f64", "max.f64", "min.f64", "fma.rn.f64",
}  # fmt: skip
_LETTERS = {
    "float": "f", "double": "d", "unsigned short": "h", "int": "r", "unsigned": "r", "long long": "l",
    "unsigned long long": "l", "short": "h",
}  # fmt: skip
_NUMBERS = {16: "unsigned short", 32: "int", 64: "long long"}


def wanted(value: Value) -> list[str]:
    """The types of an instruction's operands in C++."""
    name = value.data[0]
    if name in OPERATORS:
        return [OPERATORS[name][1]] * len(value.args)
    if name in FUNCTIONS:
        return [FUNCTIONS[name][1]] * len(value.args)
    if name in NARROW:
        return ["unsigned short"] * 2
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
    if name in NARROW:
        text = f"{given[0].at(UNARY)} {NARROW[name]} {given[1].at(UNARY)}"
        return Text(f"(unsigned short)({text})", UNARY, "unsigned short")
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
    whole = re.sub(r"\W+", "_", text)
    name = re.sub(r"_(f32|rn|b32|s32)(?=_|$)", "", whole)
    name = (name if "_" in name else whole) + "".join(
        f"_{n}" for n in fixed
    )  # one word may be a function of C's
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
    return added(
        helpers,
        name,
        f"static __device__ {back} @({arguments}) "
        f'{{ {held} r; asm("{says}" : "={_LETTERS[held]}"(r) : {given}); return r; }}',
    )


def added(helpers: dict[str, str], name: str, text: str) -> str:
    """The name of a function, with another ending where one of that name says something else; "@" stands for it."""
    chosen, n = name, 1
    while helpers.setdefault(chosen, text.replace("@", chosen, 1)) != text.replace("@", chosen, 1):
        n += 1
        chosen = f"{name}_{n}"
    return chosen


def atomic(effect: Atomic, kind: str, helpers: dict[str, str]) -> str:
    """The function of an atomic operation, with the order of memory that its instruction names."""
    name = re.sub(r"\W+", "_", re.sub(r"\.(global|gpu|f32)", "", re.sub("^red", "atom", effect.name)))
    takes = "".join(f", {kind} {c}" for c, _ in zip("abc", effect.values, strict=False))
    given = "".join(f', "{_LETTERS[kind]}"({c})' for c, _ in zip("abc", effect.values, strict=False))
    places = "".join(f", %{n + 2}" for n in range(len(effect.values)))
    shared = effect.space == "shared"
    where = '"r"((unsigned)__cvta_generic_to_shared(p))' if shared else '"l"(p)'
    says = f"{re.sub('^red', 'atom', effect.name)} %0, [%1]{places};"
    return added(
        helpers,
        name,
        f"static __device__ {kind} @({kind}* p{takes}) "
        f'{{ {kind} r; asm volatile("{says}" : "={_LETTERS[kind]}"(r) : {where}{given} : "memory"); return r; }}',
    )


# What a wrapper of an instruction does, by how the instruction begins.
_SAYS = {
    "mma.": "A warp's product of matrices: d += a b.",
    "wgmma.mma_async": "Four warps begin d += a b; descriptors say where in shared memory an operand lies.",
    "wgmma.fence": "Registers that were written before may be used by products from here on.",
    "wgmma.commit_group": "The products that were begun are one group.",
    "wgmma.wait_group": "Waits until so many groups of products, the last, are not done yet.",
    "ldmatrix": "Each lane gets its pieces of matrices of 8 x 8 halves, whose rows the lanes point to.",
    "stmatrix": "Each lane gives its pieces of matrices of 8 x 8 halves, whose rows the lanes point to.",
    "cp.async.commit_group": "The copies that a thread began are one group.",
    "cp.async.wait_group": "Waits until so many groups of a thread's copies, the last, are not done yet.",
    "cp.async.bulk.commit_group": "The copies of boxes that a thread began are one group.",
    "cp.async.bulk.wait_group": "Waits until so many groups of copies of boxes, the last, are not done yet.",
    "cp.async.bulk.tensor": "Begins a copy of a tensor's box, which a tensor map describes.",
    "cp.async": "Begins a copy to shared memory; what is beyond the given bytes becomes zero.",
    "mbarrier.init": "A barrier in shared memory for so many arrivals.",
    "mbarrier.inval": "The barrier is not used any more.",
    "mbarrier.arrive.expect_tx": "One arrives at a barrier, and so many bytes are to arrive.",
    "mbarrier.arrive": "One arrives at a barrier.",
    "mbarrier.try_wait": "Whether a barrier's phase is over.",
    "mbarrier.test_wait": "Whether a barrier's phase is over.",
    "fence.proxy": "Orders memory between the ways in which it is reached.",
    "tensormap.replace": "One field of a tensor map.",
    "elect": "Chooses one lane of the warp.",
    "vote": "What all lanes of the warp say.",
    "griddepcontrol.wait": "Waits for the kernel before.",
    "griddepcontrol.launch": "The kernel behind may begin.",
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a wrapper: its C++ type, the values that it has, what it is of `tree.Assembly`'s roles."""

    type: str
    count: int
    role: str


def assembly(
    effect: Assembly, result: str, parameters: Sequence[Parameter], helpers: dict[str, str]
) -> tuple[str, bool]:
    """The function of an instruction, and whether it returns its result; several results go through a pointer.

    What the instruction reads and writes is one pointer.
    """
    alone = len(effect.results) == 1 and not effect.held
    how = "+" if effect.held else "="
    outputs = ", ".join(
        f'"{how}{_LETTERS[result]}"({"r" if alone else f"d[{n}]"})' for n in range(len(effect.results))
    )
    arguments = [] if alone or not effect.results else [f"{result}* d"]
    inputs = []
    for n, parameter in enumerate(parameters):
        arguments.append(f"{parameter.type} {'abcefghijklmnopqstuvwxyz'[n]}")
        inputs += _given(parameter, "abcefghijklmnopqstuvwxyz"[n])
    says = f'asm volatile("{effect.template}" : {outputs} : {", ".join(inputs)} : "memory");'
    body = f"{{ {result} r; {says} return r; }}" if alone else f"{{ {says} }}"
    name = _wrapper(effect)
    comment = next((f"// {text}\n" for begin, text in _SAYS.items() if effect.name.startswith(begin)), "")
    back = result if alone else "void"
    return added(helpers, name, f"{comment}static __device__ {back} @({', '.join(arguments)}) {body}"), alone


def _given(parameter: Parameter, name: str) -> list[str]:
    """The operands of inline PTX that a parameter is."""
    match parameter.role:
        case "shared":
            return [f'"r"((unsigned)__cvta_generic_to_shared({name}))']
        case "wide":
            return [f'"l"((unsigned long long)__cvta_generic_to_shared({name}))']
        case "global":
            return [f'"l"({name})']
        case "predicate":
            return [f'"r"((int){name})']
    if parameter.count == 1:
        return [f'"{_LETTERS[parameter.type]}"({name})']
    kind = parameter.type.removeprefix("const ").removesuffix("*")
    return [f'"{_LETTERS[kind]}"({name}[{k}])' for k in range(parameter.count)]


def _wrapper(effect: Assembly) -> str:
    """What the function of an instruction is called: its words that say something, and the numbers in its text."""
    name = re.sub(
        r"_(mma_async|sync|aligned|shared|global|cta|cluster|b16|b64|row|col|cg|ca|m8n8|tile|b1024|f32)(?=_|$)", "",
        re.sub(r"\W+", "_", effect.name),
    )  # fmt: skip
    text = re.sub(r"(\.reg|setp|selp)[^;]*;", "", effect.template).partition(effect.name)[2]
    fixed = re.findall(r"(?<![%\w])-?(?:0x)?\d+(?=[,;\s\]}])", text)
    return name + "".join(f"_{n}" for n in fixed).replace("-", "m")


def passed(value: Value) -> str:
    """The type in which a value goes into a wrapper."""
    return _NUMBERS.get(value.bits, "int")
