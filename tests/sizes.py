"""How large a noun may be: the limits for files, classes, constructors and functions, and what is still larger.

What goes over a limit holds two nouns: find the second one, a thing with a name of its own that callers talk to.
Moving methods into a base class, a mixin or an object that only forwards is no way out.

Only reads source text. tests/test_layers.py applies it.
"""

import ast
from collections.abc import Iterator

MAX_LINES = 400
"""Of a file of the product. Those of tests and scripts may have more: tests/layers.py."""
MAX_METHODS = 20
"""`def`s in the body of a class, dunder and private ones included."""
MAX_CONSTRUCTOR = 8
"""Parameters of an `__init__`, besides self."""
MAX_FUNCTION = 60
"""Lines of a function, from its `def` on: decorators, such as the options of a command, do not count."""

# What was too large when the limits came. Nothing is ever added. To strike a line, find the second noun and give it a
# file or a class of its own; the test says which lines are no longer needed.
STILL_LARGER = {
    # codecs
    # samplers
    # shared
    # cache
    # daemon
    # hints
    # prefetch
    # schedule
}


def too_large(file: str, text: str) -> Iterator[tuple[str, str]]:
    """(entry of STILL_LARGER, what is wrong) of everything in `file`, a path from the project's root, over a limit."""
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{file}: lines", f"{lines} lines, at most {MAX_LINES}"
    if not file.endswith(".py"):
        return
    for name, node in _definitions(ast.parse(text, file)):
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > MAX_METHODS:
                yield f"{file}: methods of {name}", f"{len(methods)} methods, at most {MAX_METHODS}"
            for method in methods:
                parameters = len([*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]) - 1
                if method.name == "__init__" and parameters > MAX_CONSTRUCTOR:
                    yield f"{file}: constructor of {name}", f"{parameters} parameters, at most {MAX_CONSTRUCTOR}"
        else:
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{file}: function {name}", f"{length} lines, at most {MAX_FUNCTION}"


def _definitions(
    tree: ast.AST, within: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(dotted name, definition) of every class and function, those inside others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # nothing is defined in one
        name = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{node.name}" if within else node.name
            yield name, node
        yield from _definitions(node, name)
