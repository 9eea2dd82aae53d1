"""The cases of compare_builds.py that run models: every evaluation, by recipe and by command, and other commands."""
import shlex

from compare_case import (
    BERT, FAMILIES, INSTRUCTIONS, MIXTURES, SMALL_IDS, STORIES, TEXTS, WIDE, WIDE_BF16, WIDE_IDS, Case, Step, family,
    recipe, run, speaking
)

STORIES_FILE = "calibration_data/stories.txt"
ISAS = {
    "avx2": "avx2",
    "avxvnni": "avx_vnni",
    "avx512": "avx512f",
    "vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "amx": "amx_int8",
}


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
    yield Case("stories-commands", {}, [
        command(f"generate {STORIES} --prompt 'Once upon a time' --max-tokens 60", "greedy.txt"),
        command(f"generate {STORIES} --prompt Lily --max-tokens 60 --temperature 0.9 --top-k 40 --top-p 0.95 --seed 5 "
                "--kv-bits 8", "drawn.txt"),
        command(f"generate {STORIES} --prompt Lily --max-tokens 20 --attention-bits 8 --json", "generated.json"),
        command(f"tokenize {STORIES} --text {STORIES_FILE}", "ids.txt"),
        command(f"tokenize {STORIES} --text {STORIES_FILE} --no-special-tokens --json", "said-ids.json"),
        command(f"tokenize {STORIES} --text calibration_data/c4.jsonl --windows windows.npy --tokens 100", "wrote.txt"),
        command(f"inspect {STORIES} --json", "inspect.json"),
        command(f"inspect {STORIES}", "inspect.txt"),
        command(f"eval {STORIES} --text {STORIES_FILE} --protocol llama.cpp --context 128 --windows 4 --json",
                "eval.json"),
    ])
    for model in FAMILIES:
        yield Case(f"commands-{model}", {"instructions.json": INSTRUCTIONS}, [
            command(f"generate {speaking(model)} --prompt 'Once upon' --max-tokens 40", "greedy.txt"),
            command(f"generate {speaking(model)} --prompt 'Once upon' --max-tokens 40 --temperature 1 --kv-bits 8",
                    "drawn.txt"),
            command(f"eval {speaking(model)} --text {STORIES_FILE} --context 64 --windows 3 --json", "eval.json"),
            command(f"eval {speaking(model)} --instructions instructions.json --max-new-tokens 12 --prompt-template "
                    f"plain --show --json", "eval-instructions.json"),
            command(f"inspect {speaking(model)} --json", "inspect.json"),
            command(f"verify {speaking(model)}", "verify.txt"),
            command(f"eval {speaking(model)} --instructions instructions.json --max-new-tokens 12 --prompt-template "
                    f"chatml --reference {speaking(model)} --json", "eval-chatml.json")])


def command(words, capture=None, program="pare", **step):
    return Step([*shlex.split(words), "--quiet"], capture, program=program, **step)


