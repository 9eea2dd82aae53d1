#!/usr/bin/env python3
"""Checks that all data of others and of ours name their licence. Exit status 1 and a line per offence.

usage: check_licences.py [ROOT]      --self-test alone: plants one offence of each kind and expects it to be found

  - every data file of calibration_data and tests stands in the table of the nearest README.md above it, whose last
    column is "source, licence": by name, by pattern (*.npy) or by folder (windows/)
  - that column names a licence; one whose text must go along (MIT, BSD, a licence of its own) links it
  - each file of licences/ is linked from THIRD_PARTY.md, and each link of a table or of that page to one leads to it
  - elsewhere there is no data, but for pictures of docs/
"""
import fnmatch
import pathlib
import re
import sys
import tempfile

DATA_FOLDERS = ("calibration_data", "tests")
CODE_FOLDERS = ("compress", "distill", "prune", "quant", "runtime")
CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".cmake", ".in"}
LICENCE = re.compile(
    r"CC BY-SA 3\.0|ODC-BY 1\.0|Apache 2\.0|\bMIT\b|\bBSD\b|Community License|public domain|no licence applies"
)
TEXT_GOES_ALONG = re.compile(r"\bMIT\b|\bBSD\b|Community License")
TEXT_LINK = re.compile(r"\]\(([^)\s]*licences/[^)\s]+)\)")


def is_code(file):
    if file.suffix in CODE or file.name in ("README.md", "CMakeLists.txt") or file.name.startswith("requirements"):
        return True
    with file.open("rb") as stream:
        return stream.read(2) == b"#!"


def files_below(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def rows(readme):
    """(patterns, last column) of each row of the table whose last column is "source, licence"."""
    found, is_table = [], False
    for line in readme.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            is_table = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[-1] == "source, licence":
            is_table = True
        elif is_table and not set(cells[0]) <= set("-: "):
            found.append((cells[0].replace("`", "").split(", "), cells[-1]))
    return found


def stands_in(patterns, name):
    return any(name.startswith(p) if p.endswith("/") else fnmatch.fnmatchcase(name, p) for p in patterns)


def readme_above(file, root):
    for folder in file.parents:
        if folder == root:
            return None
        if (folder / "README.md").is_file():
            return folder / "README.md"
    return None


def offences(root):
    readmes = set()
    for folder in DATA_FOLDERS:
        for file in files_below(root / folder):
            if is_code(file):
                continue
            name = file.relative_to(root)
            readme = readme_above(file, root)
            if readme is None:
                yield f"{name}: no README.md above it says where it comes from and under which licence"
                continue
            readmes.add(readme)
            inside = file.relative_to(readme.parent).as_posix()
            if not any(stands_in(patterns, inside) for patterns, _ in rows(readme)):
                yield f"{name}: {readme.relative_to(root)} has no row for it with a source and a licence"
    for readme in sorted(readmes):
        for patterns, licence in rows(readme):
            where = f"{readme.relative_to(root)}: {', '.join(patterns)}"
            if not LICENCE.search(licence):
                yield f"{where}: '{licence}' names no licence that is known here"
            elif TEXT_GOES_ALONG.search(licence) and not TEXT_LINK.search(licence):
                yield f"{where}: the text of '{licence}' must go along: link it in licences/"
    third_party = root / "THIRD_PARTY.md"
    linked = set()
    for page in sorted(readmes) + [third_party]:
        for link in TEXT_LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if not target.is_file():
                yield f"{page.relative_to(root)}: {link} is not there"
            elif page == third_party:
                linked.add(target)
    for text in files_below(root / "licences"):
        if text.resolve() not in linked:
            yield f"{text.relative_to(root)}: THIRD_PARTY.md does not say whose licence it is"
    for folder in CODE_FOLDERS:
        for file in files_below(root / folder):
            if not is_code(file):
                yield (
                    f"{file.relative_to(root)}: data belong to calibration_data or tests, where a README names their"
                    " licence"
                )


def self_test():
    files = {
        "calibration_data/README.md": (
            "| path | what | source, licence |\n|---|---|---|\n| a.txt, b*.npy | x | public domain |\n"
            "| old/ | x | them, [MIT](../licences/old.txt) |\n| lost.txt | x | [MIT](../licences/lost.txt) |\n"
            "| bare.txt | x | MIT |\n| none.txt | x | somebody |\n"
        ),
        "calibration_data/a.txt": "",
        "calibration_data/b1.npy": "",
        "calibration_data/old/deep/c.bin": "",
        "calibration_data/d.txt": "",
        "tests/one.json": "",
        "tests/run": "#!/bin/sh\n",
        "tests/x_test.cpp": "",
        "tests/CMakeLists.txt": "",
        "runtime/table.bin": "",
        "licences/old.txt": "",
        "licences/spare.txt": "",
        "THIRD_PARTY.md": "[MIT](licences/old.txt)\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = list(offences(root))
    expected = [
        "calibration_data/d.txt: calibration_data/README.md has no row",
        "tests/one.json: no README.md",
        "README.md: bare.txt: the text of",
        "README.md: none.txt: 'somebody' names no licence",
        "../licences/lost.txt is not there",
        "licences/spare.txt: THIRD_PARTY.md does not say",
        "runtime/table.bin: data belong",
    ]
    missing = [part for part in expected if not any(part in line for line in found)]
    assert len(found) == len(expected) and not missing, f"not found: {missing}\nfound: {found}"


if __name__ == "__main__":
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(0)
    lines = list(
        offences(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve())
    )
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
