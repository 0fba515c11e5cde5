"""The GitHub-crawled kernels of the LLMPerf paper without instrumentation, as folder or tarball.

They are public: repository ``minhkhoi1026/cldrive``, branch ``scalar_gen_dev`` (commit 3469fb9),
folder ``github-crawled-kernels-modified`` (15,502 files). Every file there carries the paper's
instrumentation: a first line ``//{"arg": position, ...}``, a function ``hook(argId, id)`` that
prints, and ``hook(N, expr)`` around each array index. This program removes the instrumentation.
Files that the instrumentation damaged beyond repair are left out and counted.

``git clone -b scalar_gen_dev https://github.com/minhkhoi1026/cldrive RAW``

``python -m benchmarks.data.github_corpus RAW/github-crawled-kernels-modified github.tar.xz``

Third-party code, under its authors' licences: keep the result out of version control.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
from io import BytesIO
from pathlib import Path

_HOOK_DEFINITION = re.compile(
    r"\A(?://\{[^\n]*\}\s*\n)?\s*int hook\(int argId, int id\)\s*\{.*?return id;\s*\}\s*", re.DOTALL
)
_HOOK_CALL_OR_PAREN = re.compile(r"\b(?P<stray>\w)?hook\(\s*\d+\s*,\s*|[()]")
"""Matches a call of ``hook``, or a parenthesis. In 434 files the paper's instrumentation damaged
nested indices: ``a[b[i]]`` became ``a[b[ihook(2, i)]``, with an additional letter (``stray``) and
without one bracket."""


def unhook(source: str) -> str:
    """Return ``source`` without the hook function, and ``expr`` for every ``hook(N, expr)``.

    Raises:
        ValueError: The result still has a hook, or its brackets do not match.

    >>> unhook("a[hook(0, f(i))] = b[c[ihook(2, i)];")
    'a[f(i)] = b[c[i]];'
    """
    text = _HOOK_DEFINITION.sub("", source, count=1)
    kept: list[str] = []
    position = depth = 0
    open_hooks: list[tuple[int, str]] = []
    for token in _HOOK_CALL_OR_PAREN.finditer(text):
        kept.append(text[position : token.start()])
        position = token.end()
        if token.group() == ")":
            depth -= 1
            if open_hooks and open_hooks[-1][0] == depth:
                kept.append(open_hooks.pop()[1])
            else:
                kept.append(")")
        elif token.group() == "(":
            depth += 1
            kept.append("(")
        else:
            open_hooks.append((depth, "]" if token["stray"] else ""))
            depth += 1
    clean = "".join(kept) + text[position:]
    if "hook(" in clean or any(clean.count(a) != clean.count(b) for a, b in ("()", "[]", "{}")):
        raise ValueError("damaged beyond repair")
    return clean


def main() -> int:
    """Run the command line; return 3 if there is no kernel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("raw", type=Path, help="the folder github-crawled-kernels-modified")
    parser.add_argument("out", type=Path, help="the tarball to write, .tar.xz")
    given = parser.parse_args()
    files, num_damaged = {}, 0
    for path in sorted(given.raw.glob("*.cl")):
        try:
            files[path.name] = unhook(path.read_text(encoding="utf-8"))
        except ValueError:
            num_damaged += 1
    if not files:
        print(
            f"{given.raw} has no readable .cl file: name the folder of the kernels", file=sys.stderr
        )
        return 3
    with tarfile.open(given.out, "w:xz", preset=9) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"github/{name}")
            member.size = len(data := text.encode())
            archive.addfile(member, BytesIO(data))
    print(f"{given.out}: {len(files)} files; {num_damaged} damaged ones left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
