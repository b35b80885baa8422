"""The decisions of launches; those of most folds are `planner.plan.Stage`: frozen classes and their consequences.

Nothing here chooses: the modules of `planner` do, and backends read what they chose.
"""
