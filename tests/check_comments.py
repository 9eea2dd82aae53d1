#!/usr/bin/env python3
"""Checks the comments of C++ and CUDA files: a comment says what something is or does in whole words.

usage: check_comments.py [FILE or FOLDER ...]

Without arguments, runtime/. A block of comment lines must not begin with "Of", "Whether", "What" or "Who": such a block
is the rest of a sentence whose beginning the reader has to guess. It says "Returns whether ..." or "True if ...",
"The bytes that ..." or "A reader of ...". Prints each breach, a line each, and exits with 1.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
FRAGMENT = re.compile(r"(Of|Whether|What|Who)\b")
COMMENT = re.compile(r"\s*//\s?(.*)")
RAW_STRING = re.compile(r'R"([^()\\\s]{0,16})\(')


def comment_lines(text):
    """(number, comment) of each line that is a comment and nothing else; lines of raw strings are none."""
    closing = None
    for number, line in enumerate(text.splitlines(), 1):
        if closing is not None:
            if closing in line:
                closing = None
            continue
        comment = COMMENT.fullmatch(line)
        if comment:
            yield number, comment[1]
            continue
        opening = RAW_STRING.search(line)
        if opening and f"){opening[1]}\"" not in line[opening.end():]:
            closing = f"){opening[1]}\""


def breaches(text):
    """(number, what is wrong) for each breach in a file's text."""
    previous = 0
    for number, comment in comment_lines(text):
        if number != previous + 1 and FRAGMENT.match(comment):
            yield number, f"the comment begins with a fragment: '{comment[:60]}'"
        previous = number


def files_of(arguments):
    for argument in arguments:
        path = pathlib.Path(argument)
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        elif path.is_file():
            yield path
        else:
            sys.exit(f"check_comments.py: '{path}': no such file or folder")


def main():
    num_breaches = 0
    for file in files_of(sys.argv[1:] or [ROOT / "runtime"]):
        for number, problem in breaches(file.read_text(encoding="utf-8")):
            print(f"{file}:{number}: {problem}")
            num_breaches += 1
    sys.exit(1 if num_breaches else 0)


if __name__ == "__main__":
    main()
