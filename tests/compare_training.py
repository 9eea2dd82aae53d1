"""The cases of compare_builds.py that train, prune, make students and record teachers, a few steps each.

Trainings are compared at each number of threads alone, since their bits depend on it. All else here must not.
"""
from compare_case import (
    FAMILIES, INSTRUCTIONS, MIXTURES, PROMPTS, SMALL_IDS, STORIES, WIDE, WIDE_BF16, WIDE_IDS, Case, Step, family,
    recipe, run, speaking
)

LLAMA = family("llama_gqa_untied")
STORIES_FILE = "calibration_data/stories.txt"
SHORT_STORIES = "{text: calibration_data/stories.txt, samples: 8, tokens: 64}"
SHORT_IDS = SMALL_IDS.replace("samples: 24", "samples: 8")
FIRST_LAYER = "student: {layers: 1, choose: first}"
# Forward passes in float32 show a change that bfloat16 would round away; other cases leave the precision to pare.
IN_FLOAT32 = "precision: float32, learning_rate: 1.0e-3"
FOUR_STEPS = "text: data/small.npy, total_tokens: 1024, validations: 2, validation_windows: 4"


def distill(options, base=FOUR_STEPS):
    return f"distill: {{{base}, {options}}}" if options else f"distill: {{{base}}}"


def losses():
    """Every loss with its options, from a live teacher."""
    for name, options in (
        ("hard-label", "loss: hard_label"),
        ("soft-label", "loss: soft_label"),
        ("soft-label-cross-entropy",
         "loss: soft_label, soft_form: cross_entropy, label_weight: 0.7, temperature: 2"),
        ("forward-kl", "loss: forward_kl"),
        ("forward-kl-temperature", "loss: forward_kl, temperature: 3"),
        ("reverse-kl", "loss: reverse_kl, temperature: 1.5"),
        ("jensen-shannon", "loss: jensen_shannon"),
        ("jensen-shannon-beta", "loss: jensen_shannon, beta: 0.2, temperature: 2"),
        ("jensen-shannon-beta0", "loss: jensen_shannon, beta: 0"),
        ("jensen-shannon-beta1", "loss: jensen_shannon, beta: 1"),
        ("skew-kl", "loss: skew_kl"),
        ("skew-kl-share", "loss: skew_kl, skew: 0.4, temperature: 2"),
        ("skew-reverse-kl", "loss: skew_reverse_kl, skew: 0.3"),
        ("total-variation", "loss: total_variation"),
        ("slim", "loss: slim"),
        ("slim-share", "loss: slim, slim_share: 0.3, slim_weight: 2, temperature: 2"),
    ):
        yield run(f"distill-{name}", LLAMA, None, distill(f"{IN_FLOAT32}, {options}"), more=FIRST_LAYER)
    minillm = "loss: minillm, tokens: 48, prompt_tokens: 16, sampled_tokens: 24"
    for name, options in (
        ("", ""),
        ("-student-alone", ", minillm: {teacher_share: 0, single_step: false, language_model_weight: 0}"),
        ("-sums", ", minillm: {length_normalization: false, reward_limit: 2, clip_range: 0.1, ratio_clip: ratio}"),
        ("-cumulative", ", minillm: {importance_weights: cumulative, ratio_clip: none, language_model_weight: 0.5}"),
        ("-exact", ", minillm: {importance_weights: exact, ratio_clip: none, teacher_share: 0.5}"),
        ("-unweighted", ", minillm: {importance_weights: none, ratio_clip: none}"),
        ("-unclipped", ", minillm: {ratio_clip: none}"),
    ):
        yield run(f"distill-minillm{name}", STORIES, None,
                  f"distill: {{text: {STORIES_FILE}, total_tokens: 640, validations: 2, validation_windows: 4, "
                  f"{IN_FLOAT32}, {minillm}{options}}}", more=FIRST_LAYER)
    for name, model, loss in (("", LLAMA, "forward_kl"), ("-reverse-kl", LLAMA, "reverse_kl"),
                              ("-gemma3", family("gemma3_local_global"), "soft_label"),
                              ("-experts", family("mixtral_experts"), "slim")):
        yield run(f"distill-hidden{name}", model, SHORT_IDS, "gptq: {bits: 3, group_size: -1}",
                  distill(f"{IN_FLOAT32}, loss: {loss}, hidden_weight: 0.5"))


