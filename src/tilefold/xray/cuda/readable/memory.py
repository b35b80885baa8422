"""Loads and stores of neighbours: pointers with an index, one loop for accesses of one shape, whole vectors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.expressions import ARRAYS, Expressions
from tilefold.xray.cuda.readable.formulas import NoFormulaError, formula
from tilefold.xray.cuda.readable.indices import Pack
from tilefold.xray.cuda.readable.kinds import PLAIN, SIZES
from tilefold.xray.cuda.readable.linear import Linear
from tilefold.xray.cuda.readable.text import OR, PRIMARY, SUM, UNARY, Text
from tilefold.xray.cuda.readable.tree import Assembly, Effect, Load, Region, Store, walk
from tilefold.xray.cuda.readable.values import Value, leaves

VECTORS = """\
template <class T, int N> struct alignas(N * sizeof(T)) Vector { T held[N]; };
template <int N, class T> static __device__ void vector_copy(T* to, const T* from) {
  *(Vector<T, N>*)to = *(const Vector<T, N>*)from;  // at once
}"""


class Memory:
    """Writes loads and stores. `types` has the types of shared and of local memory, where all that is kept there has one."""

    def __init__(self, write: Expressions, body: Region) -> None:
        self._write, self._sheet = write, write.sheet
        effects = tuple(walk(body))
        self.aligned: dict[str, int] = {}  # arrays that begin where vectors may, and the bytes of these
        self.constant: set[int] = set()  # parameters that nothing is stored through
        self.types = {space: self._type_of(space, effects) for space in ARRAYS}
        self._shares = Counter(
            k
            for e in effects
            if isinstance(e, Load | Store) and e.space == "global" and (k := self._key(e.address))
        )

    # --------------------------------------------------------------------------------------------------- groups
    def grouped(self, effects: Sequence[Effect], alone: bool = False) -> list[tuple[Effect, ...]]:
        """Neighbouring loads of one shape together, and neighbouring stores; the order of all others stays.

        Each is a group of its own where they are to stand alone.
        """
        found: list[tuple[Effect, ...]] = []
        if alone:
            return [(e,) for e in effects]
        at = 0
        while at < len(effects):
            run = [effects[at]]
            if isinstance(run[0], Load | Store):
                kind, made = type(run[0]), set[Value]()
                while at + len(run) < len(effects) and isinstance(after := effects[at + len(run)], kind):
                    made.update(run[-1].results if isinstance(run[-1], Load) else ())
                    if isinstance(after, Load) and _reads(after, made):
                        break
                    run.append(after)
                found += self._shapes(run)
            elif isinstance(run[0], Assembly) and run[0].guard is None:
                while at + len(run) < len(effects) and _alike(run[0], effects[at + len(run)]):
                    run.append(effects[at + len(run)])
                found.append(tuple(run))
            else:
                found.append((run[0],))
            at += len(run)
        return found

    def _shapes(self, run: Sequence[Effect]) -> list[tuple[Effect, ...]]:
        """Loads may be said in another order; stores that follow each other in one shape stay."""
        groups: list[list[Effect]] = []
        keys: list[object] = []
        for effect in run:
            assert isinstance(effect, Load | Store), "only these are grouped"
            key = self._shape(effect)
            if key in keys and (isinstance(effect, Load) or keys[-1] == key):
                groups[len(keys) - 1 - keys[::-1].index(key)].append(effect)
            else:
                groups.append([effect])
                keys.append(key)
        return [tuple(g) for g in groups]

    def _shape(self, effect: Load | Store) -> object:
        parts = effect.results if isinstance(effect, Load) else effect.values
        form = self._write.sums.of(effect.address)
        base = self._write.kinds.base(effect.address) if effect.space == "global" else None
        old = effect.old if isinstance(effect, Load) and effect.guard is not None else ()
        line = effect.place[:2] if effect.place else None
        return (
            effect.space,
            line,
            base,
            len(parts),
            parts[0].bits,
            effect.guard is None,
            tuple(c for _, c in form.terms) if base else None,
            tuple(o.data if o.op == "const" else o.op for o in old),
        )

    # --------------------------------------------------------------------------------------------------- places
    def place(self, addresses: Pack, space: str, kind: str) -> tuple[str, str | None]:
        """A pointer, and an index behind it (None: the pointer itself) of the type's elements.

        Raises:
            NoFormulaError: no loop says them.
        """
        forms = [self._write.sums.of(a) for a in addresses]
        if space in ARRAYS:
            return self._shared(forms, addresses, kind, space)
        bases = {self._write.kinds.base(a) for a in addresses}
        base = bases.pop()
        if bases:
            raise NoFormulaError
        divided = [f.without(base).over(SIZES[kind]) for f in forms] if base is not None else [None]
        if base is None or self._write.kinds.of(base)[:-1] != kind or any(f is None for f in divided):
            return self._bytes(base, forms, addresses, kind)
        return self._indexed(base, [f for f in divided if f is not None], addresses)

    def _bytes(
        self, base: Value | None, forms: list[Linear], addresses: Pack, kind: str
    ) -> tuple[str, str | None]:
        """A number of 64 bits as a pointer, or bytes behind a pointer to something else."""
        start = "" if base is None else f"(char*){self._write.one(base).at(UNARY)} + "
        offset = self._write.form(
            forms if base is None else [f.without(base) for f in forms], (addresses[0],)
        )
        return f"*({kind}*)({start}{offset.to('long long').at(SUM + 1 if start else 0)})", None

    def _indexed(self, base: Value, forms: list[Linear], addresses: Pack) -> tuple[str, str | None]:
        """Numbers that may be large belong to the pointer, as 64 bits; small ones are the index."""
        name = self._write.one(base).text
        large = [tuple((v, c) for v, c in f.terms if not self._is_small(v, c)) for f in forms]
        small = [
            Linear(tuple(t for t in f.terms if t not in l), f.constant, f.bits)
            for f, l in zip(forms, large, strict=True)
        ]
        if not any(large):
            return name, self._index(small, addresses)
        if any([c for _, c in l] != [c for _, c in large[0]] for l in large):
            raise NoFormulaError
        same = all(l == large[0] for l in large)
        key = ("pointer", base, large[0])
        if (
            same
            and self._sheet.region
            and not self._known(key)
            and (len(forms) > 1 or self._shares[base, large[0]] > 1)
        ):
            self._name(key, base, large[0], addresses)
        if same and (known := self._known(key)):
            return known, self._index(small, addresses)
        offset = self._offsets(large)
        if all(not s.terms and s.constant == 0 for s in small):
            return (name, offset[0]) if len(offset) == 1 else (f"({name} + {' + '.join(offset)})", "0")
        return f"({name} + {' + '.join(offset)})", self._index(small, addresses)

    def _is_small(self, value: Value, times: int) -> bool:
        return times > 0 and self._write.graph.possible(value) * times < 1 << 28 and value.bits == 32

    def _index(self, forms: list[Linear], addresses: Pack) -> str:
        text = self._write.form(forms, (addresses[0],))
        bounded = all(self._write.sums.bounded(f) for f in forms)
        return (
            text.text
            if bounded or text.type in ("int", "long long")
            else text.to("long long" if forms[0].bits == 64 else "int").text
        )

    def _offsets(self, large: Sequence[tuple[tuple[Value, int], ...]]) -> list[str]:
        """What is added to a pointer, in 64 bits."""
        found = []
        for k, (value, times) in enumerate(large[0]):
            pack = tuple(l[k][0] for l in large)
            if value.op in ("zext", "sext"):
                if any(v.op != value.op for v in pack):
                    raise NoFormulaError
                text = self._write.say(
                    tuple(v.args[0] for v in pack), "unsigned" if value.op == "zext" else "int"
                )
            else:
                text = self._write.say(pack)
                if text.type not in ("int", "unsigned", "long long", "unsigned long long"):
                    text = text.to("long long")
            found.append(text.at(SUM + 1) if times == 1 else f"{times}ll * {text.at(UNARY)}")
        return found

    def _name(
        self, key: tuple[object, ...], base: Value, large: tuple[tuple[Value, int], ...], addresses: Pack
    ) -> None:
        scopes, sheet = self._write.scopes, self._sheet
        home = scopes.deepest([base, *(v for v, _ in large)], sheet.where)
        if not scopes.within(sheet.region, home):
            return
        before, sheet.region = sheet.region, home
        try:
            kind = self._write.kinds.of(base)
            pointer = self._write.one(base).text
            text = " + ".join([pointer, *self._offsets([large])])
            name = sheet.fresh(pointer.removesuffix("_ptr") + ("_row" if pointer.endswith("_ptr") else "_at"))
            constant = "const " if base.op == "parameter" and base.data[0] in self.constant else ""
            sheet.say(f"{constant}{kind} {name} = {text};", addresses[0].place)
            sheet.put(sheet.known, key, (name, home))
        finally:
            sheet.region = before

    def _known(self, key: object) -> str | None:
        found = self._sheet.known.get(key)
        visible = found is not None and self._write.scopes.within(self._sheet.region, found[1])
        return str(found[0]) if visible and found is not None else None

    def _key(self, address: Value) -> object:
        """Pointer and large numbers of an address."""
        base = self._write.kinds.base(address)
        kind = self._write.kinds.element(address)
        form = (
            self._write.sums.of(address).without(base).over(SIZES.get(kind or "", 1))
            if base is not None
            else None
        )
        if base is None or form is None:
            return None
        return base, tuple((v, c) for v, c in form.terms if not self._is_small(v, c))

    # --------------------------------------------------------------------------------------------- shared memory
    def _shared(self, forms: list[Linear], addresses: Pack, kind: str, space: str) -> tuple[str, str | None]:
        """Memory of the block, or of the thread: an element of its array, or what is so many bytes behind its begin."""
        bases = {next((v for v, c in f.terms if v.op == space and c == 1), None) for f in forms}
        base = bases.pop()
        if base is None or bases:
            number = self._write.form(forms, (addresses[0],)).to("unsigned")
            return f"*({kind}*)__cvta_{space}_to_generic({number.text})", None
        rests = [f.without(base) for f in forms]
        divided = [self._divided(f, SIZES[kind]) for f in rests]
        (array,) = base.data
        held = self.types[space] if array == ARRAYS[space] else "char"
        if all(d is not None for d in divided):
            name = array if held == kind else f"(({kind}*){array})"
            return name, self._write.form([d for d in divided if d is not None], (addresses[0],)).text
        start = array if held == "char" else f"(char*){array}"
        offset = self._write.form(rests, (addresses[0],))
        if not all(self._write.sums.bounded(f) for f in rests):
            offset = offset.to("unsigned")  # it may wrap, but not into 64 bits
            offset = Text(offset.at(SUM + 1), PRIMARY, offset.type)
        if kind == "char":
            return f"{start} + {offset.at(SUM)}", None
        return f"*({kind}*)({start} + {offset.at(SUM + 1) if offset.level < SUM else offset.text})", None

    def _divided(self, form: Linear, size: int) -> Linear | None:
        """In elements, where no part of the sum wraps; None where bytes must say it."""
        divided = form.over(size)
        safe = (
            sum(abs(c) * self._write.graph.possible(v) for v, c in form.terms) + abs(form.constant) < 1 << 31
        )
        return divided if safe else None

    def _type_of(self, space: str, effects: Sequence[Effect]) -> str:
        kinds = set()
        for effect in effects:
            if isinstance(effect, Assembly) and {space, "wide"} & {*effect.roles}:
                kinds.add("char")
            if getattr(effect, "space", "") != space:
                continue
            if not isinstance(effect, Load | Store):
                return "char"
            form = self._write.sums.of(effect.address)
            base = next((v for v, _ in form.terms if v.op == space), None)
            if base is not None and base.data != (ARRAYS[space],):
                continue  # an array of a fixed size
            for value in effect.results if isinstance(effect, Load) else effect.values:
                kinds.add(self._write.kinds.of(value) if value.op != "const" else "float")
            size = min((SIZES.get(k, 1) for k in kinds), default=1)
            if base is None or self._divided(form.without(base), size) is None:
                kinds.add("char")
        return kinds.pop() if len(kinds) == 1 else "char"

    # ------------------------------------------------------------------------------------------------------ loads
    def load(self, group: tuple[Load, ...]) -> None:
        """A variable or an array takes what is loaded."""
        first = group[0]
        parts = tuple(p for e in group for p in e.results)
        kind = self._write.kinds.of(parts[0])
        mark = self._sheet.mark()
        try:
            place = self.place(tuple(e.address for e in group), first.space, kind)
            guard = None if first.guard is None else self._write.say(tuple(e.guard for e in group if e.guard))
            old = None if guard is None else self._write.say(tuple(e.old[0] for e in group), kind)
        except NoFormulaError:
            self._sheet.back(mark)
            self._halves(group)
            return
        name = self._sheet.name_for(parts[0], self._default(first), kind)
        value = _at(place) if guard is None or old is None else f"{guard.at(OR)} ? {_at(place)} : {old.text}"
        if len(parts) == 1:
            self._sheet.say(f"{kind} {name} = {value};", first.place)
            self._sheet.name(parts[0], name, kind)
            return
        loop = f"for (int i = 0; i < {len(group)}; ++i) " if len(group) > 1 else ""
        if len(first.results) == 1:
            self._sheet.say(f"{kind} {name}[{len(parts)}];", first.place)
            self._sheet.say(f"{loop}{name}[i] = {value};")
        else:
            self._vectors(first, name, kind, len(parts), place, loop, guard, old)
        self._sheet.own(name, kind, parts)

    def _default(self, effect: Load) -> str:
        """The name of what is loaded, where the source has none: after the pointer."""
        base = self._write.kinds.base(effect.address) if effect.space == "global" else None
        known = base is not None and (base.op == "parameter" or base in self._sheet.named)
        text = self._write.one(base).text if base is not None and known else ""
        found = re.fullmatch(r"([A-Za-z]\w*?)(?:_ptrs?|_pointer|_at|_row)(?:_\d+)?", text)
        return found[1] if found else "loaded"

    def _vectors(
        self,
        first: Load,
        name: str,
        kind: str,
        count: int,
        place: tuple[str, str | None],
        loop: str,
        guard: Text | None,
        old: Text | None,
    ) -> None:
        wide = len(first.results)
        self._sheet.helpers["vector_copy"] = VECTORS
        zero = guard is not None and old is not None and old.text in ("0", "0.0f")
        self._sheet.say(
            f"alignas({wide * SIZES[kind]}) {kind} {name}[{count}]{' = {}' if zero else ''};", first.place
        )
        if guard is not None and old is not None and not zero:
            self._sheet.say(f"for (int i = 0; i < {count}; ++i) {name}[i] = {old.text};")
        to = f"{name} + {wide} * i" if loop else name
        when = "" if guard is None else f"if ({guard.text}) "
        self._sheet.say(f"{loop}{when}vector_copy<{wide}>({to}, {address_text(place)});")

    def _halves(self, group: tuple[Effect, ...]) -> None:
        if len(group) == 1:
            raise UnreadableError("cuda: an access must be said, got one without a form; take the plain form")
        half = len(group) // 2
        for part in (group[:half], group[half:]):
            if isinstance(part[0], Load):
                self.load(part)  # type: ignore[arg-type]  # groups are of one kind
            else:
                self.store(part)  # type: ignore[arg-type]  # the same

    # ----------------------------------------------------------------------------------------------------- stores
    def store(self, group: tuple[Store, ...]) -> None:
        """Values or neighbours in an array go to memory."""
        first = group[0]
        values = tuple(v for e in group for v in e.values)
        kind = self._element(group)
        mark = self._sheet.mark()
        try:
            guard = None if first.guard is None else self._write.say(tuple(e.guard for e in group if e.guard))
            value = (
                self._write.say(values, kind).text
                if len(first.values) == 1
                else self._neighbours(group, values, kind)
            )
            place = self.place(tuple(e.address for e in group), first.space, kind)
        except NoFormulaError:
            self._sheet.back(mark)
            self._halves(group)
            return
        loop = f"for (int i = 0; i < {len(group)}; ++i) " if len(group) > 1 else ""
        when = "" if guard is None else f"if ({guard.text}) "
        if len(first.values) == 1:
            self._sheet.say(f"{loop}{when}{_at(place)} = {value};", first.place)
        else:
            self._sheet.helpers["vector_copy"] = VECTORS
            self._sheet.say(
                f"{loop}{when}vector_copy<{len(first.values)}>({address_text(place)}, {value});", first.place
            )

    def _element(self, group: tuple[Store, ...]) -> str:
        first = group[0]
        kind = self._write.kinds.element(first.address) if first.space == "global" else None
        if kind is None:
            held = next((v for e in group for v in e.values if v.op != "const"), first.values[0])
            kind = self._write.kinds.of(held) if held.op != "const" else self.types.get(first.space, "char")
        if SIZES.get(kind, 0) * 8 != first.values[0].bits:
            kind = next(
                (k for v in first.values if SIZES.get(k := self._write.kinds.of(v), 0) * 8 == v.bits),
                PLAIN[first.values[0].bits],
            )
        return kind

    def _neighbours(self, group: tuple[Store, ...], values: Pack, kind: str) -> str:
        """The place in an array of the first of the i-th vector's values."""
        wide = len(group[0].values)
        held = [self._sheet.arrays.get(v) for v in values]
        if not any(held):
            self._write._try_array(values)
            held = [self._sheet.arrays.get(v) for v in values]
        begins = [h for h in held[::wide] if h is not None]
        whole = [h for h in held if h is not None]
        apart = len(whole) == len(held) and len({h[0] for h in whole}) == 1
        apart = apart and all(h[1] == whole[n - n % wide][1] + n % wide for n, h in enumerate(whole))
        if apart and all(h[1] % wide == 0 for h in begins) and self._write.kinds.of(values[0]) == kind:
            first = formula([h[1] for h in begins])
            self.aligned[begins[0][0]] = max(wide * SIZES[kind], self.aligned.get(begins[0][0], 0))
            return begins[0][0] + (f" + {first}" if first != "0" else "")
        if len(group) > 1:
            text = self._write.say(values, kind).text
            name = self._sheet.fresh("out")
            self._sheet.say(f"alignas({wide * SIZES[kind]}) {kind} {name}[{len(values)}];", group[0].place)
            self._sheet.say(f"for (int i = 0; i < {len(values)}; ++i) {name}[i] = {text};")
            return f"{name} + {wide} * i"
        name = self._sheet.fresh("out")
        items = ", ".join(self._write.one(v, kind).text for v in values)
        self._sheet.say(f"alignas({wide * SIZES[kind]}) {kind} {name}[{wide}] = {{{items}}};", group[0].place)
        return name


def _alike(first: Assembly, after: Effect) -> bool:
    """Whether an effect is the same instruction as another, with other operands, and one that loops may repeat."""
    return (
        isinstance(after, Assembly)
        and after.guard is None
        and (len(first.results) > 1 or (not first.results and bool(first.inputs)))
        and (after.name, after.template, after.groups, after.roles)
        == (first.name, first.template, first.groups, first.roles)
    )


def _reads(load: Load, made: set[Value]) -> bool:
    """Whether a load needs what others loaded."""
    needed = [load.address, *([load.guard] if load.guard else []), *load.old]
    return any(leaf in made for value in needed for leaf in leaves(value))


def _at(place: tuple[str, str | None]) -> str:
    return (
        place[0]
        if place[1] is None
        else f"*{place[0]}"
        if place[1] == "0" and " " in place[0]
        else f"{place[0]}[{place[1]}]"
    )


def address_text(place: tuple[str, str | None]) -> str:
    """A place as a pointer."""
    if place[1] is None:
        return place[0].removeprefix("*")
    simple = re.fullmatch(r"[\w *+()/%.-]+", place[1])
    return (
        place[0] if place[1] == "0" else f"{place[0]} + {place[1]}" if simple else f"&{place[0]}[{place[1]}]"
    )
