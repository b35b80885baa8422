"""How the programs of a cluster exchange their states: each writes its own into the shared memory of all the others.

A cluster's programs run at the same time, and may write into each other's shared memory (PTX ISA, "Cluster"). Each has
memory for a state from every program, and a transaction barrier that expects their bytes. A program writes its state into its
own shared memory, its threads send it to all (`st.async`, which counts bytes at the receiver's barrier), and each waits for
its own barrier alone: nothing passes through global memory, so no fence is needed, which would take longer than all the rest.
No program ends before all states have come to it, so none writes into memory that is gone.

Triton has no operations for this, so it is PTX: `exchange` declares the memory, and the functions here name it.
"""

import triton.language as tl


def exchange(cluster: int, words: int, again: bool = False) -> str:
    """PTX that declares what `words` 32-bit words from each program need, and says that this program has begun.

    With `again` there may be any number of exchanges, and two places for words and two barriers, in turns: a program sends
    the words of the exchange after next only once all have sent those of the next one, so after all have read the
    present ones. $0 becomes 0.
    """
    second = f"""
mbarrier.init.shared::cta.b64 [exchange_barrier+8], 1;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [exchange_barrier+8], {4 * words * cluster};"""
    return f"""
.shared .align 16 .b8 exchange_own[{4 * words}];
.shared .align 16 .b8 exchange_all[{4 * words * cluster * (1 + again)}];
.shared .align 8 .b64 exchange_barrier[{1 + again}];
{{
.reg .pred other;
.reg .b32 thread;
mov.u32 thread, %tid.x;
setp.ne.u32 other, thread, 0;
@other bra BEGUN;
mbarrier.init.shared::cta.b64 [exchange_barrier], 1;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [exchange_barrier], {4 * words * cluster};{second * again}
fence.mbarrier_init.release.cluster;
BEGUN:
barrier.cluster.arrive.relaxed.aligned;
mov.u32 $0, 0;
}}
"""


def own_words(words: int) -> str:
    """PTX that declares memory for `words` 32-bit words of a program that exchanges none with others. $0 becomes 0."""
    return f".shared .align 16 .b8 exchange_own[{4 * words}]; mov.u32 $0, 0;"


def begin_exchange(EXCHANGE: tl.constexpr):
    """Prepare for the others' states, before the elements are loaded. EXCHANGE: the result of `exchange`."""
    tl.inline_asm_elementwise(EXCHANGE, "=r", [], dtype=tl.uint32, is_pure=False, pack=1)


