"""The hand-written kernels. They are plain functions until `instantiate` gives them a monoid's device functions.

| operation | kernel | what a program does |
|---|---|---|
| fold | `fold_lanes` in `tiles` | folds tiles of rows, columns or partial states in lanes; "none": into results in memory |
| | `in_order` | the same where order matters |
| | `gathered` | reads short rows that no vector divides, or groups of short columns, as one run of memory |
| map, rows held | `map_blocks` | holds a row, or a cluster's share, in registers: absorbs it as one block, or lane by lane |
| | `map_spans` | holds several short rows, or groups of short columns, in shared memory as one flat span |
| | `map_offset` | holds a longer row that begins between two vectors in shared memory |
| | `map_rings` | holds rows in shared memory as a ring of turns |
| | `map_stripes` | holds neighbouring columns in shared memory |
| map, sums over rows | `map_groups` | holds rows, or shares of them, one after another, and sums over them in registers |
| map, rows read twice | `map_windows` | folds a window of rows, and reads it again from the L2 |
| | `maps` | maps elements after the fold's own launches |
| scan | `scans`, with `scan_elements`, `scan_prefixes` | walks lines, or shares a line with other programs |
| ragged fold | `segments`, with `segment_runs` | owns a chunk of a row, whatever segments it has; a second launch combines |
| top-k | `selections` | keeps each group's best element, then reads the k best groups again |
| transpose, copy | `moves` | turns a tile in shared memory |
| product | `products`, `product_rows` | sums a share of K; a second launch folds the shares |

What a kernel is called with is named in `records`. What maps that hold rows in shared memory share is in `primitives` (PTX)
and `clusters` (states between programs).
"""
