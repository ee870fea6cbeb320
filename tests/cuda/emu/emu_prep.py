#!/usr/bin/env python3
"""Rewrites CUDA sources into what a C++ compiler parses. Usage: emu_prep.py SOURCE_DIR TARGET_DIR

    kernel<<<g, b, s, st>>>(args)          ->  emu::make_launcher("kernel", a lambda that calls it, g, b, s, st)(args)
    extern __shared__ T x[];               ->  T * x = (T *) emu::shared_dynamic();
    __shared__ T x[N], y;                  ->  references into the emulated block's shared memory
    asm volatile("..." : outs : ins : clb) ->  emu::ptx("...", {emu::out(outs)...}, {emu::value(ins)...})

Everything else stays as it is. A target whose content would not change keeps its time of change.
"""

import re
import sys
from pathlib import Path


def launch_start(text: str, end: int) -> int:
    """Start of the kernel's name (with its balanced <...>) that ends at `end`."""
    i = end
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (text[i] == ">") - (text[i] == "<")
            if depth == 0:
                break
    while text[i - 1].isalnum() or text[i - 1] in "_:":
        i -= 1
    return i


def in_comment(text: str, at: int) -> bool:
    return "//" in text[text.rfind("\n", 0, at) + 1 : at]


def launches(text: str) -> str:
    at = 0
    while (at := text.find("<<<", at)) >= 0:
        end = text.find(">>>", at)
        if in_comment(text, at) or end < 0:
            at += 3
            continue
        start = launch_start(text, at)
        kernel = text[start:at].strip()
        name = re.sub(r"\s+", " ", kernel)
        new = f'emu::make_launcher("{name}", [&](auto && ... a) {{ {kernel}(a...); }}, {text[at + 3 : end]})'
        text = text[:start] + new + text[end + 3 :]
        at = start + len(new)
    return text


def split_top(text: str, separator: str) -> list[str]:
    """Splits at `separator` outside of brackets, braces, parentheses and string literals."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == ":" and text[i : i + 2] == "::" and separator == ":":
            # `::` is an empty list of operands in asm, a scope elsewhere
            if depth == 0:
                parts += [text[start:i], ""]
                start = i + 2
            i += 1
        elif c == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        i += 1
    return [*parts, text[start:]]


def operand(text: str) -> str:
    match = re.match(r'\s*"[^"]*"\s*\((.*)\)\s*$', text, re.S)
    if not match:
        raise SystemExit(f"emu_prep.py: asm operand not understood: {text}")
    return match.group(1)


def asm_statements(text: str) -> str:
    pattern = re.compile(r"\basm\s*(?:volatile\s*)?\(")
    at = 0
    while match := pattern.search(text, at):
        if in_comment(text, match.start()):
            at = match.end()
            continue
        depth, i = 1, match.end()
        while depth:
            c = text[i]
            if c == '"':
                i += 1
                while text[i] != '"':
                    i += 2 if text[i] == "\\" else 1
            depth += (c == "(") - (c == ")")
            i += 1
        fields = split_top(text[match.end() : i - 1], ":")
        lists = [[operand(o) for o in split_top(f, ",") if o.strip()] for f in fields[1:3]] + [[], []]
        outs = ", ".join(f"emu::out({o})" for o in lists[0])
        ins = ", ".join(f"emu::value({o})" for o in lists[1])
        new = f"emu::ptx({fields[0].strip()}, {{{outs}}}, {{{ins}}})"
        text = text[: match.start()] + new + text[i:]
        at = match.start() + len(new)
    return text


def shared_arrays(text: str) -> str:
    text = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+|alignas\(\d+\)\s+)?([\w: ]+?)\s+(\w+)\[\];",
        r"\1 * \2 = (\1 *) emu::shared_dynamic();",
        text,
    )

    def declare(match: re.Match[str]) -> str:
        align = match.group(1)
        lines = []
        kind, declarators = match.group(2).strip(), split_top(match.group(3), ",")
        for declarator in declarators:
            name = re.match(r"\s*(\w+)", declarator)
            assert name
            dims = declarator[name.end() :].strip()
            n = name.group(1)
            alignment = f"std::max<size_t>(alignof(emu_type_{n}), {align})" if align else f"alignof(emu_type_{n})"
            lines.append(
                f"typedef {kind} emu_type_{n}{dims}; static const char emu_key_{n} = 0; emu_type_{n} & {n} = "
                f'*(emu_type_{n} *) emu::shared_array(&emu_key_{n}, "{n}", sizeof(emu_type_{n}), {alignment});'
            )
        return " ".join(lines)

    pattern = (
        r"(?<!extern )\b__shared__\s+(?:(?:__align__|alignas)\((\d+)\)\s+)?"  # alignment
        r"((?:const\s+)?[\w:]+(?:<[^;<>]*>)?)\s+"  # type
        r"([^;=(]*(?:\([^;]*\)[^;=(]*)*);"  # declarators
    )
    return re.sub(pattern, declare, text)


def convert(text: str) -> str:
    return asm_statements(shared_arrays(launches(text)))


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".cu", ".cuh", ".h", ".inc"):
            continue
        out = target / path.relative_to(source)
        new = convert(path.read_text())
        if not out.is_file() or out.read_text() != new:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(new)


if __name__ == "__main__":
    main()