def recorded():
    """From recorded teachers: what each loss makes of the most probable tokens and the tail."""
    record = ["record", STORIES, "teacher.h5", "--text", STORIES_FILE, "--tokens", "64", "--windows", "20",
              "--top-k", "16", "--temperatures", "1,2", "--shard-tokens", "512", "--quiet"]
    base = "logits: teacher.h5, total_tokens: 1024, validations: 2, validation_windows: 4"
    for name, options in (
        ("hard-label", "loss: hard_label"),
        ("soft-label", "loss: soft_label, temperature: 2"),
        ("soft-label-tail", "loss: soft_label, soft_form: cross_entropy, tail_label_weight: 0.5"),
        ("forward-kl", "loss: forward_kl"),
        ("forward-kl-tail", "loss: forward_kl, tail_label_weight: 1"),
        ("reverse-kl", "loss: reverse_kl"),
        ("jensen-shannon", "loss: jensen_shannon, beta: 0.3"),
        ("skew-kl", "loss: skew_kl"),
        ("skew-reverse-kl", "loss: skew_reverse_kl"),
        ("total-variation", "loss: total_variation, temperature: 2"),
        ("slim", "loss: slim, slim_share: 0.02"),
        ("other-text", "validation_text: calibration_data/books.txt, tokens: 64"),
        ("kl", "loss: reverse_kl, select: kl"),
    ):
        yield Case(f"distill-recorded-{name}",
                   {"recipe.yaml": recipe(STORIES, None, [distill(f"{IN_FLOAT32}, {options}", base)], FIRST_LAYER)},
                   [Step(record), Step(["run", "recipe.yaml", "--out", "out"])])
    yield Case(
        "distill-recorded-continuations",
        {"prompts.jsonl": PROMPTS,
         "recipe.yaml": recipe(STORIES, SHORT_STORIES, ["gptq: {bits: 3, group_size: -1}", distill(
             "loss: forward_kl", base.replace("validation_windows: 4", "validation_windows: 2"))])},
        [Step(["record", STORIES, "teacher.h5", "--prompts", "prompts.jsonl", "--samples", "4", "--max-new-tokens",
               "48", "--top-k", "16", "--quiet"]),
         Step(["run", "recipe.yaml", "--out", "out"])])


def records():
    """What pare record writes; threads do not matter."""
    text = ["record", STORIES, "out.h5", "--text", STORIES_FILE]
    prompts = ["record", STORIES, "out.h5", "--prompts", "prompts.jsonl"]
    for name, words in (
        ("text", [*text, "--tokens", "64", "--windows", "24", "--top-k", "20", "--shard-tokens", "512"]),
        ("all-windows", [*text, "--tokens", "256", "--top-k", "5", "--temperatures", "1,1.5,4"]),
        ("documents", ["record", STORIES, "out.h5", "--text", "calibration_data/c4.jsonl", "--windows", "8", "--tokens",
                       "128", "--seed", "3", "--top-k", "512"]),
        ("end-of-document", [*text, "--end-of-document", "<s>", "--windows", "4", "--tokens", "100"]),
        ("greedy", [*prompts, "--temperature", "0", "--max-new-tokens", "40"]),
        ("drawn", [*prompts, "--samples", "5", "--max-new-tokens", "64", "--top-p", "0.9", "--seed", "11",
                   "--shard-tokens", "256"]),
        ("hot", [*prompts, "--samples", "20", "--temperature", "1.5", "--max-new-tokens", "16", "--top-k", "3"]),
        ("instructions", ["record", STORIES, "out.h5", "--prompts", "instructions.json", "--max-new-tokens", "24"]),
    ):
        yield Case(f"record-{name}", {"prompts.jsonl": PROMPTS, "instructions.json": INSTRUCTIONS},
                   [Step([*words, "--json", "--quiet"], "said.json")])
    for model in FAMILIES:
        yield Case(f"record-{model}", {}, [Step(["record", speaking(model), "out.h5", "--text", "data/small.npy",
                                                 "--windows", "6", "--top-k", "8", "--quiet"])])
    w8a8 = ["rtn: {bits: 8, group_size: -1, activations: int8}"]
    yield Case("record-codes", {"recipe.yaml": recipe(STORIES, None, w8a8)},
               [Step(["run", "recipe.yaml", "--out", "codes"]),
                Step(["record", "codes", "out.h5", "--text", STORIES_FILE, "--windows", "4", "--quiet"])])


