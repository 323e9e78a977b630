"""Changes that make a source wrong, one at a time.

What is changed are operators, comparisons and their boundaries, conditions, numbers, names in quotes,
the order of two arguments, defaults; and statements are removed. Nothing is changed in annotations,
docstrings, and what an error says; and no assignment is removed whose name is nowhere else, since
the first run of that line would fail.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
UNTOUCHED = ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr
UNTOUCHED_FIELDS = ("annotation", "returns", "decorator_list")
OF_TYPES = ("isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast", "TypeVar")
COMMUTATIVE = ("max", "min", "gcd", "lcm")
NAME = re.compile(r"[\w./{}*-]+")  # a string that is no sentence


@dataclass(frozen=True)
class Place:
    """A node that can be changed, and how."""

    node: ast.AST
    how: str
    statement: ast.stmt  # in which it is
    scope: ast.AST  # the function or class around it, or the module
    siblings: list[ast.stmt] | None = None  # of a statement that can be removed


@dataclass(frozen=True)
class Mutant:
    """A file with one change: as a tree, which has the lines of the source, and in words."""

    file: str
    number: int  # of the place, among those of the file
    line: int
    how: str
    before: str
    after: str
    tree: ast.Module
    near: tuple[range, ...]
    """The lines of its statement, then those of the function or class around it; of a block that is
    removed, before them, those in it."""
    defines: tuple[str, ...]
    """The names that its statement assigns outside of functions: of constants, and of fields."""


def places(tree: ast.Module) -> list[Place]:
    """All places of a module, in the order of its text."""
    return list(_places(tree, tree.body[0], tree))


def _places(node: ast.AST, statement: ast.stmt, scope: ast.AST) -> Iterator[Place]:
    if isinstance(node, UNTOUCHED) or _is_ignored(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = node
    how = _how(node)
    if how:
        yield Place(node, how, statement, scope)
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED_FIELDS:
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.stmt) and _is_removable(child, scope):
                yield Place(child, "statement", child, scope, siblings=value)
            if isinstance(child, ast.AST):
                yield from _places(child, statement, scope)


def _is_ignored(node: ast.AST) -> bool:
    """Docstrings, `__all__`, what only a type checker reads, zip's `strict`, and types."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.Call) and ast.unparse(node.func) in OF_TYPES


def _how(node: ast.AST) -> str:
    """What can be changed in this node, or nothing."""
    if isinstance(node, ast.BinOp):
        of_text = any(
            isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)
        )
        return "operator" if type(node.op) in OTHER and not of_text else ""
    if isinstance(node, ast.BoolOp | ast.AugAssign):
        return "operator" if type(node.op) in OTHER else ""
    if isinstance(node, ast.Compare):
        return "comparison"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        plain = isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant)
        return "" if plain else "condition"
    if isinstance(node, ast.UnaryOp):
        return "sign" if isinstance(node.op, ast.Not | ast.USub) else ""
    if isinstance(node, ast.Constant):
        counts = isinstance(node.value, bool | int | float)
        return "constant" if counts or (_is_text(node) and NAME.fullmatch(node.value)) else ""
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        starred = any(isinstance(one, ast.Starred) for one in node.args[:2])
        same = ast.dump(node.args[0]) == ast.dump(node.args[1])
        useless = starred or same or ast.unparse(node.func) in COMMUTATIVE
        return "" if useless else "arguments"
    return ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_removable(node: ast.stmt, scope: ast.AST) -> bool:
    """Whether the function could do without: what it assigns also has a value from elsewhere."""
    if not isinstance(scope, ast.FunctionDef):
        return False
    if isinstance(node, ast.Assign):
        names = [
            n.id
            for n in ast.walk(node.targets[0])
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        bound = [
            n.id
            for n in ast.walk(scope)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        bound += [n.arg for n in ast.walk(scope.args) if isinstance(n, ast.arg)]
        return all(bound.count(name) > 1 for name in names)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.If | ast.Delete | ast.Continue | ast.Break)


def change(place: Place, random: Random) -> None:
    """Make it wrong."""
    node = place.node
    match place.how:
        case "operator":
            node.op = OTHER[type(node.op)]()
        case "comparison":
            other = OPPOSITE
            if type(node.ops[0]) in BOUNDARY and random.random() < 0.7:
                other = BOUNDARY
            node.ops[0] = other[type(node.ops[0])]()
        case "condition":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "sign":
            # `--x` and `not not x`
            node.operand = ast.UnaryOp(type(node.op)(), node.operand)
        case "arguments":
            node.args[:2] = node.args[1], node.args[0]
        case "statement":
            place.siblings[place.siblings.index(node)] = ast.Pass()
        case "constant" if isinstance(node.value, str):
            node.value = node.value[:-1]
        case "constant" if isinstance(node.value, bool):
            node.value = not node.value
        case "constant" if isinstance(node.value, int):
            node.value += random.choice((1, -1))
        case "constant":
            node.value = random.choice((node.value * 2 or 1.0, node.value + 1))


def mutant(file: str, text: str, number: int, seed: int) -> Mutant:
    """The file with its place of that number changed."""
    tree = ast.parse(text)
    place = places(tree)[number]
    whole = ast.unparse(tree).splitlines()
    near = [_lines(place.statement)]
    if place.how == "statement" and hasattr(place.node, "body"):
        # Of a removed `if`, first those that it lets in
        near.insert(0, range(place.node.body[0].lineno, place.node.end_lineno + 1))
    if place.scope is not tree:
        near.append(range(place.scope.lineno, place.scope.end_lineno + 1))
    change(place, Random(f"{seed} {file} {number}"))
    ast.fix_missing_locations(tree)
    before, after = _difference(whole, ast.unparse(tree).splitlines())
    defines = () if isinstance(place.scope, ast.FunctionDef) else _names(place.statement)
    line = place.node.lineno
    return Mutant(file, number, line, place.how, before, after, tree, tuple(near), defines)


def _names(statement: ast.stmt) -> tuple[str, ...]:
    """The names that an assignment gives a value."""
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return ()
    nodes = [node for target in targets for node in ast.walk(target)]
    return tuple(node.id for node in nodes if isinstance(node, ast.Name))


def _lines(statement: ast.stmt) -> range:
    """Those of a statement, without the statements in it."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno + 1
    if body:
        end = max(body[0].lineno, statement.lineno + 1)
    return range(statement.lineno, end)


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    """The first line that differs, before and after; a removed block is its first line, and nothing."""
    for old, new in zip(before, after, strict=False):
        if old != new:
            return old.strip(), new.strip()
    return "", ""
