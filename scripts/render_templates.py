#!/usr/bin/env python3
"""Renders infra/control.yaml and infra/byoc-role.yaml from their sources, infra/*.src.yaml, and what these name in double
braces: infra/parts/*.yaml, orchestrator.asl.json, bootstrap.sh.

    render_templates.py            write them
    render_templates.py --check    write nothing; fail if they are not what would be written

CloudFormation takes a template of at most 51,200 bytes without a bucket, and EC2 user data of at most
16,384. So what only people read goes: comments, blank lines, most of the YAML's indentation and all of the script's. The
output is still plain YAML, line by line the source, so that a diff of it can be reviewed.

Plain Python 3.11; it runs before anything is installed.
"""

import json
import re
import sys
from pathlib import Path

INFRA = Path(__file__).resolve().parent.parent / "infra"

# The part of bootstrap.sh between two of these lines sets the variables that differ from stack to stack.
MARK = "# --- rendered ---"

# Those variables, and what CloudFormation substitutes for them. The parameters' patterns exclude quotes.
HEADER = {
    "OSTLER_REGION": "AWS::Region",
    "OSTLER_ROLE_ID": "RunnerRole.RoleId",
    "OSTLER_HANDOFF_TABLE": "HandoffTable",
    "OSTLER_LOG_GROUP": "RunnerLogs",
    "OSTLER_RUNNER_VERSION": "RunnerVersion",
    "OSTLER_RUNNER_SHA256_X64": "RunnerSha256X64",
    "OSTLER_RUNNER_SHA256_ARM64": "RunnerSha256Arm64",
    "OSTLER_RUNNER_URL": "RunnerUrl",
}

# Of a template handed over with the request.
TEMPLATE_BYTES_MAX = 51_200

BANNER = """\
# Rendered by `make templates` from {source} and what that names. Do not edit.
# What it makes, how to deploy it, and what deleting it does stand at the top of {source}.
"""

RENDERED = ("control", "byoc-role")


def state_machine(text: str) -> str:
    """The definition without its comments, as the inside of a single-quoted YAML string."""

    def bare(value):
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k != "Comment"}
        return [bare(v) for v in value] if isinstance(value, list) else value

    definition = json.loads(text)
    compact = json.dumps(bare(definition), separators=(",", ":"), ensure_ascii=True)
    return compact.replace("'", "''")


def bootstrap(text: str) -> tuple[str, list[str]]:
    """The script's start as the inside of a double-quoted YAML string for Fn::Sub, and its other lines."""
    parts = re.split(rf"^{re.escape(MARK)}\n", text, flags=re.M)
    if len(parts) != 3:
        sys.exit(f"bootstrap.sh: expected two lines «{MARK}», found {len(parts) - 1}")
    start, variables, body = parts
    names = re.findall(r"^(\w+)=", variables, flags=re.M)
    if names != list(HEADER) or len(names) != len(variables.splitlines()):
        sys.exit(f"bootstrap.sh: between the marks, set each of {', '.join(HEADER)} and nothing else")
    shebang = start.splitlines()[0]
    lines = [shebang] + [f"{name}='${{{value}}}'" for name, value in HEADER.items()]
    header = json.dumps("\n".join(lines) + "\n")[1:-1]
    # In a text over several lines a # or a blank at the start of a line would go too; so far there is none, and `bash -n`
    # and the bootstrap's tests, which run what the template embeds, would hardly miss it.
    lines = (line.lstrip() for line in body.splitlines())
    kept = [line for line in lines if line and not line.startswith("#")]
    return header, kept


def compact_yaml(text: str) -> list[str]:
    """Block YAML with one column of indentation a level, without comments and blank lines.

    A stack maps the columns of the source to those of the output. A dash may stand right under its key.
    """
    out: list[str] = []
    stack = [(0, 0)]
    block: tuple[int, int] | None = None  # of a literal or folded scalar: its key's column, the output's
    for line in text.splitlines():
        content = line.lstrip(" ")
        column = len(line) - len(content)
        if block and content and column > block[0]:
            out.append(" " * (block[1] + 1) + content)
            continue
        if not content or content.startswith("#"):
            continue
        block = None
        while stack[-1][0] > column:
            stack.pop()
        if stack[-1][0] < column:
            under_key = out[-1].endswith(":")
            stack.append((column, stack[-1][1] + (0 if content.startswith("- ") and under_key else 1)))
        target = stack[-1][1]
        out.append(" " * target + content)
        rest = content
        while rest.startswith("- "):
            rest = rest[2:]
            column, target = column + 2, target + 2
            stack.append((column, target))
        if re.search(r":\s+[|>][-+]?$", content):
            block = (column, target)
    return out


def with_parts(text: str) -> str:
    """The text with each line that is only `{{parts/name.yaml}}` replaced by that file, indented as the line was."""

    def part(match: re.Match[str]) -> str:
        lines = read(match["name"]).splitlines()
        return "".join(f"{match['indent']}{line}".rstrip() + "\n" for line in lines)

    return re.sub(r"^(?P<indent> *)\{\{(?P<name>parts/[a-z-]+\.yaml)\}\}\n", part, text, flags=re.M)


def render(name: str) -> str:
    """The template."""
    header, body = bootstrap(read("bootstrap.sh"))
    out: list[str] = []
    for line in compact_yaml(with_parts(read(f"{name}.src.yaml"))):
        if line.strip() == "{{bootstrap.sh}}":
            indent = line[: len(line) - len(line.lstrip())]
            out += [indent + text for text in body]
            continue
        line = line.replace("{{bootstrap.sh header}}", header)
        if "{{orchestrator.asl.json}}" in line:
            line = line.replace("{{orchestrator.asl.json}}", state_machine(read("orchestrator.asl.json")))
        if found := re.search(r"\{\{.*?\}\}", line):
            sys.exit(f"{name}.src.yaml: nothing is known of {found[0]}")
        out.append(line)
    return BANNER.format(source=f"{name}.src.yaml") + "\n".join(out) + "\n"


def read(name: str) -> str:
    """A file of infra/."""
    return (INFRA / name).read_text(encoding="utf-8")


def main(arguments: list[str]) -> None:
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    for name in RENDERED:
        text, target = render(name), INFRA / f"{name}.yaml"
        size = len(text.encode())
        if size > TEMPLATE_BYTES_MAX:
            sys.exit(f"{target.name} would have {size} bytes; CloudFormation takes {TEMPLATE_BYTES_MAX}")
        if arguments:
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                sys.exit(f"infra/{target.name} is stale: run `make templates` and commit it")
            continue
        target.write_text(text, encoding="utf-8")
        print(f"infra/{target.name}: {size} of {TEMPLATE_BYTES_MAX} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
