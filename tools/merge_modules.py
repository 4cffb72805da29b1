"""Merges and moves modules of src/discreet by a plan, and follows every name that is imported from them.

    python tools/merge_modules.py PLAN            # says what would be done, and what is in the way
    python tools/merge_modules.py PLAN --write    # does it; run `ruff check --fix` and `ruff format` after it

A line of the plan is `target: source source ...`, dotted names below `discreet`; the parts are written in an
order in which everything is defined before it is used at import, otherwise as listed. The docstrings of the
parts become paragraphs of one. `rename module name new` renames a name at the top of a module; names that begin
with an underscore and collide get their module's name as a suffix. `package old new` moves a package.

What is in the way is listed and nothing is written: a name that two parts define, a name of one part that is a
builtin in another, a local variable that would hide a name, a cycle of imports among the new modules.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".txt", ".js", ".html", ".json", ".css")


def module_of(path: Path) -> str:
    parts = list(path.relative_to(SRC).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass
class Plan:
    groups: dict[str, list[str]] = field(default_factory=dict)
    renames: dict[tuple[str, str], str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Plan:
        plan = cls()
        for line in path.read_text().splitlines():
            line = line.split("#")[0].strip()
            if not line:
                continue
            if line.startswith("rename "):
                _, module, old, new = line.split()
                plan.renames["discreet." + module, old] = new
            elif line.startswith("package "):
                _, old, new = line.split()
                plan.packages["discreet." + old] = "discreet." + new
            else:
                target, _, sources = line.partition(":")
                plan.groups["discreet." + target.strip()] = ["discreet." + s for s in sources.split()]
        return plan


class House:
    def __init__(self, plan: Plan):
        self.paths = {module_of(p): p for p in sorted(SRC.rglob("*.py"))}
        self.trees = {m: ast.parse(p.read_text()) for m, p in self.paths.items()}
        self.plan = plan
        self.moved: dict[str, str] = {}
        self.problems: list[str] = []
        for target, sources in plan.groups.items():
            for source in sources:
                if source not in self.paths:
                    self.problems.append(f"no module {source} (for {target})")
                if source in self.moved:
                    self.problems.append(f"{source} is in two groups")
                self.moved[source] = target
            if target in self.paths and target not in sources and not self.is_package(target):
                self.problems.append(f"{target} exists and is not among its parts")
        for old, new in plan.packages.items():
            for module in self.paths:
                if (module == old or module.startswith(old + ".")) and module not in self.moved:
                    self.moved[module] = new + module[len(old) :]

    def is_package(self, module: str) -> bool:
        return module in self.paths and self.paths[module].name == "__init__.py"

    def new(self, module: str) -> str:
        return self.moved.get(module, module)

    def new_is_package(self, module: str) -> bool:
        return self.is_package(module) and module not in self.plan.groups

    def names_of_package(self, package: str) -> set[str]:
        """Return what an `__init__` binds that is no module, though it may have the name of one."""
        tree = self.trees.get(package, ast.Module([], []))
        found = set(top_names(tree))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                base = resolve(node, package, self.is_package(package))
                found |= {a.asname or a.name for a in node.names if f"{base}.{a.name}" not in self.paths}
        return found

    def defined(self, module: str) -> dict[str, ast.stmt]:
        return top_names(self.trees[module])


def top_names(tree: ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}

    def targets(node: ast.expr) -> list[str]:
        if isinstance(node, ast.Name):
            return [node.id]
        if isinstance(node, ast.Tuple | ast.List):
            return [n for e in node.elts for n in targets(e)]
        return []

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(node.name, node)
            elif isinstance(node, ast.Assign):
                for t in node.targets:
                    for n in targets(t):
                        found.setdefault(n, node)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                for n in targets(node.target):
                    found.setdefault(n, node)
            elif isinstance(node, ast.For):
                for n in targets(node.target):
                    found.setdefault(n, node)
                visit(node.body)
            elif isinstance(node, ast.If) and not is_type_checking(node):
                visit(node.body)
                visit(node.orelse)
            elif isinstance(node, ast.Try | ast.With):
                visit(node.body)

    visit(tree.body)
    found.pop("__all__", None)
    return found


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@dataclass
class Scope:
    """The local names of a function or class, and the scopes around it."""

    names: set[str]
    outer: Scope | None
    is_class: bool = False

    def hides(self, name: str, inner: bool = True) -> bool:
        if name in self.names and (inner or not self.is_class):
            return True
        return self.outer is not None and self.outer.hides(name, False)


class Uses(ast.NodeVisitor):
    """Finds every use of a name that is global, with the scope it stands in."""

    def __init__(self) -> None:
        self.names: list[tuple[ast.Name, Scope]] = []
        self.attributes: list[tuple[ast.Attribute, Scope]] = []
        self.scope = Scope(set(), None)

    def _inner(self, node: ast.AST, names: set[str], is_class: bool, children: list[ast.AST]) -> None:
        before, self.scope = self.scope, Scope(names, self.scope, is_class)
        for child in children:
            self.visit(child)
        self.scope = before

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(part)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [a for a in (node.args.vararg, node.args.kwarg) if a]
        for a in arguments:
            if a.annotation:
                self.visit(a.annotation)
        if node.returns:
            self.visit(node.returns)
        self._inner(node, {a.arg for a in arguments} | local_names(node.body), False, list(node.body))

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(part)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [a for a in (node.args.vararg, node.args.kwarg) if a]
        self._inner(node, {a.arg for a in arguments}, False, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.visit(part)
        self._inner(node, local_names(node.body), True, list(node.body))

    def _comprehension(self, node: ast.AST) -> None:
        names = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self._inner(node, names, False, list(ast.iter_child_nodes(node)))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Name(self, node: ast.Name) -> None:
        self.names.append((node, self.scope))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.attributes.append((node, self.scope))
        self.generic_visit(node)


def local_names(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    stack: list[ast.AST] = list(body)
    freed: set[str] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        if isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        if isinstance(node, ast.Global | ast.Nonlocal):
            freed |= set(node.names)
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        stack.extend(ast.iter_child_nodes(node))
    return names - freed


class Text:
    """A file whose pieces are replaced by position."""

    def __init__(self, text: str):
        self.text = text
        lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.data = text.encode()
        self.edits: list[tuple[int, int, bytes]] = []

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def replace(self, node: ast.AST, new: str) -> None:
        start = self.at(node.lineno, node.col_offset)
        end = self.at(node.end_lineno, node.end_col_offset)
        self.edits.append((start, end, new.encode()))

    def done(self) -> str:
        data = self.data
        seen: set[tuple[int, int]] = set()
        for start, end, new in sorted(self.edits, reverse=True):
            if (start, end) in seen:
                continue
            seen.add((start, end))
            data = data[:start] + new + data[end:]
        return data.decode()


def resolve(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    base = module.split(".")
    base = base[: len(base) - node.level + (1 if is_package else 0)]
    return ".".join(base + (node.module.split(".") if node.module else []))


def relative(target: str, own: str, own_is_package: bool) -> str:
    here = own.split(".") if own_is_package else own.split(".")[:-1]
    there = target.split(".")
    common = 0
    while common < min(len(here), len(there)) and here[common] == there[common]:
        common += 1
    return "." * (len(here) - common + 1) + ".".join(there[common:])


def follow(house: House, path: Path, text: str, module: str | None) -> str:
    """Return the file with every import of what moved, and every use of it, put right."""
    tree = ast.parse(text)
    own_new = house.new(module) if module else None
    own_package = bool(module) and house.is_package(module)
    new_package = own_package and (module not in house.moved or module in house.plan.packages)
    out = Text(text)
    uses = Uses()
    uses.visit(tree)
    bound = set(top_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {a.asname or a.name.split(".")[0] for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    renamed: dict[str, str] = {}  # a global name of this file -> its new name
    inlined: dict[str, str] = {}  # a name bound to a module that is now this one -> the old module
    if module:
        for (where, old), new in house.plan.renames.items():
            if where == module:
                renamed[old] = new
                for node in tree.body:
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == old:
                        start = out.at(
                            node.lineno, node.col_offset + (4 if isinstance(node, ast.FunctionDef) else 6)
                        )
                        out.edits.append((start, start + len(old.encode()), new.encode()))

    modules: dict[str, str] = {}  # names bound to modules, and where these will be
    olds: dict[str, str] = {}  # and where these are now
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = resolve(node, module or "", own_package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in house.paths and alias.name not in house.names_of_package(base):
                    modules[alias.asname or alias.name] = house.new(full)
                    olds[alias.asname or alias.name] = full
    gone: set[ast.stmt] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = resolve(node, module or "", own_package)
        if not base.startswith("discreet"):
            continue
        wanted: dict[str, list[str]] = defaultdict(list)
        order: list[str] = []
        changed = False
        for alias in node.names:
            full = f"{base}.{alias.name}"
            local = alias.asname or alias.name
            if full in house.paths and alias.name not in house.names_of_package(base):
                new = house.new(full)
                changed |= new != full
                if new == own_new:
                    inlined[local] = full
                    continue
                parent, leaf = new.rsplit(".", 1)
                if alias.asname:
                    item = f"{leaf} as {alias.asname}" if alias.asname != leaf else leaf
                elif leaf == alias.name:
                    item = leaf
                elif leaf in bound and modules.get(leaf) != new:
                    item = f"{leaf} as {alias.name}"
                else:
                    item = leaf
                    renamed[local] = leaf
                into = parent
            else:
                into = house.new(base)
                name = house.plan.renames.get((base, alias.name), alias.name)
                changed |= into != base or name != alias.name
                if own_new is not None and into == own_new and not new_package:
                    changed = True
                    if local != name:
                        renamed[local] = name
                    continue
                if alias.asname:
                    item = f"{name} as {alias.asname}" if alias.asname != name else name
                else:
                    item = name
                    if name != alias.name:
                        renamed[local] = name
            if into not in order:
                order.append(into)
            wanted[into].append(item)
        if own_new != module and node.level:
            changed = True
        if not changed:
            continue
        statements = []
        for into in order:
            where = relative(into, own_new, new_package) if node.level else into
            statements.append(f"from {where} import {', '.join(dict.fromkeys(wanted[into]))}")
        indent = "\n" + " " * node.col_offset
        if not statements:
            gone.add(node)
        out.replace(node, indent.join(statements) if statements else REMOVED)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and all(n in gone for n in body):
            for n in body:
                out.edits = [e for e in out.edits if e[0] != out.at(n.lineno, n.col_offset)]
            out.replace(node, REMOVED) if is_type_checking(node) else out.replace(body[0], "pass")

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in house.moved:
                    out.replace(
                        alias, house.new(alias.name) + (f" as {alias.asname}" if alias.asname else "")
                    )

    for attribute, scope in uses.attributes:
        name = attribute.value.id
        new_name = house.plan.renames.get((olds.get(name, ""), attribute.attr))
        if new_name and name not in inlined:
            start = out.at(attribute.end_lineno, attribute.end_col_offset) - len(attribute.attr.encode())
            out.edits.append((start, start + len(attribute.attr.encode()), new_name.encode()))
        if name in inlined:
            member = house.plan.renames.get((inlined[name], attribute.attr), attribute.attr)
            if scope.hides(member):
                house.problems.append(
                    f"{path}:{attribute.lineno}: {name}.{member} would be hidden by a local {member}"
                )
            out.replace(attribute, member)
    for name, scope in uses.names:
        if name.id in renamed and not scope.hides(name.id):
            out.replace(name, renamed[name.id])
        if name.id in inlined and not scope.hides(name.id):
            inside = any(a.value is name for a, _ in uses.attributes)
            if not inside:
                house.problems.append(f"{path}:{name.lineno}: module {name.id} is used as a value")
    return REMOVED_LINE.sub("", out.done())


REMOVED = "__removed_import__"
REMOVED_LINE = re.compile(r"^[ \t]*__removed_import__[ \t]*(#.*)?\n", re.M)


def split(text: str) -> tuple[str, list[str], list[str], str, list[str]]:
    """Return docstring, imports, imports for types only, the rest, and the names of `__all__`."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    doc = ast.get_docstring(tree) or ""
    imports, types, exported = [], [], []
    drop: set[int] = set()
    body = list(tree.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        drop |= set(range(body[0].lineno, body[0].end_lineno + 1))
        body = body[1:]
    for node in body:
        span = range(node.lineno, node.end_lineno + 1)
        source = "".join(lines[i - 1] for i in span)
        if isinstance(node, ast.Import | ast.ImportFrom):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                imports.append(source)
            drop |= set(span)
        elif is_type_checking(node) and not node.orelse:
            types += ["".join(lines[i - 1] for i in range(n.lineno, n.end_lineno + 1)) for n in node.body]
            drop |= set(span)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            exported += ast.literal_eval(node.value)
            drop |= set(span)
    rest = "".join(line for i, line in enumerate(lines, 1) if i not in drop)
    return doc, imports, types, rest.strip("\n") + "\n", exported


def order_of(house: House, sources: list[str]) -> list[str]:
    inside = set(sources)
    needs: dict[str, set[str]] = {s: set() for s in sources}
    for source in sources:
        for node in house.trees[source].body:
            if isinstance(node, ast.ImportFrom):
                base = resolve(node, source, house.is_package(source))
                needs[source] |= {base} & inside
                needs[source] |= {f"{base}.{a.name}" for a in node.names} & inside
        needs[source].discard(source)
    done: list[str] = []
    while len(done) < len(sources):
        ready = [s for s in sources if s not in done and needs[s] <= set(done)]
        done.append(ready[0] if ready else next(s for s in sources if s not in done))
    return done


def collisions(house: House) -> None:
    """Rename private names that collide; note the public ones that do."""
    for target, sources in house.plan.groups.items():
        owners: dict[str, list[str]] = defaultdict(list)
        for source in sources:
            for name in house.defined(source):
                owners[name].append(source)
        for name, where in owners.items():
            if len(where) > 1:
                dumps = {ast.dump(house.defined(s)[name]) for s in where}
                if len(dumps) == 1:
                    continue
                for source in where[1:]:
                    if (source, name) in house.plan.renames:
                        continue
                    if (where[0], name) in house.plan.renames and len(where) == 2:
                        continue
                    if name.startswith("_"):
                        house.plan.renames[source, name] = f"{name}_{source.rsplit('.', 1)[1].lstrip('_')}"
                        print(f"renamed {source}.{name} -> {house.plan.renames[source, name]}")
                    else:
                        house.problems.append(f"{target}: {name} is defined by {' and '.join(where)}")
        imported: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for source in sources:
            for node in house.trees[source].body:
                if isinstance(node, ast.ImportFrom):
                    base = resolve(node, source, house.is_package(source))
                    for a in node.names:
                        imported[a.asname or a.name].add((house.new(base), a.name))
                elif isinstance(node, ast.Import):
                    for a in node.names:
                        imported[a.asname or a.name.split(".")[0]].add((a.name, ""))
        for name, origins in imported.items():
            if len({o for o in origins}) > 1:
                house.problems.append(f"{target}: {name} is imported from {sorted(origins)}")
            for source in owners.get(name, []):
                if any(base != target and f"{base}.{n}" not in sources for base, n in origins):
                    if (source, name) not in house.plan.renames:
                        house.problems.append(
                            f"{target}: {name} is defined by {source} and imported from {origins}"
                        )
        for source in sources:
            own = house.defined(source)
            uses = Uses()
            uses.visit(house.trees[source])
            known = set(own) | {
                a.asname or a.name.split(".")[0]
                for n in ast.walk(house.trees[source])
                if isinstance(n, ast.Import | ast.ImportFrom)
                for a in n.names
            }
            for name, scope in uses.names:
                if (
                    name.id in owners
                    and name.id not in known
                    and not scope.hides(name.id)
                    and hasattr(builtins, name.id)
                ):
                    house.problems.append(f"{target}: {name.id} is a builtin in {source}:{name.lineno}")


def cycles(house: House) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, tree in house.trees.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                base = resolve(node, module, house.is_package(module))
                for a in node.names:
                    full = f"{base}.{a.name}"
                    goal = full if full in house.paths else base
                    if goal in house.paths and not house.is_package(goal):
                        graph[house.new(module)].add(house.new(goal))
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    sys.setrecursionlimit(10000)

    def connect(v: str) -> None:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in graph[v]:
            if w not in index:
                connect(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == v:
                    break
            if len(part) > 1:
                edges = [f"{a}->{b}" for a in part for b in graph[a] if b in part]
                house.problems.append("cycle: " + " ".join(e.replace("discreet.", "") for e in edges))

    for v in list(graph):
        if v not in index:
            connect(v)


def merged(house: House, target: str, texts: dict[str, str]) -> str:
    docs, imports, types, bodies, exported = [], [], [], [], []
    seen: set[str] = set()
    listed = house.plan.groups[target]
    for source in order_of(house, listed):
        _, own_imports, own_types, rest, own_exported = split(texts[source])
        imports += own_imports
        types += own_types
        exported += own_exported
        kept = rest
        tree = ast.parse(rest)
        lines = rest.splitlines(keepends=True)
        for node in reversed(tree.body):
            names = top_names(ast.Module([node], []))
            dump = ast.dump(node)
            if names and dump in seen:
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                del lines[first - 1 : node.end_lineno]
        seen |= {ast.dump(n) for n in tree.body if top_names(ast.Module([n], []))}
        kept = "".join(lines)
        bodies.append(kept.strip("\n"))
    for source in listed:
        docs.append(split(texts[source])[0])
    doc = "\n\n".join(d for d in docs if d)
    quote = 'r"""' if "\\" in doc else '"""'
    text = f'{quote}{doc}\n"""\n\n' if "\n" in doc else f'{quote}{doc}"""\n\n'
    text += "from __future__ import annotations\n\n" + "".join(imports) + "\n"
    if types:
        local = {n for b in bodies for n in top_names(ast.parse(b))}
        known = {
            a.asname or a.name.split(".")[0]
            for i in imports
            for n in ast.walk(ast.parse(i))
            if isinstance(n, ast.Import | ast.ImportFrom)
            for a in n.names
        }
        kept_types = []
        for t in types:
            node = ast.parse(t.strip()).body[0]
            node.names = [a for a in node.names if (a.asname or a.name) not in known | local]
            if node.names:
                kept_types.append("    " + ast.unparse(node) + "\n")
        if kept_types:
            text += "if TYPE_CHECKING:\n" + "".join(dict.fromkeys(kept_types)) + "\n"
    if exported:
        text += f"__all__ = {sorted(set(exported))!r}\n\n".replace("'", '"')
    return text + "\n\n\n".join(b for b in bodies if b) + "\n"


def main() -> None:
    plan = Plan.read(Path(sys.argv[1]))
    house = House(plan)
    if not any(p.startswith("no module") for p in house.problems):
        collisions(house)
        cycles(house)
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    written: dict[Path, str] = {}
    texts: dict[str, str] = {}
    if not any(p.startswith("no module") for p in house.problems):
        for name in tracked:
            path = ROOT / name
            if path.suffix == ".py" and path.is_file() and name != "tools/merge_modules.py":
                module = module_of(path) if path.is_relative_to(SRC) else None
                text = path.read_text()
                new = follow(house, path.relative_to(ROOT), text, module)
                if module:
                    texts[module] = new
                if new != text:
                    written[path] = new
    print(f"{len(house.paths)} modules -> {len({house.new(m) for m in house.paths})}")
    for problem in dict.fromkeys(house.problems):
        print("PROBLEM", problem)
    if "--write" not in sys.argv or house.problems:
        sys.exit(1 if house.problems else 0)
    for module in list(house.moved):
        written.pop(house.paths[module], None)
    new_files = {
        target: merged(house, target, texts) if len(sources) > 1 else texts[sources[0]]
        for target, sources in plan.groups.items()
    }
    for module, target in house.moved.items():
        if target not in plan.groups:
            new_files[target] = texts[module]
    packages = {m for m in house.paths if house.is_package(m)}
    for path, text in written.items():
        path.write_text(text)
    for module in house.moved:
        house.paths[module].unlink()
    for target, text in new_files.items():
        old_package = {house.new(p) for p in packages}
        path = SRC / Path(*target.split("."))
        path = (
            path / "__init__.py"
            if target in old_package and target not in plan.groups
            else path.with_suffix(".py")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names(house, tracked)


def names(house: House, tracked: list[str]) -> None:
    """Follow dotted names and paths in prose, settings and strings."""
    moved = {old: new for old, new in house.moved.items() if old != new}
    if not moved:
        return

    def paths(module: str) -> str:
        return module.replace(".", "/") + ".py"

    table: dict[str, str] = {}
    for old, new in moved.items():
        table[old] = new
        table[paths(old)] = paths(new)
        table[paths(old).removeprefix("discreet/")] = paths(new).removeprefix("discreet/")
    pattern = re.compile(
        r"(?<![\w./-])(?:src/)?(?:"
        + "|".join(re.escape(k) for k in sorted(table, key=len, reverse=True))
        + r")(?![\w])"
    )
    short = {old.removeprefix("discreet."): new.removeprefix("discreet.") for old, new in moved.items()}
    prose = re.compile(
        r"(?<=`)(?:" + "|".join(re.escape(k) for k in sorted(short, key=len, reverse=True)) + r")(?![\w])"
    )
    for name in tracked:
        path = ROOT / name
        if (
            path.suffix not in TEXTS
            or not path.is_file()
            or name == "CHANGELOG.md"
            or name.startswith("tools/")
        ):
            continue
        text = path.read_text()

        def swap(found: re.Match[str]) -> str:
            word = found.group(0)
            lead = "src/" if word.startswith("src/") else ""
            return lead + table[word.removeprefix("src/")]

        new = pattern.sub(swap, text)
        if path.suffix == ".md" or name.startswith("src/"):
            new = prose.sub(lambda m: short[m.group(0)], new)
        if path.suffix == ".toml" and new != text:
            seen: set[str] = set()
            kept = []
            for line in new.splitlines(keepends=True):
                if line.strip().startswith('"') and line in seen:
                    continue
                seen.add(line)
                kept.append(line)
            new = "".join(kept)
        if new != text:
            path.write_text(new)


if __name__ == "__main__":
    main()
