"""What compare_builds.py runs: every pass, option, container and kind of model, on checkpoints small enough for a
second each.

Paths in recipes are relative to the folder a case runs in, which links tests, calibration_data, models and data (made
here).
"""
import array
import json
import pathlib
import random
import re
import struct
from typing import NamedTuple, Optional


class Step(NamedTuple):
    words: list  # the command without the program and without --threads
    capture: Optional[str] = None  # standard output becomes this file
    spill: Optional[str] = None  # "inputs", "all": with a --max-memory that spills so
    needs_cpu: Optional[str] = None  # a flag of /proc/cpuinfo; left out without it


class Case(NamedTuple):
    name: str
    files: dict  # name -> text, there before the first step
    steps: list


SAMPLES = 16  # of the calibration of SmolLM2's recipes: two chunks of H
SMOLLM2 = [
    "gptq-w4g64",
    "awq-gptq-w4g64",
    "rtn-w4g64",
    "smoothquant-w8a8",
    "llm-int8-asymmetric",
    "gptq-w4g64-asymmetric",
]
FAMILIES = [
    "llama_gqa_untied",
    "llama3_rope_tied",
    "llama_mqa_biases",
    "llama_sharded_fp16",
    "mistral_window",
    "qwen2_biases_tied",
    "qwen3_norms_bf16",
    "gemma3_local_global",
    "mixtral_experts",
    "qwen3_moe_dense_block_bf16",
    "qwen3_moe_fused",
]
ISAS = {"avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni", "amx": "amx_int8"}

WIDE, WIDE_BF16 = "data/wide", "data/wide_bf16"
WIDE_IDS = "{text: data/wide.npy, samples: 6, tokens: 256}"
LONG_IDS = "{text: data/long.npy, samples: 18, tokens: 256}"  # more tokens than one chunk of H
SMALL_IDS = "{text: data/small.npy, samples: 24, tokens: 64}"
TEXTS = "{text: data/texts.txt, samples: 40}"
STORIES, STORIES_TEXT = "calibration_data/stories260k", "{text: calibration_data/stories.txt, samples: 8, tokens: 128}"
BERT = "tests/golden/encoders/bert_tiny"


def family(name):
    return f"tests/golden/families/{name}"


def recipe(model, calibration, passes, more=""):
    lines = [f"model: {model}"] + ([f"calibration: {calibration}"] if calibration else [])
    if passes:
        lines += ["passes:"] + ["  - " + item.replace(" layers:", "\n    layers:") for item in passes]
    return "\n".join(lines) + "\n" + (more + "\n" if more else "")


def run(name, model, calibration, *passes, more="", spill=None):
    return Case(name, {"recipe.yaml": recipe(model, calibration, passes, more)},
                [Step(["run", "recipe.yaml", "--out", "out"], spill=spill)])


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


def runtime():
    """What the runtime makes of artifacts, with every kernel of this machine."""
    wide = (
        ("dense", WIDE_BF16, None),
        ("w4", WIDE, "rtn: {bits: 4, group_size: 64}"),
        ("w3", WIDE, "rtn: {bits: 3, group_size: 32, symmetric: false}"),
        ("w2", WIDE, "rtn: {bits: 2, group_size: -1}"),
        ("w8", WIDE, "rtn: {bits: 8, group_size: -1}"),
        ("w8a8", WIDE, "rtn: {bits: 8, group_size: -1, activations: int8}"),
        ("w4a8", WIDE, "rtn: {bits: 4, group_size: 64, activations: {range: tensor, symmetric: false}}"),
        ("fp8", WIDE, "fp8: {}"),
        ("llm-int8", WIDE, "llm_int8: {measure: rms, threshold: 3.0, activations: {symmetric: false}}"),
    )
    for name, model, rounding_pass in wide:
        head = "" if "llm_int8" in (rounding_pass or "") else "head: {bits: 8}"
        files = {"recipe.yaml": recipe(model, None, [rounding_pass], head)} if rounding_pass else {}
        steps = [Step(["run", "recipe.yaml", "--out", "out"])] if rounding_pass else []
        evaluation = [
            "eval",
            "out" if rounding_pass else model,
            "--text",
            "data/wide.npy",
            "--windows",
            "2",
            "--json",
            "--quiet",
        ]
        steps += [Step(evaluation + ["--isa", isa], f"eval-{isa}.json", needs_cpu=flag) for isa, flag in ISAS.items()]
        yield Case(f"eval-{name}", files, steps)
    for model in FAMILIES:
        base = ["eval", family(model), "--text", "data/small.npy", "--windows", "4", "--json", "--quiet"]
        yield Case(f"eval-{model}", {}, [Step(base + ["--kv-bits", "8", "--reference", family(model)], "eval-kv8.json"),
                                         Step(base + ["--attention-bits", "8"], "eval-attention8.json")])
    yield Case(
        "eval-encoder",
        {"recipe.yaml": recipe(BERT, None, ["rtn: {bits: 8, group_size: -1, activations: int8}"])},
        [
            Step(["run", "recipe.yaml", "--out", "out"]),
            Step(["eval", "out", "--pairs", "data/pairs.tsv", "--reference", BERT, "--json", "--quiet"], "eval.json"),
        ],
    )
    yield Case(
        "stories-commands",
        {},
        [
            Step(["generate", STORIES, "--prompt", "Once upon a time", "--max-tokens", "60", "--quiet"], "greedy.txt"),
            Step(
                [
                    "generate",
                    STORIES,
                    "--prompt",
                    "Lily",
                    "--max-tokens",
                    "60",
                    "--temperature",
                    "0.9",
                    "--top-k",
                    "40",
                    "--top-p",
                    "0.95",
                    "--seed",
                    "5",
                    "--kv-bits",
                    "8",
                    "--quiet",
                ],
                "drawn.txt",
            ),
            Step(["tokenize", STORIES, "--text", "calibration_data/stories.txt", "--quiet"], "ids.txt"),
            Step(["inspect", STORIES, "--json", "--quiet"], "inspect.json"),
            Step(
                [
                    "eval",
                    STORIES,
                    "--text",
                    "calibration_data/stories.txt",
                    "--protocol",
                    "llama.cpp",
                    "--context",
                    "128",
                    "--windows",
                    "4",
                    "--json",
                    "--quiet",
                ],
                "eval.json",
            ),
        ],
    )