def students():
    """Every way to make a smaller model, alone; threads do not matter."""
    gemma, experts = family("gemma3_local_global"), family("mixtral_experts")
    for name, model, options in (
        ("every", STORIES, "layers: 3"),
        ("first", STORIES, "layers: 2, choose: first"),
        ("block-error", STORIES, "layers: 3, choose: block_error"),
        ("average", STORIES, "layers: 2, merge: average"),
        ("block-error-average", STORIES, "layers: 2, choose: block_error, merge: average"),
        ("heads", STORIES, "heads: 4"),
        ("heads-average", STORIES, "heads: 4, kv_heads: 2, widths: average"),
        ("kv-heads", STORIES, "kv_heads: 2, widths: average"),
        ("hidden", STORIES, "hidden_size: 48"),
        ("hidden-average", STORIES, "hidden_size: 32, widths: average"),
        ("feed-forward", STORIES, "feed_forward_size: 96"),
        ("feed-forward-average", STORIES, "feed_forward_size: 86, widths: average"),
        ("all", STORIES, "layers: 3, heads: 4, kv_heads: 2, hidden_size: 48, feed_forward_size: 96, "
                         "choose: block_error, merge: average"),
    ):
        yield run(f"student-{name}", model, SHORT_STORIES, more=f"student: {{{options}}}")
    for model in FAMILIES:
        layers = 2 if model in ("gemma3_local_global", "qwen3_moe_dense_block_bf16") else 1
        yield run(f"student-layers-{model}", family(model), SHORT_IDS,
                  more=f"student: {{layers: {layers}, choose: block_error}}")
        if model in MIXTURES:  # which lose layers alone
            continue
        heads = "heads: 2, kv_heads: 1" if model != "llama_mqa_biases" else "heads: 2"
        hidden = 24 if model.startswith("gemma3") else 32
        yield run(f"student-widths-{model}", family(model), SHORT_IDS,
                  more=f"student: {{{heads}, hidden_size: {hidden}, feed_forward_size: 32}}")
    yield run("student-of-codes", LLAMA, SHORT_IDS, "gptq: {bits: 4, group_size: 32}", more=FIRST_LAYER)
    yield run("student-gemma3-average", gemma, SHORT_IDS, more="student: {layers: 1, merge: average, heads: 2, "
              "kv_heads: 1, widths: average}")
    yield run("student-experts-codes", experts, SHORT_IDS, "rtn: {bits: 8, group_size: -1}",
              more="student: {layers: 1, choose: first}")


