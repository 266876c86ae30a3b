"""LMI's decorators are found without importing the file, whatever names it gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.config.custom_code import MAX_SCRIPT
from lmi_handlers.config.decorators import decorated_functions
from lmi_handlers.core.errors import ConfigError

BODY = "\ndef f(x):\n    return x\n"


def write(directory: Path, text: str) -> Path:
    path = directory / "model.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("imports", "decorator", "found"),
    [
        ("from djl_python.input_parser import input_formatter", "input_formatter", "input_formatter"),
        ("from djl_python.input_parser import input_formatter as own", "own", "input_formatter"),
        ("from djl_python.input_parser import init_handler, prediction_handler", "init_handler", "init_handler"),
        ("from djl_python.input_parser import prediction_handler", "prediction_handler", "prediction_handler"),
        ("import djl_python.output_formatter", "djl_python.output_formatter.output_formatter", "output_formatter"),
        ("import djl_python.output_formatter as of", "of.output_formatter", "output_formatter"),
        ("from djl_python import output_formatter", "output_formatter.output_formatter", "output_formatter"),
        ("import djl_python.input_parser\nimport djl_python.output_formatter as o", "o.output_formatter", "output_formatter"),
        ("try:\n    import x\nexcept ImportError:\n    from djl_python.input_parser import *", "other", None),
        ("from djl_python.input_parser import *", "input_formatter", "input_formatter"),
        ("if 1:\n    import djl_python.input_parser as i", "i.input_formatter", "input_formatter"),
        ("from mine import output_formatter", "output_formatter", None),
        ("", "output_formatter", None),
    ],
)  # fmt: skip
def test_a_decorator_is_found_by_where_it_comes_from(
    tmp_path: Path, imports: str, decorator: str, found: str | None
) -> None:
    path = write(tmp_path, f"{imports}\n@{decorator}{BODY}")
    assert decorated_functions(path) == ({} if found is None else {found: "f"})


def test_functions_decorated_beside_the_file_count(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "parts.py").write_text(
        "import model\nfrom djl_python.output_formatter import output_formatter\n"
        f"@output_formatter{BODY}\n@output_formatter{BODY.replace('f(', 'unused(')}"
    )
    path = write(tmp_path, "from mine.parts import f as own\nfrom model import own\n")
    assert decorated_functions(path) == {"output_formatter": "own"}


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    """Each way from one file to another was gone: 30 files took a day."""
    for number in range(30):
        imports = "".join(f"from m{other} import *\n" for other in range(30) if other != number)
        (tmp_path / f"m{number}.py").write_text(imports)
    (tmp_path / "m29.py").write_text(
        f"from djl_python.output_formatter import output_formatter\n@output_formatter{BODY}"
    )
    path = write(tmp_path, "from m0 import *\n")
    assert decorated_functions(path) == {"output_formatter": "f"}


def test_a_file_is_not_longer_than_its_tree_may_be(tmp_path: Path) -> None:
    with raises(ConfigError, f"model.py {MAX_SCRIPT} bytes"):
        decorated_functions(write(tmp_path, "x\n" * MAX_SCRIPT))


def test_a_chain_of_too_many_files_is_an_error(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"m{number}.py").write_text(f"from m{number + 1} import f\n")
    with raises(ConfigError, "model.py import many files"):
        decorated_functions(write(tmp_path, "from m0 import f\n"))


def test_two_functions_of_one_kind_are_rejected(tmp_path: Path) -> None:
    imports = "from djl_python.output_formatter import output_formatter as of\n"
    path = write(tmp_path, f"{imports}@of{BODY}\n@of\nasync def g(x):\n    return x\n")
    with pytest.raises(ConfigError, match=r"@output_formatter, but f \(model.py, line 3\) and g \(model.py, line 7\)"):
        decorated_functions(path)
    write(tmp_path, f"{imports}@of{BODY}\n@of{BODY}")  # the second takes the first's name
    assert decorated_functions(path) == {"output_formatter": "f"}


def test_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.py, line 2: SyntaxError"):
        decorated_functions(write(tmp_path, "x = 1\ndef f(\n"))
