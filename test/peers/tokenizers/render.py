# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates with jinja2, set up as model libraries do.

Each line of the input is {"template": text, "variables": {...}}; each line of
the output {"text": ...} or {"error": ...}.
"""
import datetime
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 5, 14, 7, 9)


class Generation(Extension):
    """The mark for training, which does not change the text."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def main():
    env = environment()
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"text": env.from_string(call["template"]).render(**call["variables"])}
        except Exception as error:  # whatever it is, the answer is that it fails
            answer = {"error": type(error).__name__ + ": " + str(error)[:200]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