def codes():
    """Trained offsets, scales and vectors of codes in every container, rounded inputs, and the head."""
    for bits, group, symmetric in ((2, 32, "true"), (3, 32, "false"), (4, 32, "true"), (4, -1, "false"),
                                   (8, -1, "true"), (8, 32, "false")):
        yield run(f"distill-w{bits}g{group}", LLAMA, SHORT_IDS,
                  f"gptq: {{bits: {bits}, group_size: {group}, symmetric: {symmetric}}}", distill(IN_FLOAT32))
    coded = "rtn: {bits: 3, group_size: 32, symmetric: false}"
    for name, options in (
        ("scales", "train: {weights: false, vectors: false}, scale_learning_rate: 3.0e-3"),
        ("offsets", "train: {scales: false, vectors: false}, offset_learning_rate: 0.05, select: last"),
        ("vectors", "train: {scales: false, weights: false}"),
        ("embedding", "train: {embedding: true}"),
        ("embedding-alone", "train: {embedding: true, weights: false, scales: false, vectors: false}"),
    ):
        yield run(f"distill-train-{name}", family("qwen2_biases_tied"), None, coded,
                  distill(f"{IN_FLOAT32}, {options}"))
        yield run(f"distill-train-{name}-untied", LLAMA, None, coded, distill(options))
    yield run("distill-head", LLAMA, None, coded, distill(IN_FLOAT32), more="head: {bits: 8}")
    yield run("distill-head-tied", family("llama3_rope_tied"), None, coded, distill(""),
              more="head: {bits: 4, group_size: 32}")
    for name, model, calibration, first, more in (
        ("per-tensor", WIDE, None, "rtn: {bits: 8, group_size: -1, per_tensor: true}", ""),
        ("group-order", LLAMA, SHORT_IDS, "gptq: {bits: 4, group_size: 32, act_order: group}", ""),
        ("awq-gemm", LLAMA, None, "rtn: {bits: 4, group_size: 32, symmetric: false}", "container: awq-gemm"),
        ("w8a8-token", LLAMA, None, "rtn: {bits: 8, group_size: -1, activations: int8}", ""),
        ("w8a8-tensor", LLAMA, None,
         "rtn: {bits: 8, group_size: -1, activations: {range: tensor, symmetric: false}}", ""),
        ("w8a8-static", LLAMA, SHORT_IDS, "gptq: {bits: 8, group_size: -1, activations: {range: static}}", ""),
        ("w4a8", LLAMA, None, "rtn: {bits: 4, group_size: 32, activations: {symmetric: false}}", ""),
        ("w32a8", LLAMA, None, "activations: int8", ""),
        ("mixed", LLAMA, SHORT_IDS, 'gptq: {bits: 3, group_size: 32} layers: {exclude: ["*.k_proj"], override: '
         '{"*.down_proj": {bits: 8, group_size: -1}, "*.o_proj": {activations: int8}}}', ""),
    ):
        ids = WIDE_IDS.replace("samples: 6", "samples: 2") if calibration and model == WIDE else calibration
        last = ", select: last" if name == "w32a8" else ""  # no validation of it is better than the start
        yield run(f"distill-codes-{name}", model, ids, first,
                  distill(IN_FLOAT32 + last, FOUR_STEPS.replace("small", "wide").replace("1024", "2048").replace(
                      "windows: 4", "windows: 2") if model == WIDE else FOUR_STEPS), more=more)


    for name, then in (("fp8", "fp8: {}"), ("llm-int8", "llm_int8: {threshold: 2.0, layout: pare}"),
                       ("gptq", "gptq: {bits: 4, group_size: 32}")):
        yield run(f"distill-before-{name}", LLAMA, SHORT_IDS if name == "gptq" else None,
                  distill("learning_rate: 1.0e-3, train: {embedding: true}"), then, more=FIRST_LAYER)
    yield run("distill-between", LLAMA, SHORT_IDS, distill("batch: 2, learning_rate: 1.0e-3"),
              "gptq: {bits: 3, group_size: 32}", "reconstruct: {epochs: 1}", distill("train: {weights: false}"),
              more=FIRST_LAYER + "\nhead: {bits: 8}")


