#!/usr/bin/env python3
"""Figures of the house: `python3 benches/house/figures.py [CHECKOUT] [--long]`.

Reads the sources of a checkout (this one without an argument) and prints one figure a line, beside the aim where there is one.
Figures beyond their aim come first and are marked `red`.
  lines      production lines without src/sim; with `--long` of each folder
  world      open fields of the structs of decide/world: other files may change them
  fields     the same of the scheduler; `Context` is counted apart, with every field that is not private
  contexts   functions that are lent a whole `Context`; those without `self` among the methods of a type
  calls      the largest set of files whose methods call each other, in the scheduler
  circles    sets of files that import each other, in src/
  way        files and returns on a pod's way from watch to unlock, from way.txt beside this script
  records    fields of the widest struct of the scheduler; functions longer than 100 and 60 lines; parameters of type `bool`
  keys       configuration keys, by docs/configuration.md
  words      words in docs/, those in tables that programs print apart; the longest page
  tests      lines below tests/
With `--long` also what stands behind each figure. It needs Python 3.9 and nothing else, and runs on commits before it.

What counts: files below `src/` without tests (`#[cfg(test)]` items and the files that they declare). A line count takes
everything before the first `#[cfg(test)]` of the files of a folder of `src/` whose path has no `test`. The scheduler is
src/decide/{core,bind,scheduler,gang,tyjob,explain}; up to ba7fe40 it was src/decide/{cycle,framework,plugins,job,placement}.

Calls are counted twice. "on self" follows `self.name(…)` to the methods of the same type. "of any function" also follows calls on
fields, parameters and unique names and of free functions, so that no change of the receiver hides an arrow.
"""

import collections
import pathlib
import re
import sys

SCHEDULER = ["core", "bind", "scheduler", "gang", "tyjob", "explain"]
FORMER_SCHEDULER = ["cycle", "framework", "plugins", "job", "placement"]
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<h>#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^u]|\\u\{\w+\}|[^\\'])'|'\w+"""
    r"""|[A-Za-z_]\w*!?(?==)|[A-Za-z_]\w*|\d[\w.]*|::|->|=>|\s+|.""",
    re.S,
)
OPEN, CLOSE = dict(zip("([{", ")]}")), set(")]}")


def tokens(text):
    """Words and signs without comments, strings and white space."""
    found = [match.group() for match in TOKEN.finditer(text)]
    return [word for word in found if not word.isspace() and not word.startswith(("//", "/*", '"', 'b"', "r#", 'r"'))]


def closing(words, at):
    """Position of the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(words)):
        depth += (words[end] in OPEN) - (words[end] in CLOSE)
        if depth == 0:
            return end
    return len(words) - 1


def without_tests(words):
    """Splits off items under `#[cfg(test)]`: what remains, and the modules that they declare."""
    kept, modules, at = [], [], 0
    while at < len(words):
        if words[at : at + 7] != ["#", "[", "cfg", "(", "test", ")", "]"]:
            kept.append(words[at])
            at += 1
            continue
        at, name, path = at + 7, None, None
        while at < len(words) and words[at] not in (";", "{"):
            name = words[at + 1] if words[at] == "mod" else name
            at = closing(words, at) + 1 if words[at] in OPEN else at + 1
        modules += [name] if name and at < len(words) and words[at] == ";" else []
        at = closing(words, at) + 1 if at < len(words) and words[at] == "{" else at + 1
    return kept, modules


class File:
    """One source file: `module` is its path as a module, `("decide", "world", "pod")`."""

    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_text()
        self.words, self.test_modules = without_tests(tokens(self.text))
        parts = path.relative_to(root / "src").with_suffix("").parts
        self.module = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
        lines = self.text.splitlines()
        ends = [at for at, line in enumerate(lines) if line.strip().startswith("#[cfg(test)]")]
        self.lines = ends[0] if ends else len(lines)


def read(root):
    """Production files below `src/`."""
    files = [File(root, path) for path in sorted((root / "src").rglob("*.rs"))]
    tests = {file.module + (name,) for file in files for name in file.test_modules}
    attributed = set()
    for file in files:
        for path in re.findall(r'#\[cfg\(test\)\]\s*#\[path = "([^"]+)"\]', file.text):
            attributed.add((pathlib.PurePosixPath(file.path).parent / path).as_posix())
    is_test = lambda file: file.path in attributed or any(file.module[: len(test)] == test for test in tests)
    return [file for file in files if not is_test(file)]


def components(graph):
    """Strongly connected components with more than one member, the largest first."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for to in sorted(graph.get(node, ())):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            members = []
            while not members or members[-1] != node:
                members.append(stack.pop())
                on.discard(members[-1])
            if len(members) > 1:
                found.append(sorted(members))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=lambda members: (-len(members), members))