def by_command():
    """Every form of eval with each of its options, by both programs, in JSON and in lines."""
    codes = recipe(STORIES, None, ["rtn: {bits: 8, group_size: -1, activations: int8}"])
    encoder = recipe(BERT, None, ["rtn: {bits: 4, group_size: 32}"])
    text, reference = f"--text {STORIES_FILE} --context 128 --windows 3", f"--reference {STORIES}"
    answers = "--instructions instructions.json --max-new-tokens 16"
    for program in ("pare", "pare-runtime"):
        for name, options in (
            ("gptq", f"{text} {reference}"),
            ("llama.cpp", f"--text {STORIES_FILE} --protocol llama.cpp --context 64 --windows 4 {reference}"),
            ("default-context", f"--text {STORIES_FILE} --windows 2"),
            ("jsonl", "--text calibration_data/c4.jsonl --context 100 --windows 3"),
            ("windows", f"--text windows.npy --windows 5 {reference}"),
            ("kv8", f"{text} {reference} --kv-bits 8"),
            ("attention8", f"{text} --attention-bits 8 --no-verify --device cpu"),
        ):
            yield Case(f"{program}-eval-text-{name}", {"recipe.yaml": codes}, [
                Step(["run", "recipe.yaml", "--out", "out"]),
                command(f"tokenize {STORIES} --text {STORIES_FILE} --windows windows.npy --tokens 64", program=program),
                command(f"eval out {options} --json", "eval.json", program),
                command(f"eval out {options}", "lines.txt", program)])
        yield Case(f"{program}-eval-text-fed", {"recipe.yaml": codes}, [
            Step(["run", "recipe.yaml", "--out", "out"]),
            command("eval out --text - --context 200 --windows 2 --json", "eval.json", program, feed=STORIES_FILE)])
        for name, options in (
            ("", answers),
            ("-reference", f"{answers} {reference} --show"),
            ("-examples", f"{answers} --examples 1"),
            ("-plain", f"{answers} --prompt-template plain --no-stem --kv-bits 8"),
            ("-drawn", f"{answers} {reference} --temperature 0.9 --seed 4 --attention-bits 8"),
            ("-jsonl", "--instructions calibration_data/instructions.jsonl --examples 2 --prompt-template plain"),
        ):
            yield Case(f"{program}-eval-instructions{name}",
                       {"recipe.yaml": codes, "instructions.json": INSTRUCTIONS}, [
                           Step(["run", "recipe.yaml", "--out", "out"]),
                           command(f"eval out {options} --json", "eval.json", program),
                           command(f"eval out {options}", "lines.txt", program)])
        for name, model, options in (
            ("", BERT, "--pairs data/pairs.tsv"),
            ("-codes", "out", f"--pairs data/pairs.tsv --reference {BERT}"),
            ("-unscored", "out", f"--pairs unscored.tsv --reference {BERT}"),
        ):
            yield Case(f"{program}-eval-pairs{name}", {"recipe.yaml": encoder, "unscored.tsv": UNSCORED}, [
                Step(["run", "recipe.yaml", "--out", "out"]),
                command(f"eval {model} {options} --json", "eval.json", program),
                command(f"eval {model} {options}", "lines.txt", program)])
        yield Case(f"{program}-checks", {"recipe.yaml": codes}, [
            Step(["run", "recipe.yaml", "--out", "out"]),
            *(command(f"{name} out{form}", f"{name}{end}", program) for name in ("verify", "inspect")
              for form, end in (("", ".txt"), (" --json", ".json")))])


UNSCORED = "the cat sat on a mat.\tthe dog ran.\nthe dog is on the mat.\ta house is a house.\na cat ran.\tthe mat.\n"


def by_recipe():
    """Every evaluation of recipes with each of its options, and the gates."""
    int8 = "rtn: {bits: 8, group_size: -1, activations: int8}"
    texts = ", ".join(f"perplexity: {{{options}}}" for options in (
        f"text: {STORIES_FILE}, context: 128, windows: 3",
        f"text: {STORIES_FILE}, protocol: llama.cpp, context: 64, windows: 4, reference: false",
        "text: calibration_data/c4.jsonl, context: 100, windows: 2, kv_bits: 8",
        f"text: {STORIES_FILE}, context: 100, windows: 2, attention_bits: 8"))
    answers = ", ".join(f"instructions: {{file: instructions.json, max_new_tokens: 16{options}}}" for options in (
        "", ", examples: 1, reference: false",
        ", temperature: 0.8, seed: 3, prompt_template: plain, stem: false"))
    pairs = "embeddings: {pairs: unscored.tsv}, embeddings: {pairs: data/pairs.tsv, reference: false}"
    for name, model, calibration, passes, evaluations, gate in (
        ("perplexity", STORIES, None, [int8], texts, "kl: 1, perplexity_ratio: 1.5"),
        ("perplexity-windows", family("llama_gqa_untied"), None, ["rtn: {bits: 3, group_size: 32}"],
         "perplexity: {text: data/small.npy, windows: 3}, perplexity: {text: data/small.npy}", "kl: 100"),
        ("instructions", STORIES, None, [int8], answers, ""),
        ("embeddings", BERT, TEXTS, ["gptq: {bits: 4, group_size: 32}"], pairs, "cosine: 0.5"),
        ("both", STORIES, None, ["magnitude: {resolve: 0}"], f"{texts}, {answers}", ""),
        ("head", STORIES, None, ["rtn: {bits: 4, group_size: -1}"], texts, "perplexity_ratio: 9"),
        ("experts", family("mixtral_experts"), SMALL_IDS, ["gptq: {bits: 4, group_size: 32}"],
         "perplexity: {text: data/small.npy, windows: 3, kv_bits: 8}", ""),
        ("student", STORIES, None, [f"distill: {{text: {STORIES_FILE}, tokens: 64, total_tokens: 512, validations: 1, "
                                    f"validation_windows: 2}}"], texts, ""),
    ):
        more = f"evaluate: [{evaluations}]" + (f"\nfail_if: {{{gate}}}" if gate else "")
        more += {"head": "\nhead: {bits: 8}", "student": "\nstudent: {layers: 3}"}.get(name, "")
        files = {"recipe.yaml": recipe(model, calibration, passes, more), "instructions.json": INSTRUCTIONS,
                 "unscored.tsv": UNSCORED}
        yield Case(f"evaluate-{name}", files, [Step(["run", "recipe.yaml", "--out", "out"], "lines.txt"),
                                               Step(["run", "recipe.yaml", "--out", "again", "--json"], "said.json")])
    for name, model, evaluation, gate in (
        ("kl", STORIES, f"perplexity: {{text: {STORIES_FILE}, context: 64, windows: 2}}", "kl: 1.0e-6"),
        ("ratio", STORIES, f"perplexity: {{text: {STORIES_FILE}, context: 64, windows: 2}}",
         "kl: 10, perplexity_ratio: 1.001"),
        ("cosine", BERT, "embeddings: {pairs: data/pairs.tsv}", "cosine: 0.99999"),
    ):
        yield Case(f"evaluate-fails-{name}",
                   {"recipe.yaml": recipe(model, None, ["rtn: {bits: 3, group_size: -1}"],
                                          f"evaluate: [{evaluation}]\nfail_if: {{{gate}}}")},
                   [Step(["run", "recipe.yaml", "--out", "out"], "lines.txt", "complaint.txt", status=1)])


