"""Expressions, monoids, their laws and dtypes."""

from __future__ import annotations

import pickle

import torch

from refusals.making import INF, NAN, Case, X, apply_floor, kept_value, local_result, made, reduced, traced
from tilefold import Monoid, math, monoids
from tilefold.algebra import text, typing
from tilefold.algebra.monoid import monoid_of
from tilefold.algebra.program import specialize
from tilefold.errors import (
    ArityError,
    DtypeError,
    LawError,
    MemberError,
    MonoidError,
    OrderError,
    TextError,
    TraceError,
)
from tilefold.planner.products.functions import of_text

CASES = [
    Case(
        "combine of torch's, of whole states",
        lambda: Monoid(torch.sum, (0, 0), fields=("low", "high")),
        TraceError,
        r"combine must be made of a state's fields, got a function .* whole state .*; use the fields, \.low, \.high, by",
    ),
    Case(
        "name of another kind",
        made(name=X),
        MonoidError,
        r"`name` must be text or None, got Tensor of shape \[2, 3\]; write",
    ),
    Case(
        "a class for a function",
        made(combine=bool),
        MonoidError,
        r"combine must be a function, got <class 'bool'>; give",
    ),
    # math.py and algebra/expression.py
    Case(
        "cast",
        traced(lambda x: math.cast(x, torch.int8)),
        TraceError,
        r"register holds \(bool, int32, .*\), got torch.int8; results",
    ),
    Case(
        "value of another trace",
        kept_value,
        TraceError,
        r"only use its own arguments.*, got a value kept.*; pass",
    ),
    Case(
        "huge constant",
        traced(lambda x: x + (1 << 64)),
        TraceError,
        r"fit into 64 bits, got 1.84e\+19; write",
    ),
    Case(
        "if",
        traced(lambda x: 1 if x else 0),
        TraceError,
        r"control flow.*got <traced input %0>; use tilefold.math.where.*maximum",
    ),
    Case(
        "torch function",
        traced(torch.exp),
        TraceError,
        r"torch.exp works on tensors.*got a traced value; use tilefold.math.exp\(x\)",
    ),
    Case(
        "tensor operand",
        traced(lambda x: x + X),
        TraceError,
        r"Python numbers, got Tensor; give tensors to the fold",
    ),
    Case(
        "constant by zero",
        traced(lambda x: x + apply_floor(7, 0)),
        TraceError,
        r"floordiv of constants.*, got floordiv\(7, 0\).*; mend",
    ),
    Case(
        "block of a number",
        traced(lambda x: math.block_sum(1)),
        TraceError,
        r"block_sum needs a value.*, got the number 1; use block_count",
    ),
    Case(
        "returns none",
        traced(lambda x: None),
        ArityError,
        r"return a value or a tuple of values, got NoneType; return something: .* a def needs",
    ),
    # algebra/monoid.py
    Case(
        "project of none",
        made(project=lambda x: ()),
        ArityError,
        r"one value or more, got none; leave project out",
    ),
    Case("lift of none", made(lift=lambda: 0), ArityError, r"at least one element, got 0; write lift\(x\)"),
    Case(
        "combine gives two",
        made(lambda a, b: (a, b)),
        ArityError,
        r"combine must return one value, got 2; return one, or name 2 fields with fields=",
    ),
    Case(
        "block in combine",
        made(lambda a, b: math.block_sum(a)),
        MonoidError,
        r"only in absorb, got one in combine; combine",
    ),
    Case(
        "constant beyond all floats",
        traced(lambda x: x + 10**400),
        TraceError,
        r"fit into 64 bits, got a whole number of 1329 bits; write",
    ),
    Case(
        "constant of an operation beyond all floats",
        traced(lambda x: x + math.sqrt(10**400)),
        TraceError,
        r"must have a value, got sqrt\(a whole number of 1329 bits\).*; mend",
    ),
    Case(
        "identity beyond all floats",
        made(identity=-(10**400)),
        MonoidError,
        r"identity must be a number that a float or 64 bits can hold, got a whole number of 1329 bits; write",
    ),
    Case("combine is no function", made(None), MonoidError, r"combine must be a function, got None; give"),
    Case("lift is no function", made(lift=3), MonoidError, r"lift must be a function, got 3; give"),
    Case(
        "project is no function", made(project="x"), MonoidError, r"project must be a function, got 'x'; give"
    ),
    Case(
        "absorb of three",
        made(absorb=(3, 4, 5)),
        MonoidError,
        r"absorb must be a function, a pair of them.*, got \(3, 4, 5\); leave",
    ),
    Case(
        "absorb without a second",
        made(absorb=(lambda x: x, None)),
        MonoidError,
        r"absorb must be a function, a pair of them.*, got .*None\); leave",
    ),
    Case(
        "index is no truth", made(index="yes"), MonoidError, r"index must be True or False, got 'yes'; True"
    ),
    Case("check is no truth", made(check="no"), MonoidError, r"check must be True or False, got 'no'; False"),
    Case(
        "commutative is no truth",
        made(commutative="no"),
        MonoidError,
        r"commutative must be True, False or None, got 'no'; leave it out",
    ),
    Case(
        "absorb of elements",
        made(absorb=lambda s, x: s + x),
        MonoidError,
        r"absorb must give one value a field for a whole block, got one for each element; take",
    ),
    Case(
        "begin of elements",
        made(absorb=(lambda x: x, lambda s, x: s + math.block_sum(x))),
        MonoidError,
        r"absorb must give one value a field for a whole block, got one for each element; take",
    ),
    Case(
        "norm of no number", lambda: monoids.NORM("2"), OrderError, r"NORM: .* a real number, got '2'; 2 is"
    ),
    Case(
        "lift of NaN",
        reduced(X.int(), made(lift=lambda x: NAN)()),
        DtypeError,
        r"lift: an integer field cannot start at NaN, got a torch.int64 field; declare",
    ),
    Case(
        "fields of no kind", made(fields=3), MonoidError, r"fields must be a sequence of names, got 3; name"
    ),
    Case(
        "lift without a signature",
        made(lift=torch.abs),
        ArityError,
        r"lift must tell its arguments.*, got <built-in .*abs.*> without a signature; write",
    ),
    Case(
        "lift of a keyword",
        made(lift=lambda x, *, y: x),
        ArityError,
        r"lift must take 1 argument, got \(x, \*, y\): missing .*'y'; write lift\(x\)",
    ),
    Case(
        "absorb is True",
        made(absorb=True),
        MonoidError,
        r"absorb must be a function, .*None or False, got True; leave it out",
    ),
    Case(
        "field name",
        made(identity=(0, 0), fields=("a", "if")),
        MonoidError,
        r"field name must match.*no keyword, got 'if'; rename",
    ),
    Case(
        "fields twice",
        made(identity=(0, 0), fields=("a", "a")),
        MonoidError,
        r"distinct.*got \('a', 'a'\); name",
    ),
    Case("no fields", made(identity=(), fields=()), MonoidError, r"at least one, got \(\); name"),
    Case("identity kind", made(identity="0"), MonoidError, r"a Python number for each field, got str; write"),
    Case(
        "identity count",
        made(identity=(0, 0), fields=("s",)),
        ArityError,
        r"one number for each of the fields \('s',\), got 2; give",
    ),
    Case(
        "dtypes count",
        made(dtypes=("input", "input")),
        ArityError,
        r"one for each of the fields \('value',\), got 2; give",
    ),
    Case(
        "dtypes without a field's",
        made(dtypes=(None,)),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got None; choose',
    ),
    Case(
        "dtypes of python",
        made(identity=(0, 0), fields=("a", "b"), dtypes=float),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got <class \'float\'>; choose',
    ),
    Case(
        "dtypes complex",
        made(dtypes=torch.complex64),
        DtypeError,
        r"field dtype must be of real numbers or bool, got torch.complex64; carry real and imaginary parts",
    ),
    Case(
        "dtypes quantized",
        made(identity=(0, 0), fields=("a", "b"), dtypes=("input", torch.qint8)),
        DtypeError,
        r"field dtype must be of real numbers or bool, got torch.qint8; choose",
    ),
    Case(
        "identity of another dtype",
        made(identity=0.5, dtypes=torch.int64),
        DtypeError,
        r"value: an integer field needs a whole identity, got 0.5 for torch.int64; declare",
    ),
    Case(
        "identity of no position",
        made(lambda a, b: b, (0, 0.5), fields=("a", "b"), dtypes=("input", "index")),
        DtypeError,
        r"b: an integer field needs a whole identity, got 0.5 for torch.int64; declare",
    ),
    Case(
        "identity beyond its dtype",
        made(identity=2**70, dtypes=torch.int64),
        DtypeError,
        r"value: an identity must fit its field, got 1180591620717411303424 for torch.int64; an infinity",
    ),
    Case(
        "dtypes",
        made(dtypes="float"),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got \'float\'; choose',
    ),
    Case(
        "lift of many", made(lift=lambda *x: x[0]), ArityError, r"name its arguments.*got \*arguments; write"
    ),
    Case(
        "combine of one",
        made(lambda a: a),
        ArityError,
        r"combine must take 2 arguments, got \(a\): too many.*; write combine\(a, b\)",
    ),
    Case(
        "pickled with a class that has no place",
        lambda: pickle.dumps(made(project=local_result())()),
        MonoidError,
        r"found by its name to be pickled, got Result; define",
    ),
    Case(
        "a method",
        traced(lambda x: x.max()),
        MemberError,
        r"has no attributes, got .max of <traced input %0>; use tilefold.math.maximum\(a, b\) .*block_max",
    ),
    Case(
        "a misspelt function",
        lambda: math.expp,
        MemberError,
        r"one of the table's .*, got tilefold.math.expp; use tilefold.math.exp\(",
    ),
    Case(
        "an element is assigned",
        traced(lambda x: x.__setitem__(0, 1)),
        TraceError,
        r"assignment to an element .*got <traced input %0>; use tilefold.math.where",
    ),
    Case("divmod", traced(lambda x: divmod(x, 2)), TraceError, r"divmod\(\) .*got .*; use a // b and a % b"),
    Case(
        "a product of matrices",
        traced(lambda x: 2 @ x),
        TraceError,
        r"@ .*got .*; use a \* b .*tilefold.matmul",
    ),
    Case(
        "a key",
        traced(lambda x: {x: 1}),
        TraceError,
        r"a key of a dict.*got .*; use tilefold.math.where\(x == key",
    ),
    Case(
        "a state as an operand",
        made(lambda a, b: math.exp(a), (0, 0)),
        TraceError,
        r"got a state; use its fields, .field0, .field1",
    ),
    Case(
        "a tuple's method as a field",
        made(lambda a, b: (a.m * b.count, a.m), (0, 0), fields=("n", "m")),
        TraceError,
        r"got the method .count of a state; use its fields, .n, .m",
    ),
    Case(
        "a misspelt field",
        made(lambda a, b: (a.totl, a.m), (0, 0), fields=("total", "m")),
        MemberError,
        r"a field must be one of .total, .m, got .totl; use .total",
    ),
    Case(
        "a field that nobody named",
        made(lambda a, b: (a.z, a.m), (0, 0), fields=("total", "m")),
        MemberError,
        r"a field must be one of .total, .m, got .z; use one of them, or name it in fields=",
    ),
    Case(
        "returns a state within a state",
        traced(lambda x: (x, (x, 1))),
        ArityError,
        r"got tuple; return one flat tuple",
    ),
    Case(
        "returns half a state",
        made(lambda a, b: a.m, (0, 0), fields=("m", "l")),
        ArityError,
        r"combine must return 2 values, one for each state field, got 1; return \(m, l\)",
    ),
    Case(
        "absorb of two",
        made(lambda a, b: a + b, 0, lift=lambda x, i: x, index=True, absorb=lambda s, x: s),
        ArityError,
        r"absorb must take 3 arguments, got \(s, x\): too many.*; write absorb\(state, x, i\)",
    ),
    Case(
        "begin of none",
        made(absorb=(lambda: 0, lambda s, x: s)),
        ArityError,
        r"absorb's begin must take 1 argument, got \(\): too many.*; write begin\(x\)",
    ),
    Case(
        "unchecked and of no known order",
        made(lambda a, b: a - b, None, commutative=None),
        MonoidError,
        r"with check=False, whether order matters must be declared.*, got commutative=None; pass commutative=True, or False",
    ),
    # algebra/domain.py
    Case(
        "domain of no name",
        made(domain="non-negative"),
        MonoidError,
        r"a domain must be \(low, high\).*one of any, finite.*, got 'non-negative'; write 'nonnegative'",
    ),
    Case("domain of no kind", made(domain=0), MonoidError, r"a domain must be .*, got 0; write \(0, None\)"),
    Case("domain of NaN", made(domain=(NAN, 1)), MonoidError, r"with low <= high.*, got \(nan, 1\); write"),
    Case(
        "domain without numbers", made(domain=(2, 1)), MonoidError, r"with low <= high.*, got \(2, 1\); write"
    ),
    Case(
        "domains of more inputs",
        made(domain=("positive", None)),
        MonoidError,
        r"one for all inputs or one for each of the 1, got 2; give as many",
    ),
    Case(
        "a domain that does not help",
        made(lambda a, b: a - b, None, check=True, domain="positive"),
        LawError,
        r"must be associative, got .*\(float64 elements in the domain 'positive'\); carry",
    ),
    Case(
        "a law that holds in a domain",
        made(math.maximum, 0, check=True),
        LawError,
        r"combine\(identity, s\) must be s, got .*; give .*, or declare domain='nonnegative' if no input",
    ),
    # algebra/proofs/laws.py
    Case(
        "no dtype",
        made(lambda a, b: (a / 2) & 1, check=True),
        DtypeError,
        r"must fold floats, integers or bool, got functions.*; see",
    ),
    Case(
        "no dtype for an identity",
        made(lambda a, b: a & b, 0.5, check=True),
        DtypeError,
        r"must fold .*float64: and: bitwise operations need .*; int64: value: .* needs a whole identity, got 0.5 .*; see",
    ),
    Case(
        "NaN of identities",
        made(lambda a, b: a + b - INF + INF, INF, check=True),
        LawError,
        r"combine\(identity, identity\) must be the identity.*got.*; guard",
    ),
    Case(
        "identity law",
        made(lambda a, b: a + b, 1, check=True),
        LawError,
        r"combine\(identity, s\) must be s, got .*; give",
    ),
    Case(
        "associativity",
        made(lambda a, b: a - b, None, check=True),
        LawError,
        r"must be associative, got .*; carry",
    ),
    Case(
        "commutativity",
        made(lambda a, b: b, None, check=True),
        LawError,
        r"commutative=True must hold, got .*; leave",
    ),
    Case(
        "absorb",
        made(absorb=lambda s, x: s + math.block_max(x), check=True),
        LawError,
        r"absorb must equal.*, got .*; mend",
    ),
    # algebra/typing.py and program.py
    Case(
        "complex",
        reduced(X.to(torch.complex64), monoids.SUM),
        DtypeError,
        r"real numbers or bool, got torch.complex64; fold torch.view_as_real",
    ),
    Case(
        "result dtype",
        lambda: specialize(monoids.SUM.total, (torch.float32,), torch.complex64),
        DtypeError,
        r"`dtype` must be a real or bool dtype, got torch.complex64; convert",
    ),
    Case(
        "bitwise of floats",
        reduced(X, monoids.BITWISE_OR),
        DtypeError,
        r"integers or bool, got torch.float32; fold",
    ),
    Case(
        "integers by zero",
        reduced(X.long(), made(lift=lambda x: x % 0)()),
        DtypeError,
        r"cannot be divided by 0, got mod\(torch.int64, 0\); divide",
    ),
    Case(
        "integers of a monoid of floats",
        reduced(
            X.int(),
            Monoid(
                lambda f, g: (f.a + g.a, math.maximum(f.b + g.a, g.b)),
                (0, -INF),
                fields=("a", "b"),
                lift=lambda x: (x, x),
            ),
        ),
        DtypeError,
        r"laws hold for floats alone.* must fold floats, got torch.int32; give .*dtypes=torch.float32, or convert",
    ),
    Case(
        "bits of a label beside floats",
        reduced(
            (X, X.long()),
            Monoid(math.maximum, None, lift=lambda x, k: math.where(x > 0, k, -1.0), name="label"),
        ),
        DtypeError,
        r"monoid: whole numbers must fit .*, got torch.int64 in lift for value, which is torch.float32; give .* dtypes=",
    ),
    Case(
        "identity NaN",
        lambda: typing.concrete(NAN, torch.int32, "f"),
        DtypeError,
        r"cannot start at NaN, got a torch.int32 field; declare",
    ),
    Case(
        "identity fraction",
        lambda: typing.concrete(0.5, torch.int32, "f"),
        DtypeError,
        r"whole identity, got 0.5 for torch.int32; declare",
    ),
    Case(
        "identity too large",
        lambda: typing.concrete(-(2**63), torch.int8, "f"),
        DtypeError,
        r"must fit its field, got -9223372036854775808 for torch.int8; an infinity",
    ),
    Case(
        "a text of another version",
        lambda: text.loads("[2, null]"),
        TextError,
        r"must be of version 1, got version 2; write it again",
    ),
    Case(
        "the text of no monoid",
        lambda: monoid_of("[1, 3]"),
        TextError,
        r"must be of an Algebra, got 3; write Monoid.text",
    ),
    Case(
        "the text of no function",
        lambda: of_text("[1, 3]"),
        TextError,
        r"must be of six parts, got 3; write Traced.text",
    ),
]
