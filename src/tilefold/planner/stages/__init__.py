"""What launches decide, of every operation but folds (`planner.plan`): frozen classes, and what follows from them alone.

Nothing here chooses: the modules of `planner` do, and backends read what they chose.
"""