def calibrations():
    """What pare calibrate stores, and what rounding each group of layers costs."""
    for name, model, calibration in (
        *((model, family(model), SMALL_IDS) for model in FAMILIES),
        ("experts-all", family("mixtral_experts"), SMALL_IDS.replace("}", ", experts: all}")),
        ("wide", WIDE_BF16, WIDE_IDS),
        ("seed", STORIES, f"{{text: {STORIES_FILE}, samples: 6, tokens: 100, seed: 4}}"),
        ("jsonl", STORIES, "{text: calibration_data/c4.jsonl, samples: 5, tokens: 64}"),
    ):
        yield Case(f"calibrate-{name}", {"recipe.yaml": recipe(model, calibration, [])},
                   [Step(["calibrate", "recipe.yaml", "statistics.h5", "--json", "--quiet"], "said.json")])
    for model in FAMILIES:
        group = -1 if model.startswith("gemma3") else 32
        groups = ', groups: ["*.self_attn.*", "*.experts.*"]' if model in MIXTURES else ""
        yield run(f"sensitivity-{model}", family(model), SMALL_IDS.replace("samples: 24", "samples: 4"),
                  f"gptq: {{bits: 3, group_size: {group}}}",
                  more=f"sensitivity: {{windows: 1, context: 48, sites: int8{groups}}}")
    for name, first in (("fp8", "fp8: {}"), ("llm-int8", "llm_int8: {threshold: 2.0}"), ("awq", "awq: {}")):
        yield run(f"sensitivity-{name}", family("llama_gqa_untied"), SMALL_IDS, first,
                  *(["rtn: {bits: 3, group_size: 32}"] if name == "awq" else []),
                  more='sensitivity: {windows: 1, groups: ["*.self_attn.*", "*.mlp.*"]}')


def explained():
    """What the program says of itself."""
    commands = ("run", "calibrate", "record", "recipes", "import", "eval", "generate", "tokenize", "inspect", "verify",
                "bench")
    yield Case("help", {}, [
        Step(["--help"], "help.txt"), *(Step([name, "--help"], f"help-{name}.txt") for name in commands),
        *(Step(["--generate", form], f"{form}.txt") for form in ("man", "complete-bash", "complete-zsh")),
        Step(["recipes", "--markdown"], "recipes.md"), Step(["recipes", "--json-schema"], "schema.json"),
        Step(["--help"], "runtime.txt", program="pare-runtime"),
        Step(["eval", "--help"], "runtime-eval.txt", program="pare-runtime")])


def evaluated():
    for part in (runtime, by_command, by_recipe, calibrations, explained):
        yield from part()
