"""The public operations, each under its name: validate, make a request, dispatch."""
