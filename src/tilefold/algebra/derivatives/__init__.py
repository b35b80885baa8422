"""Derivatives of graphs, as graphs: of one operation, of a function, and of a fold with a monoid.

linear     arithmetic of cotangents: what is surely 0 stays out of every product
rules      the cotangents of each operation's operands
pullback   the vector-Jacobian product of a graph
folds      of which values the gradient of a fold is made, and how
"""
