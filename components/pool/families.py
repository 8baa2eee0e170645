"""The families of the generated tasks, and how an instance of each is drawn.

Invariants (tested): no two families share a function word, so the wording alone tells the family; the solution makes
every check true; the untouched environment never does.
"""

from __future__ import annotations

from components.pool.lexicon import TYPOS, Draw
from components.pool.outline import Check
from components.pool.subtask import Family, Instance


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _check(name: str, *call: str) -> Check:
    return Check(name, call)


def _output(path: str, *lines: str) -> tuple[Check, ...]:
    """The three assertions of a family that writes `lines` to a new file."""
    return (
        _check("made", "is_file", path),
        _check("lines", "counts_lines", path, str(len(lines))),
        _check("equals", "equals", path, *lines),
    )


def _create(draw: Draw) -> Instance:
    f, w = draw.name(), draw.word()
    return Instance({"f": f, "w": w}, {}, _output(f, w))


def _append(draw: Draw) -> Instance:
    f, w = draw.name(), draw.word()
    before = draw.words(draw.rng.randint(1, 2))
    checks = (
        _check("last", "last_line", f, w),
        _check("lines", "counts_lines", f, str(len(before) + 1)),
        _check("kept", "first_line", f, before[0]),
    )
    return Instance({"f": f, "w": w}, {f: _lines(*before)}, checks)


def _mkdir(draw: Draw) -> Instance:
    a, b = draw.name(), draw.name()
    checks = (_check("outer", "is_folder", b), _check("inner", "is_folder", f"{b}/{a}"))
    return Instance({"a": a, "b": b}, {}, checks)


def _rename(draw: Draw) -> Instance:
    a, b, w = draw.name(), draw.name(), draw.word()
    checks = (_check("equals", "equals", b, w), _check("gone", "is_absent", a))
    return Instance({"a": a, "b": b}, {a: _lines(w)}, checks)


def _copy(draw: Draw) -> Instance:
    a, b, w = draw.name(), draw.name(), draw.word()
    checks = (_check("equals", "equals", b, w), _check("kept", "equals", a, w))
    return Instance({"a": a, "b": b}, {a: _lines(w)}, checks)


def _delete(draw: Draw) -> Instance:
    a, b, w = draw.name(), draw.name(), draw.word()
    checks = (_check("gone", "is_absent", a), _check("kept", "equals", b, w))
    return Instance({"a": a, "b": b}, {a: _lines(w), b: _lines(w)}, checks)


def _link(draw: Draw) -> Instance:
    a, b, w = draw.name(), draw.name(), draw.word()
    checks = (_check("equals", "equals", b, w), _check("link", "links_to", b, a))
    return Instance({"a": a, "b": b}, {a: _lines(w)}, checks)


def _exec(draw: Draw) -> Instance:
    f, w = draw.name(), draw.word()
    checks = (_check("kept", "equals", f, f"echo {w}"), _check("runs", "is_executable", f))
    return Instance({"f": f}, {f: _lines(f"echo {w}")}, checks)


def _count(draw: Draw) -> Instance:
    f, o, w, x = draw.name(), draw.name(), draw.word(), draw.word()
    wanted, others = draw.rng.randint(2, 6), draw.rng.randint(1, 4)
    lines = [w] * wanted + [x] * others
    draw.rng.shuffle(lines)
    return Instance({"f": f, "o": o, "w": w}, {f: _lines(*lines)}, _output(o, str(wanted)))


def _sort(draw: Draw) -> Instance:
    f, o = draw.name(), draw.name()
    lines = draw.words(3)
    lines.append(draw.rng.choice(lines))
    draw.rng.shuffle(lines)
    return Instance({"f": f, "o": o}, {f: _lines(*lines)}, _output(o, *sorted(set(lines))))


def _rsort(draw: Draw) -> Instance:
    f, o = draw.name(), draw.name()
    lines = sorted(draw.words(3))
    return Instance({"f": f, "o": o}, {f: _lines(*lines)}, _output(o, *reversed(lines)))


def _sum(draw: Draw) -> Instance:
    f, o = draw.name(), draw.name()
    column = draw.rng.randint(1, 3)
    rows = [[draw.rng.randint(1, 9) for _ in range(3)] for _ in range(3)]
    content = _lines(*(",".join(map(str, row)) for row in rows))
    total = sum(row[column - 1] for row in rows)
    return Instance({"f": f, "o": o, "k": str(column)}, {f: content}, _output(o, str(total)))


def _replace(draw: Draw) -> Instance:
    f, a, b, c = draw.name(), draw.word(), draw.word(), draw.word()
    checks = (
        _check("kept", "has_line", f, c),
        _check("gone", "lacks_line", f, a),
        _check("equals", "equals", f, b, c, b),
    )
    return Instance({"f": f, "a": a, "b": b}, {f: _lines(a, c, a)}, checks)


