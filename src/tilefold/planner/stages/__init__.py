"""The decisions of launches, for every operation but folds (`planner.plan`): frozen classes and their consequences.

Nothing here chooses: the modules of `planner` do, and backends read what they chose.
"""