def zeros():
    """Pruning, and training that keeps zeros."""
    for name, options in (
        ("magnitude", "{resolve: 0, fit: false}"),
        ("magnitude-row", "{pattern: unstructured, ratio: 0.4, allocation: row, resolve: 0}"),
        ("magnitude-global", "{pattern: unstructured, allocation: global}"),
        ("magnitude-owl", "{pattern: unstructured, allocation: owl, owl_outlier: 3, owl_bound: 0.1}"),
        ("wanda", '{pattern: "4:8"}'),
        ("wanda-layer", "{pattern: unstructured, ratio: 0.6, allocation: layer, resolve: 10}"),
        ("wanda-owl", "{pattern: unstructured, allocation: owl, fit: false}"),
        ("sparsegpt", "{storage: packed}"),
        ("sparsegpt-owl", "{pattern: unstructured, allocation: owl, alps_rounds: 3, alps_penalties: 5}"),
        ("sparsegpt-sweep", '{pattern: "1:4", mask: sweep, block_size: 32, damping: 0.05, resolve: 0}'),
    ):
        passes = [f"{name.partition('-')[0]}: {options}"]
        if name == "wanda":
            passes = [passes[0] + ' layers: {exclude: ["*.v_proj"], override: {"*.o_proj": {pattern: "2:4"}}}']
        yield run(f"prune-{name}", WIDE, WIDE_IDS, *passes)
    for name, model, first in (
        ("gptq", WIDE, 'gptq: {bits: 4, group_size: 64, prune: "2:4"}'),
        ("gptq-sweep", WIDE_BF16, 'gptq: {bits: 3, group_size: 32, prune: "4:8", mask: sweep}'),
        ("gptq-packed", WIDE_BF16, 'gptq: {bits: 8, group_size: -1, prune: "2:4", storage: packed}'),
        ("experts", family("mixtral_experts"), "sparsegpt: {}"),
        ("gemma3", family("gemma3_local_global"), "wanda: {}"),
        ("fp16", family("llama_sharded_fp16"), "magnitude: {storage: packed}"),
    ):
        yield run(f"prune-{name}", model, WIDE_IDS if "wide" in model else SHORT_IDS, first)
    for name, model, options in (
        ("2of4", LLAMA, "{}"),
        ("2of4-packed", family("qwen3_norms_bf16"), "{storage: packed}"),
        ("unstructured", LLAMA, "{pattern: unstructured, ratio: 0.7, resolve: 0}"),
        ("experts-2of4", family("mixtral_experts"), "{}"),
    ):
        yield run(f"distill-{name}", model, SHORT_IDS, f"sparsegpt: {options}", distill(IN_FLOAT32))
    yield run("distill-2of4-codes", LLAMA, SHORT_IDS, 'gptq: {bits: 4, group_size: 32, prune: "2:4"}',
              distill(IN_FLOAT32))
    yield run("distill-2of4-packed-codes", LLAMA, SHORT_IDS,
              'gptq: {bits: 4, group_size: -1, prune: "2:4", storage: packed}', distill(IN_FLOAT32))
    pruned = recipe(LLAMA, SHORT_IDS, ["sparsegpt: {pattern: unstructured, ratio: 0.5}"])
    for release in ("true", "false"):
        yield Case(f"distill-release-{release}", {"pruned.yaml": pruned, "recipe.yaml": recipe(
            "pruned", None, [distill(f"{IN_FLOAT32}, teacher: {LLAMA}")], f"release_zeros: {release}")},
            [Step(["run", "pruned.yaml", "--out", "pruned"]), Step(["run", "recipe.yaml", "--out", "out"])])


