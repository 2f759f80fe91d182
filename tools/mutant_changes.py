"""What a mutant may change: expressions and statements, with their replacement."""

import ast
from collections.abc import Iterator

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


def iter_nodes(
    node: ast.AST, prefix: str, function: str | None
) -> Iterator[tuple[ast.AST, str | None]]:
    """Yield a node and those in it with the function that they run in.

    Decorators and defaults run where the function is defined.
    """
    yield node, function
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            name = prefix + node.name
            inside: list[ast.AST] = list(node.body)
            for child in ast.iter_child_nodes(node):
                if child not in inside:
                    yield from iter_nodes(child, prefix, function)
            for child in inside:
                yield from iter_nodes(child, f"{name}.<locals>.", name)
        case ast.ClassDef():
            for child in ast.iter_child_nodes(node):
                yield from iter_nodes(child, f"{prefix}{node.name}.", function)
        case ast.Call(func=ast.Name(id="dataclass")) | ast.keyword(arg="strict" | "examples"):
            # frozen, slots and strict forbid what nothing here does
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from iter_nodes(child, prefix, function)


def iter_changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the expressions and statements to replace at a node, with their replacement."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed = ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
            yield node, f"({ast.unparse(changed)})"
        case ast.BinOp(op=op) if type(op) in OPERATORS and not is_text(node):
            yield node, f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(op)](), node.right))})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"bool({ast.unparse(operand)})"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool()):
            yield node, repr(not node.value)
        case ast.Constant(value=int() | float()):
            yield node, repr(node.value + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


def is_text(node: ast.BinOp) -> bool:
    """Return whether an operation joins texts or the parts of a path."""
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        or (isinstance(node.op, ast.Div) and isinstance(side, ast.Name) and side.id.isupper())
        for side in (node.left, node.right)
    )
