#!/usr/bin/env python3
"""Checks who includes whom: docs/architecture.md, "Who may include whom". Also that JSON has one parser and one writer,
that nobody but their tables knows families and evaluations by name, that nobody asks a pass for its class or name, and
that each file is in the namespace of its folder.
Exit status 1 and one line per offence; prints nothing when all is well.

usage: check_includes.py [ROOT]      --self-test plants one offence of each kind and expects it to be found
"""
import pathlib
import re
import sys
import tempfile

# Folder -> folders of ours it may include (itself is always allowed; "name/*" is all folders below it). The longest
# matching prefix of a file decides. Between folders there is no cycle either, but for the kernels of runtime/cpu, which
# are a part of it.
MAY_INCLUDE = {
    "runtime/system": set(),
    "runtime/machine": {"runtime/system"},
    "runtime/format": {"runtime/system"},
    "runtime/containers": {"runtime/system", "runtime/format"},
    "runtime/blocks": {"runtime/system", "runtime/format"},
    "runtime/files": {"runtime/system", "runtime/format", "runtime/blocks"},
    "runtime/text": {"runtime/system"},
    "runtime/tokenizer": {"runtime/system", "runtime/text", "runtime/files"},
    "runtime/chat": {"runtime/system", "runtime/text", "runtime/files", "runtime/tokenizer"},
    "runtime/families": set(),
    "runtime/model": {"runtime/system", "runtime/format", "runtime/containers", "runtime/files", "runtime/families"},
    "runtime/import": {"runtime/system", "runtime/text", "runtime/format", "runtime/blocks", "runtime/containers",
                       "runtime/files", "runtime/tokenizer", "runtime/families", "runtime/model"},
    "runtime/export": {"runtime/system", "runtime/text", "runtime/format", "runtime/blocks", "runtime/containers",
                       "runtime/files", "runtime/tokenizer", "runtime/chat", "runtime/families", "runtime/model",
                       "runtime/import"},
    "runtime/engine": {"runtime/system", "runtime/machine", "runtime/format", "runtime/tokenizer", "runtime/model"},
    "runtime/cpu": {"runtime/system", "runtime/format", "runtime/model", "runtime/engine", "runtime/cpu/kernels"},
    "runtime/cpu/kernels": {"runtime/system", "runtime/cpu"},
    "runtime/cuda": {"runtime/system", "runtime/format", "runtime/model", "runtime/engine"},
    "runtime/device": {"runtime/system", "runtime/machine", "runtime/engine", "runtime/cpu", "runtime/cuda"},
    "runtime/harness": {"runtime/system", "runtime/text", "runtime/tokenizer", "runtime/model", "runtime/engine"},
    "runtime/evaluate": {"runtime/system", "runtime/text", "runtime/format", "runtime/files", "runtime/tokenizer",
                         "runtime/chat", "runtime/model", "runtime/engine", "runtime/harness"},
    "runtime/doctor": {"runtime/system", "runtime/format", "runtime/blocks", "runtime/containers", "runtime/files",
                       "runtime/tokenizer", "runtime/families", "runtime/model", "runtime/import"},
    "runtime/commands": {"runtime/*"},
    "runtime/api": {"runtime/*"},
    "python": {"runtime/api"},
    "quant": {"runtime/system", "runtime/format"},
    "quant/gguf": {"quant", "runtime/format", "runtime/blocks"},
    "quant/pictures": {"quant", "runtime/system"},
    "prune": {"quant", "runtime/system", "runtime/format"},
    "distill": {"quant", "runtime/format"},
    "compress/recipe": {"quant", "prune", "distill", "runtime/*"},
    "compress/plan": {"quant", "prune", "runtime/*", "compress/recipe"},
    "compress/artifact": {"runtime/*"},
    "compress/hdf5": {"runtime/*"},
    "compress/record": {"quant", "distill", "runtime/*", "compress/hdf5", "compress/artifact", "compress/plan",
                        "compress/walk", "compress/predict", "compress/train"},
    "compress/model": {"quant", "runtime/*"},
    "compress/walk": {"quant", "prune", "runtime/*", "compress/recipe", "compress/hdf5", "compress/model"},
    "compress/student": {"quant", "distill", "runtime/*", "compress/recipe", "compress/artifact", "compress/model",
                         "compress/walk"},
    "compress/passes": {"quant", "quant/gguf", "prune", "runtime/*", "compress/recipe", "compress/plan",
                        "compress/artifact", "compress/walk"},
    "compress/train": {"quant", "quant/pictures", "distill", "runtime/*", "compress/recipe", "compress/plan",
                       "compress/model", "compress/artifact", "compress/passes"},
    "compress/reconstruct": {"quant", "distill", "runtime/*", "compress/recipe", "compress/plan", "compress/model",
                             "compress/walk", "compress/train", "compress/passes"},
    "compress/survey": {"quant", "quant/pictures", "prune", "runtime/*", "compress/recipe", "compress/plan",
                        "compress/model", "compress/walk", "compress/passes"},
    "compress/predict": {"quant", "prune", "runtime/*", "compress/recipe", "compress/plan", "compress/model",
                         "compress/walk", "compress/train", "compress/reconstruct", "compress/survey"},
    "compress/report": {"quant", "quant/pictures", "runtime/*", "compress/recipe", "compress/artifact",
                        "compress/train"},
    "compress/export": {"quant", "runtime/*", "compress/recipe", "compress/plan", "compress/artifact",
                        "compress/report"},
    "compress/sweep": {
        "runtime/*",
        "compress/recipe",
        "compress/predict",
        "compress/artifact",
        "compress/report",
        "compress/run",
    },
    "compress/run": {"quant", "prune", "distill", "runtime/*", "compress/*"},
    "compress": {"runtime/*", "compress/*"},
    "tests/emulation": {"runtime/cuda"},
    "tests/emulation/self_test": {"runtime/cuda", "tests", "tests/emulation"},
    "tests": {"compress", "compress/*", "quant", "quant/*", "prune", "distill", "runtime/*", "tests/emulation"},
}
# External header -> files that may include it.
ONLY_IN = [
    (re.compile(r"^(ATen|torch|c10)/"),
     re.compile(r"^(tests/)?(compress|quant|prune|distill)/|^tests/(bench|fuzz)/")),
    (re.compile(r"^yaml-cpp/"), re.compile(r"^compress/recipe/yaml_value\.cpp$")),
    (re.compile(r"^cxxopts"), re.compile(r"^runtime/commands/command_line\.cpp$")),
    (re.compile(r"^nanobind/"), re.compile(r"^python/bindings\.cpp$")),
    (re.compile(r"^pcre2"), re.compile(r"^runtime/text/[^/]*\.(cpp|h)$")),
    (re.compile(r"^nlohmann/"), re.compile(r"^((runtime|compress)/.*\.cpp|runtime/system/json_text\.h|tests/.*)$")),
    (re.compile(r"^Eigen/"), re.compile(r"^(quant|prune|tests/quant|tests/prune)/.*\.cpp$")),
    (re.compile(r"^(hdf5|H5)"), re.compile(r"^(compress|distill|tests/compress)/")),
]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
# A module is a header and its sources; *_avx2, *_aarch64, *_kernels and the like belong to it.
MAX_MODULES = 20
# Every JSON goes through the one bounded parser and the one writer; tests may use the library's.
JSON_PARSER = re.compile(r"[Jj]son::(parse|sax_parse|accept|from_\w+)\b")
JSON_WRITER = re.compile(r"(\.|->)dump\(")
JSON_PARSER_FILE = "runtime/system/json_text.cpp"
# The table of families. Whoever else compares a family's name has a trait that belongs into a row.
FAMILIES = "runtime/families"
NAME_IN_ROW = re.compile(r'\.(?:name|model_type|architecture|gguf) = "([^"]+)"')
FAMILY_COMPARED = re.compile(r"\bfamily(\(\))?((\.|->)\w+)?\s*[!=]=(?!\s*nullptr)")
OTHER_NAME_COMPARED = re.compile(r"\bvocabulary\.model\s*[!=]=")  # "llama" is one of GGUF's kinds of vocabulary
# A pass is asked by its member functions (compress/recipe/pass.h), never by its class or its key in recipes. Its own
# files, and tests, may.
PASSES = "compress/passes/pass_table.cpp"
KEY_IN_ROW = re.compile(r'\brow<\w+>\("(\w+)"')
PASS_CAST = re.compile(r"(_cast|copy_of)<\s*(const )?\w*Pass\s*[&*>]")
PASS_FILES = re.compile(r"^compress/passes/|^compress/recipe/(\w+_pass|pass_options|prune_options)\.(cpp|h)$")
# An evaluation is known by its row alone.
EVALUATIONS = "runtime/evaluate"
EVALUATION_KEY = re.compile(r'\.key = "(\w+)"')
# Each top folder of the programs has its namespace. What the library offers to other programs is in `pare` itself.
NAMESPACE = re.compile(r"^namespace pare\b(?:::(\w+))?")
PUBLIC = ("runtime/api/", "python/")
# The files of a module for several instruction sets count as one.
KERNEL_SUFFIX = r"_(avx2|avxvnni|avx512|vnni|avx512bf16|amx|neon|dotprod|i8mm|x86|aarch64)?(_?kernels)?$"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    found = [folder for folder in MAY_INCLUDE if path.startswith(folder + "/")]
    return max(found, key=len) if found else None


