#!/usr/bin/env python3
"""Checks that the messages quoted in docs/*.md still stand in the sources.

usage: check_messages.py [PAGE.md ...]

A message is a line of a block of code that begins with ```message. In it the words of PLACEHOLDERS stand for a value,
and "..." for what is left out. Programs put messages together from pieces, so that a line is looked for clause by
clause: what is between placeholders, quotation marks, parentheses and : ; , and has two words at least must stand in
        the texts
of a source. The clauses of three words and more must all stand in one and the same file. In sources, texts that follow
each other or are added to one another are joined, and names of constant texts become their text.
Messages of other programs stand in blocks of another kind, such as ```text, and are not looked for.
Prints each message that is not found, with the clause, and exits with 1.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("compress", "distill", "prune", "quant", "runtime")
PLACEHOLDERS = ("COMMAND", "DIR", "FILE", "HASH", "LAYER", "LIST", "N", "NAME", "REASON", "SIZE", "TEXT")
SHORT, LONG = 2, 3  # words of a clause that is looked for at all, and in one file with the others
VALUE = "\x00"  # in the texts of a source: whatever is no text

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                              # comments
    |R"(?P<mark>[^(\s"]*)\((?P<raw>.*?)\)(?P=mark)"     # raw texts
    |"(?P<text>(?:[^"\\\n]|\\.)*)"                      # texts
    |'(?:[^'\\\n]|\\.)'                                 # characters
    |(?P<scope>::)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<other>\S)""",
    re.S | re.X,
)
CONSTANT = re.compile(r'\b(?:const|constexpr)\b[^;={}()]*?\b(k[A-Z]\w*)\s*(?:=|\{)\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)[;}]')
PRINTF = re.compile(r"%(?!%)[-+ #0]*\d*(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[a-zA-Z]")
ESCAPES = {"n": " ", "t": " ", '"': '"', "'": "'", "\\": "\\"}


def plain(literal):
    text = re.sub(r"\\(.)", lambda match: ESCAPES.get(match.group(1), match.group(0)), literal)
    return PRINTF.sub(VALUE, text).replace("%%", "%")


def constants(source):
    """The texts of constants by their names."""
    return {
        name: "".join(plain(part) for part in re.findall(r'"((?:[^"\\\n]|\\.)*)"', value))
        for name, value in CONSTANT.findall(source)
    }


def texts_of(source, known):
    """The texts of a source, one after the other."""
    parts = []
    for match in TOKEN.finditer(source):
        if match["text"] is not None:
            parts.append(plain(match["text"]))
        elif match["raw"] is not None:
            parts.append(match["raw"])
        elif match["name"] is not None:
            parts.append("" if match["name"] in ("std", "string") else known.get(match["name"], VALUE))
        elif match["other"] is not None:
            # Texts are added to one another by +, and may stand in parentheses or std::string(...).
            parts.append("" if match["other"] in "+()" else VALUE)
    return re.sub(r"\s+", " ", "".join(parts))


def read_sources():
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    sources = [path.read_text(encoding="utf-8") for path in paths if path.suffix in (".cpp", ".h", ".cu", ".cuh")]
    shared = {}
    for source in sources:
        shared.update(constants(source))
    found = [texts_of(source, {**shared, **constants(source)}) for source in sources]
    found.append(re.sub(r"\s+", " ", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")))
    return found


def clauses_of(message):
    words = "|".join(sorted(PLACEHOLDERS, key=len, reverse=True))
    pieces = re.split(rf"\.\.\.|(?<![\w.-])(?:{words})(?!\w)|[:;,()'\"?]+(?:\s|$)|(?:^|\s)[('\"]+|[('\")]", message)
    return [piece.strip() for piece in pieces if piece and len(piece.split()) >= SHORT]


def problem_of(message, sources):
    """Why the message is not one of the sources; empty: it is."""
    clauses = clauses_of(message)
    if not clauses:
        return f"no clause of {SHORT} words to look for"
    for clause in clauses:
        if not any(clause in source for source in sources):
            return f"no source has '{clause}'"
    long = [clause for clause in clauses if len(clause.split()) >= LONG]
    if not any(all(clause in source for clause in long) for source in sources):
        return "no single source has all of it: " + ", ".join(f"'{clause}'" for clause in long)
    return ""


def messages_of(page):
    """(number of the line, message)"""
    in_block = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            in_block = line.strip() == "```message"
        elif in_block and line.strip():
            yield number, line.strip()


def main():
    pages = [pathlib.Path(name) for name in sys.argv[1:]] or sorted((ROOT / "docs").glob("**/*.md"))
    sources = read_sources()
    num_messages = num_problems = 0
    for page in pages:
        name = page.resolve().relative_to(ROOT) if page.resolve().is_relative_to(ROOT) else page
        for number, message in messages_of(page):
            num_messages += 1
            if problem := problem_of(message, sources):
                print(f"{name}:{number}: {problem}: {message}")
                num_problems += 1
    if num_messages == 0:
        print("check_messages: expected blocks of code that begin with ```message, found none")
    return 1 if num_problems or num_messages == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