def schedules():
    """What a training does beside its loss: batches, rates, validations, what is read and by whom."""
    documents = "text: [calibration_data/c4.jsonl, calibration_data/stories.txt], tokens: 96, windows: 24, " \
                "total_tokens: 1152, validations: 2, validation_windows: 4"
    for name, model, options, base in (
        ("batch1", LLAMA, "batch: 1", FOUR_STEPS),
        ("batch6", LLAMA, "batch: 6, micro_batch: 3", FOUR_STEPS),
        ("micro-batch", LLAMA, "batch: 4, micro_batch: 4", FOUR_STEPS),
        ("recompute", LLAMA, "recompute: true", FOUR_STEPS),
        ("recompute-experts", family("mixtral_experts"), "recompute: true, micro_batch: 2", FOUR_STEPS),
        ("bfloat16", LLAMA, "precision: bfloat16", FOUR_STEPS),
        ("optimizer", LLAMA, "beta1: 0.8, beta2: 0.999, epsilon: 1.0e-4, weight_decay: 0.1, clip: 0.01", FOUR_STEPS),
        ("rates", LLAMA, "warmup: 0.5, final_rate: 1, clip: 0, learning_rate: 3.0e-3", FOUR_STEPS),
        ("select-perplexity", LLAMA, "select: perplexity, patience: 1, learning_rate: 0.5, validations: 8",
         FOUR_STEPS.replace("validations: 2, ", "")),
        ("select-kl", LLAMA, "select: kl, loss: reverse_kl", FOUR_STEPS),
        ("select-last", LLAMA, "select: last", FOUR_STEPS),
        ("seed", LLAMA, "seed: 9, windows: 12", FOUR_STEPS),
        ("validation-text", LLAMA, "validation_text: data/small.npy", FOUR_STEPS),
        ("documents", STORIES, "loss: forward_kl", documents),
        ("documents-end", STORIES, 'end_of_document: "<s>", micro_batch: 2', documents),
    ):
        yield run(f"distill-{name}", model, None, distill(options, base), more=FIRST_LAYER)
    yield run("distill-documents-tensor-range", STORIES, None,
              "rtn: {bits: 8, group_size: -1, activations: {range: tensor}}", distill("", documents))
    yield Case("distill-student-teacher",
               {"student.yaml": recipe(STORIES, None, [], "student: {layers: 2}"),
                "recipe.yaml": recipe(STORIES, None, [distill(
                    f"student: student, teacher: {STORIES}",
                    f"text: {STORIES_FILE}, tokens: 64, total_tokens: 1024, validations: 2, validation_windows: 4")])},
               [Step(["run", "student.yaml", "--out", "student"]), Step(["run", "recipe.yaml", "--out", "out"])])
    for model in FAMILIES:
        yield run(f"distill-{model}", family(model), None, distill(IN_FLOAT32), more="student: {layers: 1}")
        group = -1 if model.startswith("gemma3") else 32
        yield run(f"distill-codes-{model}", family(model), None, f"rtn: {{bits: 3, group_size: {group}}}",
                  distill("train: {embedding: true}"))


def states():
    """What a run leaves behind that is not finished: the state of a training, the parts of blocks, what its phases have
    made. A gate that cannot be passed stops it; then the same command goes on from there."""
    gate = "evaluate: [perplexity: {text: data/small.npy, windows: 2}]\nfail_if: {kl: 0}"
    for name, model, passes in (
        ("distill", LLAMA, ["gptq: {bits: 3, group_size: 32}", distill("")]),
        ("distill-float32", family("qwen3_moe_fused"), [distill(f"{IN_FLOAT32}, validations: 4",
                                                                FOUR_STEPS.replace("validations: 2, ", ""))]),
        ("reconstruct", family("gemma3_local_global"), ["sparsegpt: {}", "reconstruct: {epochs: 1}"]),
    ):
        more = gate if name != "distill-float32" else FIRST_LAYER + "\n" + gate
        words = ["run", "recipe.yaml", "--out", "out"]
        yield Case(f"state-{name}", {"recipe.yaml": recipe(model, SHORT_IDS, passes, more)},
                   [Step(words, status=1), Step(words, status=1)])


