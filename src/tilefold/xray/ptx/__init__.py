"""PTX as Triton writes it for sm_80 and sm_90: read to frozen values, written again."""

from tilefold.xray.ptx.parser import parse
from tilefold.xray.ptx.syntax import (
    Address,
    Entry,
    Guard,
    Immediate,
    Instruction,
    Label,
    Location,
    Module,
    Operand,
    Pair,
    Parameter,
    Register,
    Symbol,
    Variable,
    Vector,
)
from tilefold.xray.ptx.writer import write

__all__ = [
    "Address",
    "Entry",
    "Guard",
    "Immediate",
    "Instruction",
    "Label",
    "Location",
    "Module",
    "Operand",
    "Pair",
    "Parameter",
    "Register",
    "Symbol",
    "Variable",
    "Vector",
    "parse",
    "write",
]
