"""The closed list of codes, each with what it says. docs/xray.md documents the same list."""

CODES = {
    "approximate-math": "an operation is the chip's approximation",
    "bank-conflict": "lanes of a warp wait for each other at the banks of shared memory",
    "idle-warps": "a loop is not spread over the warps: all of them do the same",
    "needless-barrier": "no data crosses threads at a barrier",
    "no-tensor-core": "a dot runs on the vector units",
    "occupancy": "a core holds few warps",
    "offset-overflow": "a 32-bit offset is too large for the given arguments",
    "older-tensor-core": "a dot takes mma.sync where the chip has a faster instruction",
    "out-of-bounds": "a program reaches outside of an array whose size was given",
    "per-element-atomic": "every element of a tile goes to one place by an atomic of its own",
    "redundant-threads": "threads repeat what others do",
    "scalar-access": "neighbouring elements of a thread are accessed one by one",
    "small-axis-shuffles": "a short axis is folded across threads",
    "spill": "registers are kept in local memory",
    "strong-atomic": "an atomic orders memory that nobody reads",
    "tf32-dot": "the operands of a float32 dot are rounded to 10 bits",
    "wasted-sectors": "more sectors are moved than the bytes asked for need",
    "wrong-fill": "what masked elements are filled with changes the result of a reduction",
}