# --- fields


def structs(file):
    """(name, [(visibility, field, type)]) of structs with named fields."""
    words, found = file.words, []
    for at, word in enumerate(words):
        if word != "struct":
            continue
        end = at + 2
        while words[end] not in (";", "{", "("):
            end += 1
        if words[end] != "{":
            continue
        inner, fields, start = words[end + 1 : closing(words, end)], [], 0
        while start < len(inner):
            if inner[start] == "#":
                start = closing(inner, start + 1) + 1
                continue
            visibility = ""
            if inner[start] == "pub":
                visibility, start = "pub", start + 1
                if inner[start] == "(":
                    stop = closing(inner, start)
                    visibility, start = "pub(" + " ".join(inner[start + 1 : stop]) + ")", stop + 1
            name, start, kind, depth = inner[start], start + 2, [], 0
            while start < len(inner) and (depth or inner[start] != ","):
                depth += (inner[start] in OPEN or inner[start] == "<") - (inner[start] in CLOSE or inner[start] == ">")
                kind.append(inner[start])
                start += 1
            fields.append((visibility, name, kind))
            start += 1
        found.append((words[at + 1], fields))
    return found


def open_fields(files):
    found = []
    for file in files:
        for name, fields in structs(file):
            found += [f"{file.path}: {name}.{field}" for seen, field, _ in fields if seen.startswith("pub(")]
    return found


# --- calls

# Names of methods that standard types have too: a call counts only where the type of its receiver is known.
STANDARD = set(
    """all and_then any append as_deref as_mut as_ref as_str borrow chain clear clone cmp collect contains contains_key count drain entry
    eq expect extend filter find first flatten fold from get get_mut get_or_insert_with insert into is_empty is_none is_some iter iter_mut
    keys last len map max min next ok or_default pop position push range remove replace reserve retain sort split split_off start
    sum swap take then to_owned to_string unwrap_or values zip fmt default drop write read send name""".split()
)


def methods(file):
    """(type or None, function, words of parameters, words of body) of every function with a body."""
    words, found, at, owner, until = file.words, [], 0, None, -1
    while at < len(words):
        if at > until:
            owner = None
        if words[at] in ("impl", "trait") and (at == 0 or words[at - 1] in ("}", ";", "]", ")", "unsafe", "pub")):
            header, end, depth = [], at + 1, 0
            while words[end] != "{":
                depth += (words[end] == "<") - (words[end] == ">")
                header += [words[end]] if not depth and words[end] != ">" else []
                end += 1
            if "where" in header:
                header = header[: header.index("where")]
            if "for" in header:
                header = header[header.index("for") + 1 :]
            names = [word for word in header if word[0].isalpha() and word not in ("dyn", "mut")]
            owner, until, at = names[-1] if names else None, closing(words, end), end + 1
            continue
        if words[at] == "fn" and re.match(r"[a-z_]", words[at + 1]):
            start = at + 2
            while words[start] != "(":
                start += 1
            end = closing(words, start)
            parameters, end = words[start + 1 : end], end + 1
            while words[end] not in (";", "{"):
                end = closing(words, end) + 1 if words[end] in "([" else end + 1
            if words[end] == "{":
                stop = closing(words, end)
                found.append((owner, words[at + 1], parameters, words[end + 1 : stop]))
                at = stop
        at += 1
    return found


