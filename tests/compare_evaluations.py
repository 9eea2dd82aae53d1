"""The cases of compare_builds.py that run models: every evaluation, by recipe and by command, and other commands."""
from compare_case import BERT, FAMILIES, STORIES, WIDE, WIDE_BF16, Case, Step, family, recipe

ISAS = {"avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni", "amx": "amx_int8"}


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


def evaluated():
    yield from runtime()
