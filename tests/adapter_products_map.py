"""Which function of adapter_products.py answers for which OpInfo entry. What is left out, and why:

* integers: `tilefold.matmul` takes int8 and gives int32, where torch gives int8 and wraps.
* complex dtypes: products take real numbers.
"""

OPS = {**{name: name for name in ("mm", "bmm", "mv", "matmul", "addmm")}, "nn.functional.linear": "linear"}