def others_have_begun():
    """Wait until all programs of the cluster are ready for states.

    Best as soon as a program's loads are on their way: its cluster's programs then go on together.
    """
    tl.inline_asm_elementwise(
        """
        barrier.cluster.wait.acquire.aligned;
        mov.u32 $0, 0;
        """,
        "=r", [], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def write_own(place, word):
    """Write a word into this program's own shared memory. Threads that hold the same one all write it."""
    tl.inline_asm_elementwise(
        """{
        .reg .b32 at, own;
        mov.u32 own, exchange_own;
        mad.lo.u32 at, $1, 4, own;
        st.shared.b32 [at], $2;
        mov.u32 $0, 0;
        }""",
        "=r,r,r", [place, word], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def send(words, total):
    """Send this program's words to all programs of the cluster, and wait until those of all have come: a single exchange.

    As `send_again` does for any number of them, with fewer registers: where a program holds a row, they are how many
    programs an SM holds.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred past, come;
        .reg .b32 i, step, rank, to, word, at, there, barrier, value;
        mov.u32 i, %tid.x;
        mov.u32 step, %ntid.x;
        mov.u32 rank, %cluster_ctarank;
        SENDING:
        setp.ge.u32 past, i, $2;
        @past bra SENT;
        div.u32 to, i, $1;
        rem.u32 word, i, $1;
        mov.u32 at, exchange_own;
        mad.lo.u32 at, word, 4, at;
        ld.shared.b32 value, [at];
        mad.lo.u32 word, rank, $1, word;
        mov.u32 at, exchange_all;
        mad.lo.u32 at, word, 4, at;
        mapa.shared::cluster.u32 there, at, to;
        mov.u32 at, exchange_barrier;
        mapa.shared::cluster.u32 barrier, at, to;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], value, [barrier];
        add.u32 i, i, step;
        bra SENDING;
        SENT:
        WAITING:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 come, [exchange_barrier], 0;
        @!come bra WAITING;
        mov.u32 $0, 0;
        }""",
        "=r,r,r", [words, total], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


def send_again(words, total, number):
    """Send this program's words to all programs of the cluster in exchange `number`, and wait until those of all have come.

    The barrier is then prepared for the exchange after next.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred past, come, first;
        .reg .b32 i, step, rank, to, word, at, there, barrier, value, side, phase, mine;
        barrier.sync.aligned 0;
        and.b32 side, $3, 1;
        bfe.u32 phase, $3, 1, 1;
        mov.u32 mine, exchange_barrier;
        mad.lo.u32 mine, side, 8, mine;
        mul.lo.u32 side, side, $2;
        mov.u32 i, %tid.x;
        setp.eq.u32 first, i, 0;
        mov.u32 step, %ntid.x;
        mov.u32 rank, %cluster_ctarank;
        SENDING:
        setp.ge.u32 past, i, $2;
        @past bra SENT;
        div.u32 to, i, $1;
        rem.u32 word, i, $1;
        mov.u32 at, exchange_own;
        mad.lo.u32 at, word, 4, at;
        ld.shared.b32 value, [at];
        mad.lo.u32 word, rank, $1, word;
        add.u32 word, word, side;
        mov.u32 at, exchange_all;
        mad.lo.u32 at, word, 4, at;
        mapa.shared::cluster.u32 there, at, to;
        mapa.shared::cluster.u32 barrier, mine, to;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], value, [barrier];
        add.u32 i, i, step;
        bra SENDING;
        SENT:
        WAITING:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 come, [mine], phase;
        @!come bra WAITING;
        mul.lo.u32 at, $2, 4;
        @first mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [mine], at;
        mov.u32 $0, 0;
        }""",
        "=r,r,r,r", [words, total, number], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


def received(place):
    """A word that was received."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, exchange_all; mad.lo.u32 at, $1, 4, at; ld.shared.b32 $0, [at]; }",
        "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def combine_cluster(state, CLUSTER: tl.constexpr, OUTPUTS: tl.constexpr, number):
    """Combine the states of a cluster's programs, [OUTPUTS] each, in one order; of one output: numbers.

    `number` counts the exchanges of these programs, from 0; None where there is one.

    A field has 32 bits.
    """
    FIELDS: tl.constexpr = len(state)
    WORDS: tl.constexpr = FIELDS * OUTPUTS
    for f in tl.static_range(FIELDS):
        write_own(f * OUTPUTS + tl.arange(0, OUTPUTS), tl.cast(state[f], tl.uint32, bitcast=True))
    if number is None:
        tl.debug_barrier()
        send(WORDS, WORDS * CLUSTER)
    else:
        send_again(WORDS, WORDS * CLUSTER, number)
    part = tl.arange(0, tl.constexpr(1 << (CLUSTER - 1).bit_length()))
    if OUTPUTS > 1:
        part = part[:, None]
    mask = part < CLUSTER
    states = ()
    for f in tl.static_range(FIELDS):
        at = tl.where(mask, part, 0) * WORDS + f * OUTPUTS
        if number is not None:
            at = at + (number & 1) * (CLUSTER * WORDS)
        if OUTPUTS > 1:
            at = at + tl.arange(0, OUTPUTS)[None, :]
        states = states + (tl.cast(received(at), state[f].dtype, bitcast=True),)
    if OUTPUTS > 1:
        mask = tl.broadcast_to(mask, states[0].shape)
    return tl.reduce(OR_IDENTITY(mask, *states), 0, COMBINE_SYMMETRIC)


def broadcast(results, OUTPUTS: tl.constexpr):
    """Give all threads the folded columns of a program that some threads have: [OUTPUTS] -> [1, 1, OUTPUTS, 1].

    Through the program's own shared memory: threads that need eight columns each would else combine the states of eight.
    Results are words of 32 bits, no more of them than states have.
    """
    for r in tl.static_range(len(results)):
        write_own(r * OUTPUTS + tl.arange(0, OUTPUTS), tl.cast(results[r], tl.uint32, bitcast=True))
    tl.debug_barrier()
    taken = ()
    for r in tl.static_range(len(results)):
        word = read_own(r * OUTPUTS + tl.arange(0, OUTPUTS)[None, None, :, None])
        taken = taken + (tl.cast(word, results[r].dtype, bitcast=True),)
    return taken


def read_own(place):
    """A word of this program's own."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, exchange_own; mad.lo.u32 at, $1, 4, at; ld.shared.b32 $0, [at]; }",
        "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip
