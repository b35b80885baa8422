"""Products of small matrices: `mma.sync` by warps, `wgmma` by groups of four, and how both are rounded."""
