"""For each student made by dropping layers: its logits as transformers computes them from its directory, against those
of the teacher as transformers loads it, with the same layers removed there.

usage: students_with_transformers.py TEACHER STUDENT IDS.npy KEPT [TEACHER STUDENT IDS.npy KEPT ...]     KEPT: 0,2
Exit status 1 and a line where they differ.
"""
import sys

import numpy as np
import torch
import transformers

transformers.logging.set_verbosity_error()
failed = False
arguments = sys.argv[1:]
for teacher_path, student_path, ids_path, kept in zip(*[iter(arguments)] * 4):
    kept = [int(layer) for layer in kept.split(",")]
    load = lambda path: transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    student, teacher = load(student_path), load(teacher_path)
    teacher.model.layers = torch.nn.ModuleList([teacher.model.layers[layer] for layer in kept])
    for index, layer in enumerate(teacher.model.layers):
        layer.self_attn.layer_idx = index
    teacher.config.num_hidden_layers = len(kept)
    if getattr(teacher.config, "layer_types", None):
        teacher.config.layer_types = [teacher.config.layer_types[layer] for layer in kept]
    ids = torch.from_numpy(np.load(ids_path)).long()
    with torch.no_grad():
        expected, found = (model(ids, use_cache=False).logits for model in (teacher, student))
    if student.config.num_hidden_layers != len(kept) or not torch.equal(expected, found):
        print(f"{student_path}: largest difference {(expected - found).abs().max()}")
        failed = True
sys.exit(failed)