def reconstructions():
    """Trained blocks, over passes, containers and models; threads do not matter."""
    for name, model, first, options, more in (
        ("w3", LLAMA, "gptq: {bits: 3, group_size: 32}", "", ""),
        ("w2-asymmetric", LLAMA, "gptq: {bits: 2, group_size: 32, symmetric: false, refine: 0}", "epochs: 2", ""),
        ("w4-rtn", LLAMA, "rtn: {bits: 4, group_size: 32, scales: minmax}", "precision: float32", ""),
        ("per-tensor", LLAMA, "rtn: {bits: 8, group_size: -1, per_tensor: true}", "epochs: 1", ""),
        ("group-order", LLAMA, "gptq: {bits: 3, group_size: 32, act_order: group}", "epochs: 1", ""),
        ("awq-gemm", LLAMA, "rtn: {bits: 4, group_size: 32, symmetric: false}", "epochs: 2", "container: awq-gemm"),
        ("w8a8", LLAMA, "gptq: {bits: 8, group_size: -1, activations: int8}", "epochs: 2", ""),
        ("w8a8-static", LLAMA, "gptq: {bits: 8, group_size: -1, activations: {range: static}}", "epochs: 1", ""),
        ("w4a8-tensor", LLAMA,
         "rtn: {bits: 4, group_size: 32, activations: {range: tensor, symmetric: false}}", "epochs: 1", ""),
        ("2of4", LLAMA, "sparsegpt: {}", "precision: float32", ""),
        ("2of4-packed", family("qwen3_norms_bf16"), "sparsegpt: {storage: packed}", "epochs: 2", ""),
        ("2of4-codes", LLAMA, 'gptq: {bits: 4, group_size: 32, prune: "2:4"}', "precision: float32", ""),
        ("unstructured", LLAMA, "wanda: {pattern: unstructured, ratio: 0.7}",
         "epochs: 8, batch: 3, learning_rate: 0.02, patience: 0, final_rate: 1", ""),
        ("scales", LLAMA, "gptq: {bits: 3, group_size: 32}",
         "train: {weights: false}, scale_learning_rate: 0.02, precision: float32", ""),
        ("offsets", LLAMA, "gptq: {bits: 3, group_size: 32}",
         "train: {scales: false}, offset_learning_rate: 0.1, patience: 2", ""),
        ("head", LLAMA, "rtn: {bits: 3, group_size: 32}", "epochs: 1", "head: {bits: 8}"),
        ("exclude", LLAMA, 'gptq: {bits: 3, group_size: 32} layers: {exclude: ["*.1.mlp.*", "*.k_proj"]}',
         "epochs: 2", ""),
    ):
        yield run(f"reconstruct-{name}", model, SMALL_IDS, first, f"reconstruct: {{{options}}}", more=more)
    for model in FAMILIES:
        group = -1 if model.startswith("gemma3") else 32
        yield run(f"reconstruct-{model}", family(model), SHORT_IDS, f"gptq: {{bits: 3, group_size: {group}}}",
                  "reconstruct: {epochs: 2}")
        if model in MIXTURES:
            yield run(f"reconstruct-2of4-{model}", family(model), SHORT_IDS, "sparsegpt: {}",
                      "reconstruct: {epochs: 1}")
    yield run("reconstruct-awq-gptq", WIDE, WIDE_IDS, "awq: {}", "gptq: {bits: 3, group_size: 128}",
              "reconstruct: {epochs: 1}")
    yield run("reconstruct-smoothquant", LLAMA, SMALL_IDS, "smoothquant: {}",
              "rtn: {bits: 8, group_size: -1, activations: int8}", "reconstruct: {epochs: 1}")
    yield run("reconstruct-distill", LLAMA, SMALL_IDS, "sparsegpt: {}", "reconstruct: {epochs: 1}", distill(IN_FLOAT32))


def trained():
    for part in (losses, recorded, records, students, codes, zeros, schedules, states, reconstructions):
        yield from part()