def call_graph(files, own):
    """file -> files whose functions it calls, and the calls as (from, to, name); `own`: calls of `self.name(…)` only."""
    defined, by_name, fields = collections.defaultdict(set), collections.defaultdict(set), {}
    functions = [(file.path, *found) for file in files for found in methods(file)]
    types = {name for file in files for name in re.findall(r"\b(?:struct|enum|trait)\s+(\w+)", file.text)}
    for path, owner, name, _, _ in functions:
        owner = owner if owner in types else pathlib.PurePosixPath(path).stem
        defined[owner, name].add(path)
        by_name[name].add(owner)
    for file in files:
        for name, members in structs(file):
            fields[name] = {field: next((word for word in kind if word in types), None) for _, field, kind in members}
    calls = []
    for path, owner, _, parameters, body in functions:
        known = {"self": owner}
        for at, word in enumerate(parameters):
            if word == ":" and at:
                kind = [part for part in parameters[at + 1 : at + 7]]
                stop = kind.index(",") if "," in kind else len(kind)
                known[parameters[at - 1]] = next((part for part in kind[:stop] if part in types), None)
        for at in range(1, len(body) - 1):
            name, target = body[at], None
            if body[at + 1] != "(" or not re.match(r"[a-z_]", name):
                continue
            if own:
                target = owner if body[at - 2 : at] == ["self", "."] and body[at - 3 : at - 2] != ["."] else None
            elif body[at - 1] == "::":
                target = owner if body[at - 2] == "Self" else body[at - 2]
            else:
                target = receiver(body, at - 2, known, fields) if body[at - 1] == "." else None
                if target is None and name not in STANDARD and len(by_name[name]) == 1:
                    target = next(iter(by_name[name]))
            calls += [(path, to, name) for to in defined.get((target, name), ()) if to != path]
    graph = collections.defaultdict(set)
    for start, to, _ in calls:
        graph[start].add(to)
    return graph, calls


def receiver(body, at, known, fields):
    """Type of `a.b.c` that ends at `at`; `None` when it is not that simple."""
    chain = []
    while at >= 0 and re.match(r"[a-z_]", body[at]):
        chain.insert(0, body[at])
        if at < 2 or body[at - 1] != ".":
            break
        at -= 2
    else:
        return None
    kind = known.get(chain[0])
    for field in chain[1:]:
        kind = fields.get(kind, {}).get(field)
    return kind


# --- circles


def use_trees(words):
    """Paths of every `use`: (public, [parts]); the last part is `*` for a glob, and `(part, alias)` for a renamed one."""
    found, at = [], 0

    def tree(at, prefix, public):
        path = list(prefix)
        while True:
            word = words[at]
            if word == "{":
                end, at = closing(words, at), at + 1
                while at < end:
                    at = tree(at, path, public)
                    at += words[at] == ","
                return end + 1
            path.append(word)
            at += 1
            if words[at] != "::":
                break
            at += 1
        alias = path[-1]
        if words[at] == "as":
            alias, at = words[at + 1], at + 2
        found.append((public, path, alias))
        return at

    while at < len(words):
        if words[at] == "use" and (at == 0 or words[at - 1] in (";", "}", "{", "]", "pub", ")")):
            public = at > 0 and words[at - 1] in ("pub", ")")
            at = tree(at + 1 + (words[at + 1] == "::"), [], public)
        at += 1
    return found


def import_graph(files):
    """file -> files whose items it imports, re-exports followed to the file that defines the item."""
    by_module = {file.module: file for file in files if file.path != "src/main.rs"}
    exports = {}  # module -> {name: path}, and its globs
    uses = {}
    for module, file in by_module.items():
        uses[module] = [(absolute(path, module), alias, public) for public, path, alias in use_trees(file.words)]
        uses[module] = [(path, alias, public) for path, alias, public in uses[module] if path is not None]
        named = {alias: path for path, alias, _ in uses[module] if path[-1] != "*"}
        exports[module] = named, [path[:-1] for path, _, public in uses[module] if path[-1] == "*" and public]

    def home(path, depth=0):
        """Module of the file that defines what `path` names."""
        path = tuple(path)
        if path in by_module or depth > 20:
            return path
        for end in range(len(path) - 1, -1, -1):
            if path[:end] not in by_module:
                continue
            rest, (named, globs) = path[end:], exports[path[:end]]
            if rest[0] in named and named[rest[0]] != path:
                return home(named[rest[0]] + rest[1:], depth + 1)
            for glob in globs:
                if re.search(rf"\b(?:struct|enum|trait|fn|type|const|static)\s+{re.escape(rest[0])}\b", text(glob, depth)):
                    return home(glob + rest, depth + 1)
            return path[:end]
        return ()

    def text(module, depth):
        found = home(module, depth + 1)
        return by_module[found].text if found in by_module else ""

    graph = collections.defaultdict(set)
    for module, paths in uses.items():
        if by_module[module].path.endswith(("/mod.rs", "/lib.rs")):
            continue
        for path, _, _ in paths:
            to = home(path[:-1] if path[-1] in ("*", "self") else path)
            if to in by_module and to != module and not by_module[to].path.endswith(("/mod.rs", "/lib.rs")):
                graph[by_module[module].path].add(by_module[to].path)
    return graph


