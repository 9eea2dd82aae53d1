#!/usr/bin/env python3
"""Finds what one program would define twice: a class, enumeration, inline function or inline variable of one qualified
name in two files. The linker keeps one of them without a word, so that objects of the other are made, and destroyed, by
code that was not written for them. Exit status 1 and one line per name; prints nothing when all is well.

usage: check_definitions.py [ROOT]      --self-test alone: plants one of each kind and expects it to be found

What lies in an unnamed namespace or in a function is a file's own. Two names of test programs that are never linked
together may be equal. The text is read, not compiled: macros are not expanded.
"""
import pathlib
import re
import sys
import tempfile

FOLDERS = ("runtime", "quant", "prune", "distill", "compress", "tests")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
# What is no code: comments, raw strings, strings, characters (not the ' between digits), preprocessor lines.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)\"|\"(?:\\.|[^\"\\\n])*\""
    r"|(?<![0-9A-Fa-f])'(?:\\.[^']*|[^'\\\n])'|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*",
    re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\d[\w.']*|\S")
BRACKETS = {"(": ")", "[": "]", "{": "}"}


def code_tokens(text):
    """The tokens of the code, with the lines they stand in; strings are "" and what is no code is gone."""
    def replace(match):
        found = match.group(0)
        return ('""' if found[0] in "\"R" else " ") + "\n" * found.count("\n")
    text = NO_CODE.sub(replace, text)
    line, at = 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        yield match.group(0), line


def skip(tokens, first, opening, closing):
    """The place behind the bracket that closes the one at `first`."""
    depth = 0
    for at in range(first, len(tokens)):
        depth += (tokens[at] == opening) - (tokens[at] == closing)
        if depth == 0:
            return at + 1
    return len(tokens)


def without(tokens, *names):
    """Without attributes, and words such as alignas(64) with what stands in their brackets."""
    kept, at = [], 0
    while at < len(tokens):
        if tokens[at] in names:
            at += 1
            if at < len(tokens) and tokens[at] == "(":
                at = skip(tokens, at, "(", ")")
        elif tokens[at:at + 2] == ["[", "["]:
            at = skip(tokens, at, "[", "]")
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def without_template(tokens):
    """Without leading template <...> and requires (...)."""
    while tokens and tokens[0] in ("template", "requires"):
        if tokens[0] == "template":
            tokens = tokens[skip(tokens, 1, "<", ">"):]
        elif len(tokens) > 1 and tokens[1] == "(":
            tokens = tokens[skip(tokens, 1, "(", ")"):]
        else:  # requires std::is_enum_v<E> ...: to the end of the first <...>
            at = next((i for i, token in enumerate(tokens) if token == "<"), len(tokens))
            tokens = tokens[skip(tokens, at, "<", ">"):]
    return tokens


def parameters(tokens):
    """The types between the brackets, as a text: a parameter's last word is its name, and what follows = its default.
    """
    types, current, depth = [], [], 0
    for token in tokens + [","]:
        if token == "," and depth == 0:
            if "=" in current:
                current = current[:current.index("=")]
            is_named = (
                len(current) > 1 and re.fullmatch(r"[A-Za-z_]\w*", current[-1]) and current[-2] not in ("::", "const")
            )
            types.append(" ".join(current[:-1] if is_named else current))
            current = []
            continue
        depth += (token in "([{<") - (token in ")]}>")
        current.append(token)
    return ", ".join(types)


def definition(head, is_block):
    """("namespace" | "type" | "function" | "variable" | "linkage" | None, name) of what begins with these tokens."""
    head = without(head, "alignas", "__attribute__", "final")
    plain = without_template(head)
    is_inline = "inline" in plain or "constexpr" in plain or plain != head
    while plain and plain[0] in ("inline", "typedef", "static", "constexpr", "const", "extern"):
        if is_block and plain[0] == "extern" and plain[1:] == ['"', '"']:
            return "linkage", ""
        if plain[0] == "static":
            is_inline = False
        plain = plain[1:]
    if not plain:
        return None, ""
    if plain[0] == "namespace":
        return ("namespace", "".join(plain[1:])) if is_block else (None, "")
    if plain[0] in ("class", "struct", "union", "enum") and is_block:
        rest = plain[2:] if plain[1:2] in (["class"], ["struct"]) else plain[1:]
        if "(" not in rest and "=" not in rest:
            end = next((i for i, token in enumerate(rest) if token == ":"), len(rest))
            return "type", "".join(rest[:end])
    if not is_inline or plain[0] in ("using", "friend", "return"):
        return None, ""
    opening = next((i for i, token in enumerate(plain) if token in ("(", "=")), len(plain))
    if opening < len(plain) and plain[opening] == "(":
        if not is_block or opening == 0:
            return None, ""
        end = skip(plain, opening, "(", ")")
        if "operator" in plain[:opening + 1]:
            begin = plain.index("operator")
            return "function", "".join(plain[begin:opening]) + "(" + parameters(plain[opening + 1:end - 1]) + ")"
        return "function", plain[opening - 1] + "(" + parameters(plain[opening + 1:end - 1]) + ")"
    if "inline" in head and opening > 1 and (is_block or opening < len(plain)):
        name = [token for token in plain[:opening] if re.fullmatch(r"[A-Za-z_]\w*", token)]
        return ("variable", name[-1]) if name else (None, "")
    return None, ""


def definitions(text):
    """(qualified name, line) of everything that a linker would take for the same thing in another file."""
    scopes = []  # (kind, name) of every open brace
    head, line_of_head = [], 0
    depth = 0  # of round brackets, in which a brace is a value
    for token, line in code_tokens(text):
        if not head:
            line_of_head = line
        is_own = any(kind in ("block", "unnamed") for kind, _ in scopes)
        if token == "{" and depth == 0:
            kind, name = definition(head, is_block=True) if not is_own else (None, "")
            if kind in ("type", "function", "variable") and name:
                in_type = any(scope == "type" for scope, _ in scopes)
                if not in_type:  # members come with their class
                    yield "::".join([scope for _, scope in scopes if scope] + [name]), line_of_head
            if kind == "namespace":
                scopes.append(("unnamed", "") if not name else ("namespace", name))
            elif kind in ("type", "linkage"):
                scopes.append((kind, name))
            else:
                scopes.append(("block", ""))
            head = []
            continue
        if token == "}" and depth == 0:
            if scopes:
                scopes.pop()
            head = []
            continue
        if token == ";" and depth == 0:
            kind, name = definition(head, is_block=False) if not is_own else (None, "")
            if kind == "variable" and not any(scope == "type" for scope, _ in scopes):
                yield "::".join([scope for _, scope in scopes if scope] + [name]), line_of_head
            head = []
            continue
        depth = max(0, depth + (token == "(") - (token == ")"))
        head.append(token)


def are_linked(first, second):
    """Whether one program may hold both files."""
    tests = [path.split("/") for path in (first, second) if path.startswith("tests/")]
    if len(tests) < 2:
        return True
    folders = {parts[1] if len(parts) > 2 else "" for parts in tests}
    if "" not in folders and len(folders) > 1:
        return False
    # Each source of these is a program of its own.
    return not (folders & {"fuzz", "bench", "thread"} and first.endswith(".cpp") and second.endswith(".cpp"))


def offences(root):
    found = {}
    files = sorted(p for folder in FOLDERS for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    for file in files:
        path = file.relative_to(root).as_posix()
        for name, line in definitions(file.read_text(encoding="utf-8")):
            found.setdefault(name, {}).setdefault(path, line)
    for name, places in sorted(found.items()):
        paths = sorted(places)
        for i, first in enumerate(paths):
            for second in paths[i + 1:]:
                if are_linked(first, second):
                    yield (
                        f"{second}:{places[second]}: {name} is defined in {first}:{places[first]} as well: rename "
                        "one of them"
                    )


def self_test():
    planted = {
        "runtime/a.h": "namespace pare {\nclass Teacher {\n  int a;\n};\nstruct Inner { struct Part { int x; }; };\n"
                       "}\n",
        "compress/a.cpp": "namespace pare {\nclass alignas(64) Teacher final : public Base<int> {\n ~Teacher();\n};\n"
                          "}\n",
        "runtime/b.h": "namespace pare::cpu { enum class Kind : int { one }; }\n"
        "namespace pare { inline int count(const A& a, int n = 3) { return n; }\n"
        "inline constexpr int kMost = 3;\n template <typename T>\nT twice(T value) { return value; } }\n",
        "quant/b.h": "namespace pare { namespace cpu { enum class Kind { two }; }\n"
        "inline int count(const A& other, int m) { return m; }\n"
        "inline const double kMost{4};\n template <typename T>\nT twice(T v) { return v; } }\n",
        # Nothing of these is the same thing.
        "runtime/c.cpp": "namespace pare {\nnamespace {\nclass Own { };\n}\nvoid f() { struct Local { }; }\n"
                         "class Other;\n"
        "struct sigaction action = { };\n// class Said { };\nconst char* text = R\"(class Said { };)\"; }\n",
        "runtime/d.cpp": "namespace pare {\nnamespace {\nclass Own { };\n}\nvoid g() { struct Local { }; }\n"
                         "class Other;\n"
        "struct sigaction action = { };\n/* class Said { }; */ char c = '{'; long n = 1'000; }\n"
        "class Said { };\n",
        "runtime/e.h": "namespace pare { inline int count(const B& b, int n) { return n; } struct Outer { struct Part "
                       "{ }; }; }\n",
        "tests/quant/one_test.cpp": "struct Fixture { };\nclass Shared { };\n",
        "tests/prune/two_test.cpp": "struct Fixture { };\n",
        "tests/quant/three.h": "class Shared { };\n",
        "tests/fuzz/fuzz_a.cpp": "struct Input { };\n",
        "tests/fuzz/fuzz_b.cpp": "struct Input { };\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = [line.split(" is defined")[0] for line in offences(root)]
    expected = [
        "runtime/a.h:2: pare::Teacher",
        "runtime/b.h:1: pare::cpu::Kind",
        "runtime/b.h:2: pare::count(const A &, int)",
        "runtime/b.h:3: pare::kMost",
        "runtime/b.h:4: pare::twice(T)",
        "tests/quant/three.h:1: Shared",
    ]
    assert sorted(found) == sorted(expected), f"planted: {expected}\nfound: {found}"


if __name__ == "__main__":
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(0)
    lines = list(offences(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
    print("\n".join(lines), end="\n" if lines else "", file=sys.stderr)
    sys.exit(1 if lines else 0)