def may_include(mine, theirs):
    allowed = MAY_INCLUDE[mine]
    return theirs == mine or theirs in allowed or any(a.endswith("/*") and theirs.startswith(a[:-1]) for a in allowed)


def crowded_folders(files, root):
    modules = {}
    for file in files:
        if file.name.endswith("_test.cpp") or file.name.startswith("fuzz_"):
            continue
        stem = re.sub(KERNEL_SUFFIX, "", file.stem)
        modules.setdefault(file.parent.relative_to(root).as_posix(), set()).add(stem)
    for folder, names in sorted(modules.items()):
        if len(names) > MAX_MODULES:
            yield f"{folder}: {len(names)} modules, at most {MAX_MODULES}: group them in folders"


def name_comparison(tables, name_in_row):
    """A pattern of comparisons with a name of the tables."""
    found = {name for table in tables if table.is_file() for name in name_in_row.findall(table.read_text())}
    names = "|".join(sorted(found))
    literal = f'"(?:{names})"' if names else r"(?!)"
    return re.compile(rf"[!=]=\s*(std::string(_view)?[({{])?{literal}|{literal}s?v?\s*[!=]="
                      rf"|\b(compare|contains|starts_with|ends_with)\({literal}")


def offences(root):
    tops = {folder.split("/")[0] for folder in MAY_INCLUDE}
    files = sorted(p for folder in tops for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    graph = {}
    families = name_comparison((root / FAMILIES).glob("*.cpp"), NAME_IN_ROW)
    passes = name_comparison([root / PASSES], KEY_IN_ROW)
    evaluations = name_comparison((root / EVALUATIONS).glob("*.cpp"), EVALUATION_KEY)
    for file in files:
        name = file.relative_to(root).as_posix()
        asks = name.startswith("compress/") and not PASS_FILES.match(name)
        graph[name] = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{name}:{number}: "
            if JSON_PARSER.search(line) and name != JSON_PARSER_FILE and not name.startswith("tests/"):
                yield where + "parse JSON with parse_json of runtime/system/json_text.h"
            if JSON_WRITER.search(line) and name != JSON_PARSER_FILE and not name.startswith("tests/"):
                yield where + "write JSON with json_text of runtime/system/json_text.h"
            compares = FAMILY_COMPARED.search(line) or (families.search(line) and not OTHER_NAME_COMPARED.search(line))
            if compares and not name.startswith(FAMILIES + "/") and not name.startswith("tests/"):
                yield where + f"compares a family's name: make it a trait of {FAMILIES}"
            if asks and (PASS_CAST.search(line) or passes.search(line)):
                yield where + "ask the pass by a member function of PassOptions, not for its class or name"
            if evaluations.search(line) and not name.startswith((EVALUATIONS, "tests/")):
                yield where + "compares an evaluation's name: make it a member of EvaluationRow"
            opened = NAMESPACE.match(line)
            top = name.split("/")[0]
            if opened and top != "tests" and not name.startswith(PUBLIC) and opened.group(1) != top:
                yield where + f"code of {top}/ is in namespace pare::{top}"
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, target = match.group(1) == '"', match.group(2)
            if quoted:
                if not (root / target).is_file():
                    yield where + f'"{target}" is no file of the project: write it from the top folder'
                    continue
                graph[name].append(target)
                mine, theirs = folder_of(name), folder_of(target)
                if not may_include(mine, theirs):
                    yield where + f"{mine} may not include {theirs}"
            else:
                for pattern, allowed in ONLY_IN:
                    if pattern.match(target) and not allowed.match(name):
                        yield where + f"<{target}> is allowed only in {allowed.pattern}"
    yield from cycles(graph, "include cycle")
    folders = {}
    for name, targets in graph.items():
        mine = module_folder(name)
        others = {module_folder(target) for target in targets} - {mine}
        folders.setdefault(mine, set()).update(others)
    yield from cycles(folders, "cycle of folders")
    yield from crowded_folders(files, root)


def module_folder(name):
    folder = folder_of(name)
    return "runtime/cpu" if folder == "runtime/cpu/kernels" else folder


def cycles(graph, what):
    state = {}

    def visit(name, trail):
        state[name] = "open"
        for target in graph.get(name, []):
            if state.get(target) == "open":
                circle = trail[trail.index(target):] + [target] if target in trail else [name, target]
                yield what + ": " + " -> ".join(circle)
            elif target not in state:
                yield from visit(target, trail + [target])
        state[name] = "done"

    for name in graph:
        if name not in state:
            yield from visit(name, [name])


def self_test():
    planted = {
        "runtime/engine/a.cpp": '#include "quant/b.h"\n#include <ATen/ATen.h>\n#include <yaml-cpp/yaml.h>\n',
        "runtime/format/c.h": '#include "runtime/model/d.h"\n',
        "runtime/model/d.h": '#include "runtime/model/e.h"\n#include "runtime/format/c.h"\n'
                             '#include "runtime/missing.h"\n',
        "runtime/model/e.h": '#include "runtime/model/d.h"\n',
        "quant/b.h": '#include "runtime/model/d.h"\n#include <cxxopts.hpp>\n',
        "runtime/files/reader.cpp": "const auto json = nlohmann::ordered_json::parse(text);\n",
        "runtime/files/writer.cpp": "return json.dump(2);\n",
        FAMILIES + "/rows.cpp": 'Row{.name = "llama", .gguf = "strang"},\nif (row.name == "llama") return;\n',
        "compress/by_name.cpp": 'if (model.family != other) return;\nif ("llama" == name) return;\n'
                                'if (std::string_view(gguf) == "strang") return;\n'
                                'if (vocabulary.model == "llama" || family == nullptr) return;\n',
        PASSES: '      row<RtnPass>("rtn", apply_rtn),\n',
        "compress/plan/casts.cpp": "const auto* rtn = dynamic_cast<const RtnPass*>(options);\n",
        "compress/plan/names.cpp": 'if (layer.method == "rtn") return;\n',
        "runtime/evaluate/row.cpp": '  return {.key = "answers",\nif (key == "answers") return;\n',
        "compress/plan/evaluations.cpp": 'if (row->key == "answers") return;\n',
        "quant/place.cpp": "namespace pare::runtime {\nnamespace pare {\nnamespace pare::quant {\nnamespace {\n",
        "runtime/api/pare.h": "namespace pare {\n",
        "compress/plan/texts.cpp": 'if (row->key != std::string("rtn")) return;\n',
    } | {f"runtime/files/f{i}.h": "" for i in range(MAX_MODULES + 1)}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = "\n".join(offences(root))
    for expected in ("runtime/engine may not include quant", "<ATen/ATen.h>", "<yaml-cpp/yaml.h>",
                     "runtime/format may not include runtime/model", "runtime/missing.h", "include cycle",
                     "quant may not include runtime/model", "cycle of folders", "runtime/files: 23 modules",
                     "<cxxopts.hpp>", "runtime/files/reader.cpp:1: parse JSON with parse_json",
                     "runtime/files/writer.cpp:1: write JSON with json_text", "compress/plan/casts.cpp:1: ask the pass",
                     "compress/plan/evaluations.cpp:1: compares an evaluation's name",
                     "compress/plan/names.cpp:1: ask the pass", "compress/plan/texts.cpp:1: ask the pass",
                     "quant/place.cpp:1: code of quant/", "quant/place.cpp:2: code of quant/",
                     *(f"compress/by_name.cpp:{number}: compares a family's name" for number in (1, 2, 3))):
        assert expected in found, f"planted offence not found: {expected}\n{found}"
    assert found.count("compares a family's name") == 3, found
    assert found.count("is in namespace") == 2, found
    assert found.count("compares an evaluation's name") == 1, found


if __name__ == "__main__":
    self_test()
    lines = list(offences(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