def absolute(path, module):
    """A path of a `use` from `src/`, whose folders are packages; `None` for other crates."""
    if path[-1] == "self":
        path = path[:-1]
    if path[0] == "crate":
        return module[:1] + tuple(path[1:])
    if path[0].startswith("baton_"):
        return (path[0].removeprefix("baton_"),) + tuple(path[1:])
    if path[0] == "self":
        return module + tuple(path[1:])
    up = 0
    while up < len(path) and path[up] == "super":
        up += 1
    if up:
        return module[: len(module) - up] + tuple(path[up:])
    return module + tuple(path) if path[0][0].islower() and (module + (path[0],)) in MODULES else None


MODULES = set()


# --- way


def way(root, data):
    """Steps of way.txt: its files, the files under `[scheduler]`, how often it returns to a file it has left, and what is wrong."""
    entered, ours, returns, last, wrong, part = [], [], 0, None, [], None
    for line in data.read_text().splitlines():
        if line.startswith("["):
            part = line.strip("[]")
        if not line.strip() or line[0] in "#[":
            continue
        path, function = line.split()[:2]
        if not (root / path).is_file():
            wrong.append(f"{path}: no such file")
        elif not re.search(rf"\bfn {re.escape(function)}\b", (root / path).read_text()):
            wrong.append(f"{path}: no function {function}")
        returns += path != last and path in entered
        entered += [path] if path not in entered else []
        ours += [path] if part == "scheduler" and path not in ours else []
        last = path
    return entered, ours, returns, wrong


# --- records, documents


def long_functions(files, limit):
    """Functions with more than `limit` lines from `fn` to the closing brace, by the text: rustfmt closes them at the indent of `fn`."""
    found = []
    for file in files:
        lines = file.text.splitlines()[: file.lines]
        for at, line in enumerate(lines):
            match = re.match(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe )*fn (\w+)", line)
            if match:
                end = next((end for end in range(at, len(lines)) if re.match(match[1] + r"}(?!\S)", lines[end]) or lines[end].endswith(";") and end == at), at)
                found += [f"{end - at + 1} {file.path}: {match[2]}"] if end - at + 1 > limit else []
    return sorted(found, key=lambda item: -int(item.split()[0]))


def bool_parameters(files):
    return [
        f"{file.path}: {name}({words[at - 1]})"
        for file in files
        for _, name, words, _ in methods(file)
        for at, word in enumerate(words)
        if word == ":" and at and words[at + 1 : at + 2] == ["bool"] and words[at + 2 : at + 3] in ([], [","])
    ]


def lent_contexts(files):
    """Functions with a parameter `&Context` or `&mut Context`; and those of them that belong to a type and have no `self`."""
    found, static = [], []
    for file in files:
        for owner, name, words, _ in methods(file):
            if "Context" in words and words[words.index("Context") - 1] in ("&", "mut", "'_", "::"):
                found.append(f"{file.path}: {name}")
                static += [f"{file.path}: {owner}::{name}"] if owner and "self" not in words else []
    return found, static


KEY = re.compile(r"\| `([a-z][\w-]*)`[^|]*\| `BATON_")


def documents(root):
    """(page, words, words in tables that a program prints) of docs/: those of keys, conditions, XIDs and metrics."""
    found = []
    for path in sorted((root / "docs").glob("*.md")):
        hand, printed, within = 0, 0, False
        for line in path.read_text().splitlines():
            within = line.startswith("|") and (within or line.startswith(("| condition | of |", "| XID | what it is |", "| metric | kind |")) or bool(KEY.match(line)))
            count = len(line.split())
            hand, printed = (hand, printed + count) if within else (hand + count, printed)
        found.append((path.relative_to(root).as_posix(), hand, printed))
    return found


def keys(root):
    page = root / "docs/configuration.md"
    return [line.split("`")[1] for line in page.read_text().splitlines() if KEY.match(line)] if page.exists() else []


