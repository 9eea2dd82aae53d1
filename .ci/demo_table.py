#!/usr/bin/env python3
"""The table that ends make demo.    usage: demo_table.py REPORT.json INSPECT_BEFORE.json BENCH_BEFORE.json
BENCH_AFTER.json"""
import json
import sys

report, inspected, before, after = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:5])
evaluation = report["perplexity"][0]
rows = [
    ("size of the weights, MB", report["source_bytes"] / 1e6, report["output_bytes"] / 1e6, "{:.1f}"),
    ("bits per weight, with embedding and head", inspected["bits_per_weight"], report["bits_per_weight"], "{:.2f}"),
    (
        "bits per weight, without",
        inspected["bits_per_weight_linears"],
        report["bits_per_weight_without_head"],
        "{:.2f}",
    ),
    ("perplexity", evaluation["reference_perplexity"], evaluation["perplexity"], "{:.3f}"),
    ("KL divergence from the original, nats", 0.0, evaluation["kl_mean"], "{:.4f}"),
    ("prefill, tokens per second", before["prefill_tokens_per_second"], after["prefill_tokens_per_second"], "{:.0f}"),
    ("decode, tokens per second", before["decode_tokens_per_second"], after["decode_tokens_per_second"], "{:.0f}"),
]
print(f"\n{'':44}{'before':>12}{'after':>12}")
for name, a, b, form in rows:
    print(f"{name:44}{form.format(a):>12}{form.format(b):>12}")
print(f"\nperplexity: {evaluation['protocol_label']}")
evaluating = report["stage_seconds"]["evaluate"]
print(f"quantizing took {report['seconds'] - evaluating:.0f} s and evaluating both {evaluating:.0f} s,", end=" ")
print(f"with a peak of {report['peak_memory_bytes'] / 2**20:.0f} MiB of memory")