def small():
    for part in (grids, rounding, inputs, scaling, models, surveys, runtime):
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


# --- models and texts ---


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata, in the file's order."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", None)
    start = 8 + length
    return {name: (item["dtype"], item["shape"], data[start + item["data_offsets"][0]:start + item["data_offsets"][1]])
            for name, item in header.items()}, metadata


def write_safetensors(path, tensors, metadata=None):
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write_ids(path, generator, num_windows, num_tokens, vocabulary):
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({num_windows}, {num_tokens}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    # Low ids more often, as words have it: experts and channels are not used alike.
    ids = array.array("i", (int(vocabulary * generator.random() ** 2) for _ in range(num_windows * num_tokens)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + ids.tobytes())


def write_wide(folder, root, generator, dtype):
    """Two llama blocks of width 256 and 384: groups of 128, several tiles and GPTQ blocks; three outlier channels and a
    dead one."""
    width, inner, keys, vocabulary = 256, 384, 128, 512
    config = json.loads((root / family("llama_gqa_untied") / "config.json").read_text())
    config |= {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype],
    }
    tensors = {}

    def add(name, shape, values):
        numbers = array.array("f", values)
        data = numbers.tobytes() if dtype == "F32" else array.array("H", numbers.tobytes())[1::2].tobytes()
        tensors[name] = (dtype, shape, data)

    def matrix(name, num_out, num_in, scale):
        add(
            name,
            [num_out, num_in],
            (scale * (generator.random() + generator.random() - 1) for _ in range(num_out * num_in)),
        )

    def norm(name, dead=()):
        add(
            name,
            [width],
            (
                0.0 if i in dead else (16.0 if i in (5, 77, 130) else 1.0) * (0.8 + 0.4 * generator.random())
                for i in range(width)
            ),
        )

    matrix("model.embed_tokens.weight", vocabulary, width, 1.0)
    for block in ("model.layers.0.", "model.layers.1."):
        norm(block + "input_layernorm.weight")
        for name, num_out in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            matrix(f"{block}self_attn.{name}_proj.weight", num_out, width, 2.0 / width ** 0.5)
        norm(block + "post_attention_layernorm.weight", dead=(9,) if block.endswith("1.") else ())
        for name in ("gate", "up"):
            matrix(f"{block}mlp.{name}_proj.weight", inner, width, 2.0 / width ** 0.5)
        matrix(block + "mlp.down_proj.weight", width, inner, 2.0 / inner ** 0.5)
    norm("model.norm.weight")
    matrix("lm_head.weight", vocabulary, width, 2.0 / width ** 0.5)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors", tensors)


def write_data(folder, root):
    """The same bytes each time."""
    generator = random.Random(20240607)
    write_wide(folder / "wide", root, generator, "F32")
    write_wide(folder / "wide_bf16", root, generator, "BF16")
    write_ids(folder / "wide.npy", generator, 6, 256, 512)
    write_ids(folder / "long.npy", generator, 18, 256, 512)
    write_ids(folder / "many.npy", generator, 128, 256, 512)
    write_ids(folder / "small.npy", generator, 24, 64, 128)

    # One expert for each token; the fourth has the first one's router row, and the lower index is taken: it sees
    # nothing.
    source = root / family("mixtral_experts")
    config = json.loads((source / "config.json").read_text()) | {"num_experts_per_tok": 1}
    tensors, _ = read_safetensors(source / "model.safetensors")
    dtype, shape, router = tensors["model.layers.0.block_sparse_moe.gate.weight"]
    row = len(router) // shape[0]
    tensors["model.layers.0.block_sparse_moe.gate.weight"] = (dtype, shape, router[:-row] + router[:row])
    (folder / "starved").mkdir()
    (folder / "starved" / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "starved" / "model.safetensors", tensors)

    words = ["the", "cat", "sat", "on", "mat", "dog", "ran", "a", "is", "of", "house"]

    def sentence():
        return (
            " ".join(generator.choices(words, k=generator.randint(3, 14)))
            + " "
            + generator.choice("abcdefghijklmnopqrstuvwxyz")
            + "."
        )

    (folder / "texts.txt").write_text("".join(sentence() + "\n" for _ in range(60)))
    (folder / "pairs.tsv").write_text("".join(f"{sentence()}\t{sentence()}\t{i % 5}\n" for i in range(20)))