def main():
    places = [word for word in sys.argv[1:] if not word.startswith("-")]
    long = "--long" in sys.argv
    here = pathlib.Path(__file__).resolve().parent
    root = pathlib.Path(places[0]).resolve() if places else here.parent.parent
    files = read(root)
    MODULES.update(file.module for file in files)
    former = (root / "src/decide/cycle").is_dir()
    folders = tuple(f"src/decide/{name}{end}" for name in (FORMER_SCHEDULER if former else SCHEDULER) for end in ("/", ".rs"))
    scheduler = [file for file in files if file.path.startswith(folders)]
    world = [file for file in files if file.path.startswith("src/decide/world/")]
    decide = [file for file in files if file.path.startswith("src/decide/")]
    lines = {file.path: file.lines for file in files}
    printed = []

    def figure(name, text, behind, *aims):
        """`aims`: pairs of a value and what it may be at most."""
        wrong = [value for value, aim in aims if value > aim]
        aim = f" (aim: {', '.join(f'{aim:,}' for _, aim in aims)})" if aims else ""
        printed.append((not wrong, f"{'red ' if wrong else '    '}{name:10}{text}{aim}", list(behind) if long else []))

    by_folder = collections.Counter()
    for path in (root / "src").glob("*/**/*.rs"):
        if "test" not in path.relative_to(root).as_posix():
            by_folder["/".join(path.relative_to(root / "src").parts[:-1][:2])] += File(root, path).lines
    simulator = sum(count for folder, count in by_folder.items() if folder.split("/")[0] == "sim")
    total = sum(by_folder.values()) - simulator
    figure("lines", f"{total:,} production lines without src/sim ({simulator:,})", (f"{count:7,} {folder}" for folder, count in sorted(by_folder.items())), (total, 70_000))

    found = open_fields(world)
    figure("world", f"{len(found)} open fields in decide/world, {sum('.rs: World.' in field for field in found)} of them in World", found, (sum(".rs: World." in field for field in found), 0))
    found = open_fields(scheduler)
    widest = collections.Counter(field.rsplit(".", 1)[0] for field in found).most_common(1) or [("", 0)]
    figure("fields", f"{len(found)} open fields in the scheduler, {widest[0][1]} of them in one struct", found)
    context = [field for file in scheduler for name, fields in structs(file) if name == "Context" for seen, field, _ in fields if seen]
    figure("context", f"{len(context)} fields of Context that other files see", context, (len(context), 8))
    found, static = lent_contexts(decide)
    figure("contexts", f"{len(found)} functions are lent a whole Context, {len(static)} of them static functions of a type", found, (len(found), 90), (len(static), 0))

    for own, what in [(True, "on self"), (False, "of any function")]:
        graph, calls = call_graph(scheduler, own)
        found = components(graph)
        largest = found[0] if found else []
        size = sum(lines[path] for path in largest)
        figure(
            "calls",
            f"{what}: {len(largest)} files, {size:,} lines in the largest of {len(found)} components; {len(calls)} calls cross a file",
            [f"{len(members)}: {' '.join(members)}" for members in found],
            *([] if own else [(len(largest), 25), (size, 6000)]),
        )

    found = components(import_graph(files))
    figure("circles", f"{len(found)} of files that import each other, {sum(map(len, found))} files in them", (" ".join(members) for members in found), (len(found), 3))

    if former:
        figure("way", "54 files, about 18 returns (counted by hand at ba7fe40)", [])
    else:
        entered, ours, returns, wrong = way(root, here / "way.txt")
        text = f"{len(entered)} files, {len(ours)} of them on the scheduler's side; {returns} returns"
        figure("way", "".join([text, *(f"; wrong: {line}" for line in wrong)]), entered, (len(entered), 26), (len(ours), 14), (returns, 6))

    widths = sorted(((len(fields), f"{file.path}: {name}") for file in scheduler for name, fields in structs(file)), reverse=True)[:20]
    figure("records", f"{widths[0][0]} fields in the widest of the scheduler", (f"{count} {name}" for count, name in widths), (widths[0][0], 10))
    found = long_functions(files, 60)
    over = [item for item in found if int(item.split()[0]) > 100]
    figure("functions", f"{len(over)} longer than 100 lines, {len(found)} longer than 60", found, (len(over), 0), (len(found), 25))
    found = bool_parameters(files)
    figure("bools", f"{len(found)} parameters of type bool", found, (len(found), 60))

    found = keys(root)
    figure("keys", f"{len(found)} configuration keys", found, (len(found), 90))
    found = documents(root)
    hand, tables = sum(page[1] for page in found), sum(page[2] for page in found)
    longest = max(found, key=lambda page: page[1])
    figure(
        "words",
        f"{hand:,} in docs/ and {tables:,} in tables that programs print; the longest page {longest[1]:,} ({longest[0]})",
        (f"{page[1]:6,} {page[2]:6,} {page[0]}" for page in found),
        (hand, 28_000),
        (longest[1], 3000),
    )
    count = sum(len(path.read_text().splitlines()) for path in (root / "tests").rglob("*.rs"))
    figure("tests", f"{count:,} lines below tests/", [], (count, 44_000))

    for _, line, behind in sorted(printed, key=lambda entry: entry[0]):
        print(line)
        print("".join(f"        {item}\n" for item in behind), end="")


if __name__ == "__main__":
    main()
