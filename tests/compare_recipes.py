"""The cases of compare_builds.py that calibrate, scale and round: every such pass, option, container and kind of model,
on checkpoints small enough for a second each.
"""
import re

from compare_case import (
    BERT, FAMILIES, LONG_IDS, SMALL_IDS, STORIES, STORIES_TEXT, TEXTS, WIDE, WIDE_BF16, WIDE_IDS, Case, Step, family,
    recipe, run
)

SAMPLES = 16  # of the calibration of SmolLM2's recipes: two chunks of H
SMOLLM2 = [
    "gptq-w4g64",
    "awq-gptq-w4g64",
    "rtn-w4g64",
    "smoothquant-w8a8",
    "llm-int8-asymmetric",
    "gptq-w4g64-asymmetric",
]


def grids():
    """Every width with every group and either symmetry. A run starts in a third of a second whatever it does, so that a
    grid for each of the 14 linears in one run is much cheaper than a run for each grid."""
    linears = [f"model.layers.{block}.{part}_proj" for block in (0, 1) for part in
               ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")]
    every = [
        (bits, group, symmetric)
        for symmetric in ("true", "false")
        for bits in (2, 3, 4, 8)
        for group in (32, 64, 128, -1)
    ]

    def overrides(part, groups=(32, 64, 128, -1)):
        fitting = [grid for grid in every if grid[1] in groups]
        return (
            " layers: {override: {"
            + ", ".join(
                '"%s": {bits: %d, group_size: %d, symmetric: %s}'
                % (name, *fitting[5 * (i + len(linears) * part) % len(fitting)])
                for i, name in enumerate(linears)
            )
            + "}}"
        )

    for first, search in enumerate(("minmax", "squared_error", "hessian_diagonal", "hessian")):
        for part in (0, 1):
            yield run(f"rtn-grids-{search}-{part}", WIDE, WIDE_IDS if "hessian" in search else None,
                      f"rtn: {{scales: {search}}}" + overrides(first + part))
    for order in ("static", "none", "group"):
        for part in (0, 1):
            yield run(
                f"gptq-grids-{order}-{part}",
                WIDE,
                WIDE_IDS,
                f"gptq: {{act_order: {order}}}"
                + overrides(part, (32, 64, 128) if order == "group" else (32, 64, 128, -1)),
            )
    for bits, group, symmetric in ((2, 32, "false"), (3, 128, "true"), (4, -1, "false"), (8, 64, "true")):
        options = f"bits: {bits}, group_size: {group}, symmetric: {symmetric}"
        yield run(f"rtn-w{bits}g{group}", WIDE, None, f"rtn: {{{options}}}")
        yield run(f"gptq-w{bits}g{group}", WIDE_BF16, WIDE_IDS, f"gptq: {{{options}}}")


def rounding():
    yield run("rtn-w8-per-tensor", WIDE, None, "rtn: {bits: 8, group_size: -1, per_tensor: true}")
    yield run("rtn-w8-per-tensor-asymmetric", WIDE, WIDE_IDS,
              "rtn: {bits: 8, group_size: -1, per_tensor: true, symmetric: false, scales: hessian_diagonal}")
    yield run("rtn-refine", WIDE, WIDE_IDS, "rtn: {bits: 3, group_size: 64, scales: hessian, refine: 3}")
    yield run(
        "rtn-refine-asymmetric", WIDE_BF16, WIDE_IDS, "rtn: {bits: 4, group_size: 32, symmetric: false, refine: 2}"
    )
    yield run("gptq-long", WIDE, LONG_IDS, "gptq: {bits: 4, group_size: 64}")
    yield run("gptq-wide-bf16", WIDE_BF16, LONG_IDS, "gptq: {bits: 4, group_size: 128}")
    for block in (1, 32, 100, 4096):
        yield run(f"gptq-block{block}", WIDE, WIDE_IDS, f"gptq: {{bits: 4, group_size: 64, block_size: {block}}}")
    for damping in ("1.0e-9", "0.001", "0.5"):  # the first is raised: 256 tokens do not determine 384 columns
        yield run(f"gptq-damping{damping}", WIDE, "{text: data/wide.npy, samples: 1, tokens: 256}",
                  f"gptq: {{bits: 4, group_size: 64, damping: {damping}}}")
    for sweeps in (0, 1, 9):
        yield run(f"gptq-refine{sweeps}", WIDE, WIDE_IDS, f"gptq: {{bits: 3, group_size: 64, refine: {sweeps}}}")
    yield run(
        "gptq-refine0-group-order",
        WIDE,
        WIDE_IDS,
        "gptq: {bits: 3, group_size: 32, refine: 0, act_order: group, symmetric: false}",
    )
    for search in ("minmax", "squared_error", "hessian"):
        yield run(f"gptq-{search}", WIDE, WIDE_IDS, f"gptq: {{bits: 4, group_size: 64, scales: {search}}}")
    yield run("gptq-per-tensor", WIDE, WIDE_IDS, "gptq: {bits: 8, group_size: -1, per_tensor: true}")
    yield run(
        "gptq-overrides",
        WIDE,
        WIDE_IDS,
        'gptq: {bits: 3, group_size: 64} layers: {exclude: ["*.k_proj", "model.layers.1.self_attn.o_proj"], override: '
        '{"*.down_proj": {group_size: -1}, "model.layers.0.*": {bits: 8, symmetric: false}, "*.up_proj": {activations: '
        'int8}, '
        '"*.gate_proj": {activations: int8}}}',
    )
    yield run(
        "rtn-overrides",
        WIDE,
        None,
        'rtn: {bits: 4} layers: {exclude: ["*.v_proj"], override: {"*.0.*": {bits: 2}, "*.o_proj": '
        '{group_size: 32, symmetric: false}}}',
    )
    for bits, group in ((8, -1), (8, 64), (4, 32), (2, -1)):
        yield run(
            f"head-w{bits}g{group}",
            WIDE,
            None,
            "rtn: {bits: 4, group_size: 64}",
            more=f"head: {{bits: {bits}, group_size: {group}}}",
        )
    yield run("head-alone", family("llama3_rope_tied"), None, more="head: {bits: 8}")
    yield run(
        "head-gptq-tied",
        family("qwen2_biases_tied"),
        SMALL_IDS,
        "gptq: {bits: 4, group_size: 32}",
        more="head: {bits: 4, group_size: 32}",
    )
    yield run(
        "spilled-inputs",
        WIDE,
        "{text: data/many.npy, samples: 128, tokens: 256}",
        "gptq: {bits: 4, group_size: 64}",
        spill="inputs",
    )
    yield run(
        "spilled-all",
        WIDE,
        "{text: data/many.npy, samples: 128, tokens: 256}",
        "gptq: {bits: 4, group_size: 64}",
        spill="all",
    )


def inputs():
    """Rounded inputs, and the passes that prepare for them."""
    formats = {"token": "int8", "token-asymmetric": "{symmetric: false}", "tensor": "{range: tensor}",
               "tensor-asymmetric": "{range: tensor, symmetric: false}", "static": "{range: static}",
               "static-asymmetric": "{range: static, symmetric: false}"}
    for name, form in formats.items():
        yield run(f"w8a8-{name}", WIDE, WIDE_IDS, f"gptq: {{bits: 8, group_size: -1, activations: {form}}}")
        yield run(f"a8-alone-{name}", WIDE, WIDE_IDS if "static" in name else None, f"activations: {form}")
    yield run("a8-alone-exclude", WIDE_BF16, None, 'activations: int8 layers: {exclude: ["*.down_proj"]}')
    yield run("w4a8", WIDE, WIDE_IDS, "gptq: {bits: 4, group_size: 32, activations: int8}")
    yield run("w8a8-rtn", WIDE, None, "rtn: {bits: 8, group_size: -1, activations: int8}")
    yield run(
        "w8a8-per-tensor-static",
        WIDE,
        WIDE_IDS,
        "gptq: {bits: 8, group_size: -1, per_tensor: true, activations: {range: static}}",
    )
    for name, model, options in (
        ("", WIDE, "{}"),
        ("-per-tensor", WIDE, "{per_tensor: true}"),
        ("-tensor", WIDE, "{activations: {range: tensor}}"),
        ("-static", WIDE_BF16, "{activations: {range: static}}"),
        ("-weights", WIDE, "{activations: none}"),
        ("-per-tensor-static", family("gemma3_local_global"), "{per_tensor: true, activations: {range: static}}"),
        ("-fp16", family("llama_sharded_fp16"), "{}"),
    ):
        ids = SMALL_IDS if "families" in model else WIDE_IDS
        yield run(f"fp8{name}", model, ids if "static" in options else None, f"fp8: {options}")
    yield run("fp8-exclude", WIDE, None, 'fp8: {} layers: {exclude: ["*.1.mlp.*"]}')
    for name, options in (
        ("", "{threshold: 6.0}"),
        ("-low-threshold", "{threshold: 2.0}"),
        ("-own", "{threshold: 2.0, layout: pare}"),
        ("-static", "{threshold: 4.0, outliers: static}"),
        ("-rms", "{measure: rms, threshold: 3.0}"),
        ("-rms-static", "{measure: rms, threshold: 8.0, outliers: static}"),
        ("-median", "{measure: median, threshold: 2.0}"),
        ("-median-static", "{measure: median, threshold: 2.0, outliers: static}"),
        ("-asymmetric", "{activations: {symmetric: false}}"),
        ("-static-asymmetric", "{threshold: 4.0, outliers: static, activations: {symmetric: false}}"),
    ):
        yield run(
            f"llm-int8{name}",
            WIDE,
            WIDE_IDS if "static" in options or "median" in options else None,
            f"llm_int8: {options}",
        )
    for model in ("llama_sharded_fp16", "qwen3_norms_bf16", "qwen2_biases_tied"):
        yield run(f"llm-int8-{model}", family(model), SMALL_IDS, "llm_int8: {threshold: 1.5}")
        yield run(
            f"llm-int8-static-{model}",
            family(model),
            SMALL_IDS,
            "llm_int8: {measure: rms, threshold: 2.0, outliers: static}",
        )


def scaling():
    yield run("awq-rtn", WIDE, WIDE_IDS, "awq: {}", "rtn: {bits: 4, group_size: 64}")
    yield run(
        "awq-rtn-minmax-asymmetric",
        WIDE,
        WIDE_IDS,
        "awq: {}",
        "rtn: {bits: 4, group_size: 32, symmetric: false, scales: minmax}",
    )
    yield run("awq-gptq", WIDE, LONG_IDS, "awq: {}", "gptq: {bits: 4, group_size: 64}")
    yield run("awq-gptq-w3-bf16", WIDE_BF16, WIDE_IDS, "awq: {}", "gptq: {bits: 3, group_size: 128}")
    yield run(
        "awq-no-duo", WIDE, WIDE_IDS, "awq: {duo_scaling: false, grid_points: 5}", "gptq: {bits: 3, group_size: 64}"
    )
    yield run(
        "awq-exclude",
        WIDE,
        WIDE_IDS,
        'awq: {grid_points: 7} layers: {exclude: ["*.o_proj"]}',
        'gptq: {bits: 4} layers: {exclude: ["*.0.mlp.up_proj"]}',
    )
    yield run("awq-a8", WIDE, WIDE_IDS, "awq: {}", "gptq: {bits: 8, group_size: -1, activations: int8}")
    for alpha in ("{}", "{alpha: 0}", "{alpha: 0.5}", "{alpha: 1}"):
        name = re.sub(r"\W+", "", alpha) or "searched"
        yield run(
            f"smoothquant-{name}",
            WIDE,
            WIDE_IDS,
            f"smoothquant: {alpha}",
            "gptq: {bits: 8, group_size: -1, activations: int8}",
        )
    yield run(
        "smoothquant-rtn", WIDE_BF16, WIDE_IDS, "smoothquant: {}", "rtn: {bits: 8, group_size: -1, activations: int8}"
    )
    yield run(
        "smoothquant-static",
        WIDE,
        WIDE_IDS,
        "smoothquant: {}",
        "gptq: {bits: 8, group_size: -1, per_tensor: true, activations: {range: static}}",
    )
    yield run("smoothquant-tensor-asymmetric", WIDE, LONG_IDS, "smoothquant: {alpha: 0.8}",
              "rtn: {bits: 8, group_size: -1, activations: {range: tensor, symmetric: false}}")
    yield run(
        "smoothquant-down16",
        WIDE,
        WIDE_IDS,
        'smoothquant: {} layers: {exclude: ["*.v_proj"]}',
        'gptq: {bits: 8, group_size: -1, activations: {symmetric: false}} layers: {override: {"*.down_proj": '
        '{activations: none}}}',
    )
    for model in FAMILIES[1:7]:
        yield run(f"awq-{model}", family(model), SMALL_IDS, "awq: {}", "gptq: {bits: 4, group_size: 32}")
        if model not in ("llama3_rope_tied", "mistral_window"):
            yield run(f"smoothquant-{model}", family(model), SMALL_IDS, "smoothquant: {}",
                      "rtn: {bits: 8, group_size: -1, activations: int8}")
    yield run("awq-gemma3", family("gemma3_local_global"), SMALL_IDS, "awq: {}", "rtn: {bits: 4, group_size: -1}")
    yield run("awq-gemm", WIDE, None, "rtn: {bits: 4, group_size: 32}", more="container: awq-gemm")
    yield run(
        "awq-gemm-awq-gptq",
        WIDE_BF16,
        WIDE_IDS,
        "awq: {}",
        "gptq: {bits: 4, group_size: 128}",
        more="container: awq-gemm",
    )
    yield run(
        "awq-gemm-asymmetric",
        family("qwen2_biases_tied"),
        SMALL_IDS,
        "awq: {}",
        'rtn: {bits: 4, group_size: 32, symmetric: false} layers: {exclude: ["*.0.mlp.down_proj"]}',
        more="container: awq-gemm",
    )


def models():
    for model in FAMILIES:
        group = -1 if model.startswith("gemma3") else 32
        yield run(f"gptq-{model}", family(model), SMALL_IDS, f"gptq: {{bits: 4, group_size: {group}}}")
        if model in ("llama_sharded_fp16", "gemma3_local_global", "mixtral_experts"):
            yield run(f"rtn-{model}", family(model), None, f"rtn: {{bits: 3, group_size: {group}, scales: minmax}}")
    for model in ("llama_gqa_untied", "gemma3_local_global", "qwen2_biases_tied", "qwen3_norms_bf16"):
        yield Case(f"import-{model}", {}, [Step(["import", f"tests/golden/gguf/{model}.gguf", "out"])])

    w1, gate = '["*.experts.*.w1"]', '["*.experts.*.gate_proj"]'
    for tokens in ("routed", "all"):
        ids = SMALL_IDS.replace("}", f", experts: {tokens}}}")
        yield run(f"experts-{tokens}-mixtral", family("mixtral_experts"), ids, "gptq: {bits: 3, group_size: 32}")
        yield run(
            f"experts-{tokens}-fused-w8a8",
            family("qwen3_moe_fused"),
            ids,
            "gptq: {bits: 8, group_size: -1, activations: {range: static}}",
        )
        yield run(f"experts-{tokens}-starved", "data/starved", ids, "gptq: {bits: 4, group_size: 32}")
    yield run(
        "experts-awq",
        family("mixtral_experts"),
        SMALL_IDS,
        f"awq: {{}} layers: {{exclude: {w1}}}",
        "gptq: {bits: 4, group_size: 32}",
    )
    yield run(
        "experts-awq-bf16",
        family("qwen3_moe_dense_block_bf16"),
        SMALL_IDS,
        f"awq: {{}} layers: {{exclude: {gate}}}",
        "gptq: {bits: 4, group_size: -1}",
    )
    yield run(
        "experts-smoothquant",
        family("mixtral_experts"),
        SMALL_IDS,
        f"smoothquant: {{}} layers: {{exclude: {w1}}}",
        "rtn: {bits: 8, group_size: -1, activations: int8}",
    )
    yield run(
        "experts-llm-int8",
        family("qwen3_moe_fused"),
        SMALL_IDS,
        "llm_int8: {measure: rms, threshold: 2.0, outliers: static}",
    )
    yield run("experts-fp8", family("qwen3_moe_dense_block_bf16"), None, "fp8: {}")

    for name, calibration, *passes in (
        ("w8a32", None, "rtn: {bits: 8, group_size: -1}"),
        ("w32a8", None, "activations: int8"),
        ("w8a8", TEXTS, "gptq: {bits: 8, group_size: -1, activations: int8}"),
        ("w8a8-static", TEXTS, "gptq: {bits: 8, group_size: -1, activations: {range: static, symmetric: false}}"),
        ("w8a8-tensor", None, "rtn: {bits: 8, group_size: -1, activations: {range: tensor}}"),
        ("a8-static", TEXTS, "activations: {range: static}"),
        ("gptq4", TEXTS, "gptq: {bits: 4, group_size: 32}"),
        (
            "gptq3",
            TEXTS,
            'gptq: {bits: 3, group_size: 32, act_order: none, symmetric: false} layers: {exclude: ["*.attention.*"]}',
        ),
        ("rtn-hessian", TEXTS, "rtn: {bits: 4, group_size: 32, scales: hessian, refine: 2}"),
        ("fp8", None, "fp8: {}"),
        ("llm-int8", None, "llm_int8: {layout: pare}"),
        ("llm-int8-static", TEXTS, "llm_int8: {threshold: 2.0, outliers: static}"),
    ):
        yield run(f"encoder-{name}", BERT, calibration, *passes)


def surveys():
    yield run(
        "stories-gptq",
        STORIES,
        STORIES_TEXT,
        'gptq: {bits: 4, group_size: 32} layers: {override: {"*.down_proj": {group_size: -1}}}',
    )
    yield run(
        "stories-seed",
        STORIES,
        STORIES_TEXT.replace("}", ", seed: 7}"),
        "gptq: {bits: 3, group_size: -1}",
        more="head: {bits: 8}",
    )
    yield run(
        "stories-jsonl",
        STORIES,
        "{text: calibration_data/c4.jsonl, samples: 4, tokens: 200}",
        "awq: {}",
        "gptq: {bits: 4, group_size: -1}",
    )
    text = "sensitivity: {windows: 2}"
    yield run("sensitivity", family("llama_gqa_untied"), SMALL_IDS, "gptq: {bits: 3, group_size: 32}", more=text)
    yield run(
        "sensitivity-text",
        STORIES,
        None,
        "rtn: {bits: 3, group_size: -1, scales: minmax, activations: {range: tensor, symmetric: false}}",
        more="sensitivity: {text: calibration_data/stories.txt, context: 64, windows: 2}",
    )
    yield run("sensitivity-groups", family("qwen3_moe_dense_block_bf16"), SMALL_IDS, "gptq: {bits: 4, group_size: 32}",
              more='sensitivity: {windows: 2, groups: ["*.self_attn.*", "*.experts.*"]}')
    yield run(
        "sensitivity-sites",
        family("llama_gqa_untied"),
        SMALL_IDS,
        "rtn: {bits: 8, group_size: -1, activations: int8}",
        more='sensitivity: {windows: 2, groups: ["*.down_proj", "*"], sites: {symmetric: false}}',
    )
    for bits in (3, 4.5, 9):
        yield run(
            f"budget-{bits}",
            family("llama_gqa_untied"),
            SMALL_IDS,
            "gptq: {}",
            more=f"budget: {{bits: {bits}}}\n{text}",
        )
    yield run("budget-wide", WIDE, WIDE_IDS, "gptq: {}", more="budget: {bits: 4.25}\nsensitivity: {windows: 1}")
    yield run("budget-awq", family("llama_gqa_untied"), SMALL_IDS, "awq: {}", "gptq: {symmetric: false}",
              more="budget: {bits: 4, allow: [2, 4, 8]}\nsensitivity: {windows: 2, context: 16}")
    yield run("budget-size", family("llama_gqa_untied"), SMALL_IDS, "rtn: {scales: hessian}",
              more=f"head: {{bits: 8}}\nbudget: {{size: 90kB, allow: [4, 8]}}\n{text}")

    statistics = "{statistics: statistics.h5}"
    for name, model, calibration, passes, more in (
        ("gptq", WIDE, LONG_IDS, ["gptq: {bits: 4, group_size: 64}"], ""),
        ("awq", WIDE_BF16, WIDE_IDS, ["awq: {}", "gptq: {bits: 4, group_size: 64}"], ""),
        (
            "smoothquant",
            WIDE,
            WIDE_IDS,
            ["smoothquant: {}", "rtn: {bits: 8, group_size: -1, activations: {range: static}}"],
            "",
        ),
        ("llm-int8", WIDE, WIDE_IDS, ["llm_int8: {threshold: 4.0, outliers: static}"], ""),
        (
            "budget",
            family("llama_gqa_untied"),
            SMALL_IDS,
            ["gptq: {}"],
            "budget: {bits: 4}\nsensitivity: {text: data/small.npy, windows: 2}",
        ),
        ("starved", "data/starved", SMALL_IDS, ["gptq: {bits: 4, group_size: 32}"], ""),
        ("gemma3", family("gemma3_local_global"), SMALL_IDS, ["gptq: {bits: 8, group_size: -1}"], ""),
    ):
        yield Case(
            f"statistics-{name}",
            {"calibrate.yaml": recipe(model, calibration, []), "recipe.yaml": recipe(model, statistics, passes, more)},
            [Step(["calibrate", "calibrate.yaml", "statistics.h5"]), Step(["run", "recipe.yaml", "--out", "out"])],
        )


def rounded():
    for part in (grids, rounding, inputs, scaling, models, surveys):
        yield from part()


def smollm2(recipes, samples):
    """The published recipes without their evaluations, comments and places; `samples` windows of calibration."""
    for name in SMOLLM2:
        kept, skips = [], False
        for line in (recipes / f"smollm2-{name}.yaml").read_text().splitlines():
            if not line[:1].isspace():
                skips = line.startswith(("evaluate:", "fail_if:", "output:", "#"))
            if not skips:
                kept.append(re.sub(r"samples: \d+", f"samples: {samples}", line))
        yield Case(
            f"smollm2-{name}-{samples}",
            {"recipe.yaml": "\n".join(kept) + "\n"},
            [Step(["run", "recipe.yaml", "--out", "out"])],
        )
