"""`tilefold bench`: every claim of speed as one command, beside what one would otherwise use, after the answers agreed.

    suites/  cases and variants, declared  -+
    peers    what one would use instead    -+-> measure: gate, then stopwatch, between traps -> results -> summary, plots,
    limits   empty launches, a copy        -+   (run: select, warm, measure, write)                        compare

`run` selects cases, `warm` compiles them ahead in processes of their own, `measure` measures one case: `gate` decides
whether a variant may be timed, `timing` has the clocks and the turns, `traps` guard against what would make a figure wrong
unnoticed. `results` are frozen values, one JSON and one CSV file a suite; `summary`, `plots` and `compare` are made from
them alone. `kernels/` is Triton that is measured and is not part of the library. The command needs torch and Triton only.
"""
