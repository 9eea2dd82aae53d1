#!/usr/bin/env python3
"""What transformers' own template engine gives, for the templates in chat_templates/ and for small ones of every rule.

usage: make_chat_templates.py OUTPUT.json      needs transformers and jinja2 (tests/requirements.txt)

Each case is {file, variables, text} or {template, text}, the latter with `values` as its variables. A template that
fails has `fails: true` in place of its text. Times are those of SOURCE_DATE_EPOCH, which the tests set to the same
value.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

EPOCH = 1735689600 + 5 * 3600  # 1 January 2025, 05:00 UTC
HERE = pathlib.Path(__file__).parent / "chat_templates"


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc)


chat_template_utils.datetime = Fixed

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": 'The "weather" in <city> é',
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "City", "enum": ["Paris", "Rome"]},
        "days": {"type": ["integer", "null"], "default": 3},
        "options": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}}},
        "required": ["city"]}}}
CALL = [{"id": "call123ab", "type": "function",
         "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}}]


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    {"messages": [turn("user", "Hi <there> & 'you'")]},
    {"messages": [turn("system", "You are kind."), turn("user", "  Héllo\n"), turn("assistant", "Ok.\n"),
                  turn("user", "日本 go")]},
    {"messages": [turn("user", "x"), turn("assistant", "<think>\nhm\n</think>\n\nyes"), turn("user", "y"),
                  turn("assistant", "<think>\nah\n</think>\n\nno")]},
    {"messages": [turn("user", [{"type": "text", "text": "part"}, {"type": "text", "text": " two"}])]},
    {"messages": [turn("user", "weather?"), turn("assistant", "", tool_calls=CALL),
                  turn("tool", '{"t": 21}', name="get_weather", tool_call_id="call123ab"), turn("assistant", "21")],
     "tools": [TOOL]},
    {"messages": [turn("user", "a"), turn("user", "b")]},
    {"messages": []},
]

# A dict that all small templates see.
VALUES = {
    "none": None, "yes": True, "n": 7, "m": -3, "x": 2.5, "big": 1e20, "text": "Hello, World", "empty": "",
    "e": "élève 日本",
    "spaces": "  a b\n c \t", "words": ["b", "A", "c", "a"], "numbers": [3, 1, 2, 2], "nothing": [],
    "dict": {"b": 1, "a": [1, "x", None], "items": "hidden"},
    "rows": [{"role": "user", "n": 2, "tag": {"k": 1}}, {"role": "bot", "n": 1},
             {"role": "user", "n": 3, "tag": {"k": 2}}],
    "quote": "it's \"so\"\\ \n", "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}]}, {"v": 3, "kids": []}],
}

EXPRESSIONS = (HERE / "expressions.txt").read_text(encoding="utf-8").splitlines()
STATEMENTS = json.loads((HERE / "statements.json").read_text(encoding="utf-8"))


def rendered(text, variables):
    try:
        return {"text": chat_template_utils._compile_jinja_template(text).render(**variables)}
    except Exception:  # whatever Jinja, Python or the template raises
        return {"fails": True}


def main():
    cases = []
    for file in sorted(HERE.glob("*.jinja")):
        text = file.read_text(encoding="utf-8")
        for chat in CHATS:
            for more in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False},
                         {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}):
                variables = {"tools": None, "documents": None, **more, **chat}
                cases.append({"file": file.name, "variables": variables, **rendered(text, variables)})
    for expression in EXPRESSIONS:
        text = "{{ " + expression + " }}"
        cases.append({"template": text, **rendered(text, VALUES)})
    for text in STATEMENTS:
        cases.append({"template": text, **rendered(text, VALUES)})
    with open(sys.argv[1], "w", encoding="utf-8") as output:
        json.dump({"values": VALUES, "cases": cases}, output, ensure_ascii=False, indent=0)
        output.write("\n")


main()
