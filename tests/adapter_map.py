"""Which convenience answers for which OpInfo entry. What is left out, and why:

* complex dtypes (pass `--dtypes` without them): folds take real numbers; torch.view_as_real is the way.
* norm:nuc: a sum of singular values, no fold over elements.
"""

OPS = {
    **{
        name: name
        for name in [
            "sum",
            "prod",
            "mean",
            "amax",
            "amin",
            "argmax",
            "argmin",
            "any",
            "all",
            "logsumexp",
            "var",
            "std",
            "var_mean",
            "std_mean",
            "norm",
            "count_nonzero",
            "aminmax",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
        ]
    },
    **{f"{name}:unbiased": name for name in ("var", "std", "var_mean", "std_mean")},
    **{f"{name}:reduction_{how}": name for name in ("max", "min") for how in ("with_dim", "no_dim")},
    "max:binary": "max",
    "min:binary": "min",
    "norm:fro": "norm",
    "norm:inf": "norm",
    "linalg.vector_norm": "vector_norm",
    "topk": "topk",
    **{
        name: name.split(":")[0]
        for name in ("softmax", "softmax:with_dtype", "log_softmax", "log_softmax:with_dtype")
    },
    **{
        f"nn.functional.{name}": name
        for name in ("layer_norm", "rms_norm", "group_norm", "normalize", "cross_entropy")
    },
}

DTYPES = "float32,float64,float16,bfloat16,int64,int32,int16,int8,uint8,bool"