def _head(draw: Draw) -> Instance:
    f, o = draw.name(), draw.name()
    count = draw.rng.randint(1, 3)
    lines = draw.words(4)
    return Instance({"f": f, "o": o, "k": str(count)}, {f: _lines(*lines)}, _output(o, *lines[:count]))


def _tail(draw: Draw) -> Instance:
    f, o = draw.name(), draw.name()
    count = draw.rng.randint(1, 3)
    lines = draw.words(4)
    return Instance({"f": f, "o": o, "k": str(count)}, {f: _lines(*lines)}, _output(o, *lines[-count:]))


def _find(draw: Draw) -> Instance:
    w, d = draw.word(), draw.name()
    names = [draw.name(), draw.name()]
    target = draw.rng.choice(names)
    files = {name: _lines(w if name == target else draw.word()) for name in names}
    checks = (
        _check("folder", "is_folder", d),
        _check("gone", "is_absent", target),
        _check("moved", "equals", f"{d}/{target}", w),
    )
    return Instance({"w": w, "d": d}, files, checks)


def _archive(draw: Draw) -> Instance:
    w, o = draw.word(), draw.name()
    names = sorted(draw.name() for _ in range(3))
    other = draw.rng.choice(names)
    files = {name: _lines(draw.word() if name == other else w) for name in names}
    wanted = [name for name in names if name != other]
    checks = (
        _check("first", "archives", o, wanted[0], w),
        _check("second", "archives", o, wanted[1], w),
        _check("only", "lists_exactly", o, *wanted),
    )
    return Instance({"w": w, "o": o}, files, checks)


def _typo(draw: Draw) -> Instance:
    f = draw.name()
    key, other = draw.rng.sample(sorted(TYPOS), 2)
    wrong, value, beside = TYPOS[key], draw.word(), draw.word()
    lines = [f"{wrong}={value}", f"{other}={beside}"]
    draw.rng.shuffle(lines)
    checks = (
        _check("kept", "has_line", f, f"{other}={beside}"),
        _check("right", "has_line", f, f"{key}={value}"),
        _check("gone", "lacks_line", f, f"{wrong}={value}"),
    )
    return Instance({"f": f, "key": key, "wrong": wrong, "value": value}, {f: _lines(*lines)}, checks)


REPOSITORY = {
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "[core]\n\trepositoryformatversion = 0\n[user]\n\tname = agent\n\temail = agent@localhost\n"
    "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n",
    ".git/objects/.keep": "",
    ".git/refs/heads/.keep": "",
}
"""An empty repository as files: it needs no RUN line, so that its environment is built by copying alone."""


def _commit(draw: Draw) -> Instance:
    f, w, content = draw.name(), draw.word(), draw.word()
    checks = (
        _check("message", "commit_says", w),
        _check("content", "commit_holds", f, content),
        _check("kept", "equals", f, content),
    )
    return Instance({"f": f, "w": w}, {f: _lines(content), **REPOSITORY}, checks)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("create", "files", "write {w} inside {f}", "echo {w} > {f}", _create),
        Family("append", "files", "append {w} onto {f}", "echo {w} >> {f}", _append),
        Family("mkdir", "files", "nest {a} under {b}", "mkdir -p {b}/{a}", _mkdir),
        Family("rename", "files", "rename {a} as {b}", "mv {a} {b}", _rename),
        Family("copy", "files", "copy {a} over {b}", "cp {a} {b}", _copy),
        Family("delete", "files", "delete {a} sparing {b}", "rm {a}", _delete),
        Family("link", "files", "link {a} named {b}", "ln -s {a} {b}", _link),
        Family("exec", "files", "make {f} executable", "chmod +x {f}", _exec),
        Family("count", "text", "count {w} among {f} giving {o}", "grep -c {w} {f} > {o}", _count),
        Family("sort", "text", "sort {f} uniquely to {o}", "sort -u {f} > {o}", _sort),
        Family("rsort", "text", "reverse {f} order into {o}", "sort -r {f} > {o}", _rsort),
        Family(
            "sum",
            "text",
            "total column {k} of {f} at {o}",
            "awk -F, '{{s+=${k}}} END{{print s}}' {f} > {o}",
            _sum,
        ),
        Family("replace", "text", "replace {a} with {b} throughout {f}", "sed -i s/{a}/{b}/ {f}", _replace),
        Family("head", "text", "first {k} lines from {f} go {o}", "head -{k} {f} > {o}", _head),
        Family("tail", "text", "last {k} rows out {f} put {o}", "tail -{k} {f} > {o}", _tail),
        Family("typo", "search", "repair key {key} within {f}", "sed -i s/^{wrong}=/{key}=/ {f}", _typo),
        Family("find", "search", "locate {w} then move {d}", 'mkdir {d}; mv "$(grep -sl {w} *)" {d}', _find),
        Family("archive", "search", "bundle files mentioning {w} for {o}", "tar -cf {o} $(grep -sl {w} *)", _archive),
        Family("commit", "git", "commit {f} saying {w}", "git add {f}; git commit -qm {w}", _commit),
    )
}
