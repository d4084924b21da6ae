# SPDX-License-Identifier: Apache-2.0
"""Usage: chat_golden.py FOLDER

Renders each template in FOLDER/templates.json with each set of variables in
FOLDER/variables.json and writes FOLDER/golden.json: null where it fails.
"""
import json
import pathlib
import sys

from render import environment


def main():
    folder = pathlib.Path(sys.argv[1])
    templates = json.loads((folder / "templates.json").read_text())
    variables = json.loads((folder / "variables.json").read_text())
    env = environment()
    golden = {}
    for name, source in templates.items():
        golden[name] = []
        for values in variables:
            try:
                golden[name].append(env.from_string(source).render(**values))
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
                golden[name].append(None)
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
