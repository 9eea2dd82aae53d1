"""Writes quant.json: codes, scales and zeros of RTN and GPTQ computed by PyTorch in float64.

usage: make_quant.py [OUT.json]        (default: quant.json beside this script; needs torch)

Independent of pare's code: the inverse Hessian is formed and factored as in the paper's own implementation, columns are
rounded one at a time on all rows, nothing is blocked. Weights and inputs are small integers (times a power of two), so
that the file is exact and H = X^T X / n is exact in float32. The seed is the first for which no decision (a code, a
shrink factor, an order of columns) is nearer to a tie than float32 can blur it: the codes must be equal, all of them.
"""

import json
import pathlib
import sys

import torch

OUT, IN, SAMPLES = 24, 64, 256
WEIGHT_UNIT, INPUT_UNIT = 2.0**-20, 2.0**-4
FACTORS = torch.tensor([1.0 - 0.6 * k / 24 for k in range(25)], dtype=torch.float32).tolist()
SEARCH_MARGIN = 1e-5  # relative, of the errors of two shrink factors: 64 float32 terms
TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
CASES = [
    # method, bits, group size (-1: row), symmetric, scales, stored type, act order, damping
    # (a symmetric grid of min-max scales puts the largest weight on a tie, 7.5 scales: make_minmax.py)
    ("rtn", 4, 32, False, "minmax", "BF16", "none", 0.01),
    ("rtn", 4, 32, False, "squared_error", "F16", "none", 0.01),
    ("rtn", 3, 16, True, "hessian_diagonal", "BF16", "none", 0.01),
    ("gptq", 4, 32, True, "hessian_diagonal", "BF16", "static_groups", 0.01),
    ("gptq", 4, 32, True, "minmax", "F16", "none", 0.01),
    ("gptq", 4, 16, False, "hessian_diagonal", "F32", "none", 0.01),
    ("gptq", 3, 16, True, "hessian_diagonal", "BF16", "group", 0.01),
    ("gptq", 2, 32, False, "squared_error", "BF16", "group", 0.1),
    ("gptq", 2, 16, True, "hessian_diagonal", "F16", "static_groups", 0.05),
    ("gptq", 8, -1, True, "hessian_diagonal", "BF16", "static_groups", 0.01),
]


class NearTie(Exception):
    pass


def round_half_even(steps, bits):
    margin = max(3e-5, 2**bits * 1e-6)  # in codes: a few float32 roundings of w / scale after 64 updates
    if ((steps - steps.floor() - 0.5).abs() < margin).any():
        raise NearTie
    return steps.round()


def grid_of_group(w, importance, bits, symmetric, scales, dtype):
    """w [n], importance [n] -> scale, zero (floats)."""
    top = 2**bits - 1
    low, high = min(w.min().item(), 0.0), max(w.max().item(), 0.0)
    candidates = []
    for factor in FACTORS[:1] if scales == "minmax" else FACTORS:
        width = 2 * max(-low, high) if symmetric else high - low
        scale = torch.tensor(width * factor / top, dtype=torch.float32).to(TYPES[dtype]).double()
        zero = (
            torch.tensor(2.0 ** (bits - 1)).double()
            if symmetric
            else round_half_even(-low * factor / scale, bits).clamp(0, top)
        )
        code = ((w / scale).round() + zero).clamp(0, top)
        candidates.append((((scale * (code - zero) - w) ** 2 * importance).sum().item(), scale.item(), zero.item()))
    errors = sorted(c[0] for c in candidates)
    if len(errors) > 1 and errors[1] - errors[0] < SEARCH_MARGIN * errors[0]:
        raise NearTie
    return min(candidates)[1:]


def quantize(W, H, method, bits, group, symmetric, scales, dtype, order, damping):
    top, n = 2**bits - 1, W.shape[1]
    group = n if group == -1 else group
    diagonal = H.diagonal().clone()
    importance = diagonal if scales == "hessian_diagonal" else torch.ones(n, dtype=torch.float64)
    perm = torch.arange(n) if order == "none" else torch.argsort(diagonal, descending=True, stable=True)
    members = [(perm if order == "group" else torch.arange(n))[g : g + group] for g in range(0, n, group)]
    group_of = torch.empty(n, dtype=torch.int64)
    S, Z = torch.empty(len(W), len(members)).double(), torch.empty(len(W), len(members)).double()
    for g, columns in enumerate(members):
        group_of[columns] = g
        for r in range(len(W)):
            S[r, g], Z[r, g] = grid_of_group(W[r, columns], importance[columns], bits, symmetric, scales, dtype)
    codes, W = torch.empty_like(W), W.clone()
    if method == "gptq":
        Hinv = torch.linalg.inv((H + damping * diagonal.mean() * torch.eye(n).double())[perm][:, perm])
        U = torch.linalg.cholesky(Hinv, upper=True)
    else:
        U = torch.eye(n).double()
    for k, column in enumerate(perm.tolist()):
        s, z = S[:, group_of[column]], Z[:, group_of[column]]
        codes[:, column] = (round_half_even(W[:, column] / s, bits) + z).clamp(0, top)
        error = (W[:, column] - s * (codes[:, column] - z)) / U[k, k]
        W[:, perm[k + 1 :]] -= error[:, None] * U[k, k + 1 :]
    return codes, S, Z, group_of


def make(seed):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    W = (normal(OUT, IN) * 60000).round()
    X = normal(SAMPLES, 16) @ normal(16, IN) / 4 + 0.3 * normal(SAMPLES, IN)
    X = (X * 12 * torch.exp(0.6 * normal(IN))).round().clamp(-255, 255)
    gram = X.T @ X
    assert gram.abs().max() < 2**24, "H would not be exact in float32"
    if len(set(gram.diagonal().tolist())) < IN:
        raise NearTie
    weight, hessian = W * WEIGHT_UNIT, gram * INPUT_UNIT**2 / SAMPLES
    cases = []
    for case in CASES:
        codes, S, Z, group_of = quantize(weight, hessian, *case)
        D = (
            torch.gather(S, 1, group_of.expand(OUT, IN)) * (codes - torch.gather(Z, 1, group_of.expand(OUT, IN)))
            - weight
        )
        names = ("method", "bits", "group_size", "symmetric", "scale_search", "scale_dtype", "act_order", "damping")
        cases.append({
            **dict(zip(names, case)),
            "codes": codes.int().flatten().tolist(),
            "scales": S.flatten().tolist(),
            "zeros": Z.int().flatten().tolist(),
            "group_of_column": group_of.tolist(),
            "trace_error": ((D @ hessian) * D).sum().item(),
        })
    return {
        "made_by": "make_quant.py", "torch": torch.__version__.split("+")[0], "seed": seed,
        "num_out": OUT, "num_in": IN, "weight_unit": WEIGHT_UNIT, "hessian_unit": INPUT_UNIT**2 / SAMPLES,
        "weight": W.int().flatten().tolist(), "hessian": gram.int().flatten().tolist(), "cases": cases,
    }  # fmt: skip


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("quant.json")
    for seed in range(1000):
        try:
            golden = make(seed)
        except NearTie:
            continue
        out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(f"{out}: seed {seed}, {out.stat().st_size} bytes")
        return
    sys.exit("no seed below 1000 keeps every decision clear of a tie")


if __name__ == "__main__":
    main()
