"""Imports point one way, and asking for help does not load a model's machinery."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tinygpt.cli.main import COMMANDS

PACKAGE = Path(__file__).parent.parent / "src" / "tinygpt"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom, by the first part of the name inside the package. LEAVES are everybody's.
LEAVES = {"errors", "units"}
MAY_IMPORT = {
    "ops": {"ops"},
    "cache": {"cache", "ops"},
    "models": {"models", "cache", "ops"},
    "io": {"io", "models", "cache", "ops", "tokenizer"},
    "tokenizer": set(),
    "chat": {"tokenizer"},
    "sampling": {"sampling_options"},
    "sampling_options": set(),
    "text_stream": set(),
    "engine": {"models", "cache", "ops"},
    "generate": {"engine", "models", "cache"},
    "evaluate": {"evaluate", "engine", "generate", "models", "cache", "ops"},
    "plot": {"plot"},
    "uncached": {"generate", "models", "cache"},
    "blas": {"blas_alias"},
    "blas_alias": set(),
    "memory": set(),
    "errors": set(),
    "units": set(),
    "__main__": {"cli"},
}
FORBIDDEN_PACKAGES = {"cache": {"click", "tokenizers", "jinja2"}, "ops": {"click", "tokenizers"}}


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions, with absolute names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; name the module in full"
            names.add(node.module or "")
            if node.module == "tinygpt":
                names |= {f"tinygpt.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    unit = unit_of(path)
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("tinygpt.")}
    ours -= {"__version__"}
    if unit in ("cli", "__init__"):
        return
    assert unit in MAY_IMPORT, f"{unit} is new: say in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[unit] | LEAVES
    assert ours <= allowed, f"{unit} imports {sorted(ours - allowed)}, which lie above or beside it"
    foreign = {name.split(".")[0] for name in imported(path)}
    assert not foreign & FORBIDDEN_PACKAGES.get(unit, set())


def test_nobody_but_main_imports_the_command_line() -> None:
    users = {
        unit_of(path)
        for path in MODULES
        if any(name.startswith("tinygpt.cli") for name in imported(path))
    }
    assert users <= {"cli", "__main__"}


@pytest.mark.parametrize("one, other", [("storage", "eviction"), ("eviction", "storage")])
def test_storage_and_eviction_know_of_each_other_only_the_protocol(one: str, other: str) -> None:
    for path in (PACKAGE / "cache" / one).glob("*.py"):
        known = {name for name in imported(path) if name.startswith(f"tinygpt.cache.{other}")}
        assert known <= {f"tinygpt.cache.{other}.base"}, path.name


@pytest.mark.parametrize("room", ["io/gguf", "io/huggingface", "io/tinygpt"])
def test_a_format_does_not_look_into_the_room_of_another(room: str) -> None:
    others = {path.name for path in (PACKAGE / "io").iterdir() if (path / "__init__.py").is_file()}
    assert Path(room).name in others, "the room has moved"
    for path in (PACKAGE / room).glob("*.py"):
        parts = [name.split(".") for name in imported(path) if name.startswith("tinygpt.io.")]
        known = {part[2] for part in parts} & others
        assert known <= {Path(room).name}, f"{path}: what two formats need stands in io/ itself"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_not_look_into_the_room_of_another(command: str) -> None:
    room = PACKAGE / "cli" / command
    files = sorted(room.glob("*.py")) if room.is_dir() else [room.with_suffix(".py")]
    for path in files:
        parts = [name.split(".") for name in imported(path) if name.startswith("tinygpt.cli.")]
        known = {part[2] for part in parts} & set(COMMANDS)
        assert known <= {command}, f"{path}: what two commands need stands in cli/ itself"


def test_what_the_commands_share_knows_none_of_them() -> None:
    rooms = tuple(f"tinygpt.cli.{command}" for command in COMMANDS)
    for path in (PACKAGE / "cli").glob("*.py"):
        if path.stem not in COMMANDS:
            assert not any(name.startswith(rooms) for name in imported(path)), path.name


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []], ids=str)
def test_help_does_not_import_mlx(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from tinygpt.cli.main import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit as end:\n"
        "    heavy = {'mlx', 'numpy', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "    sys.exit(f'imported {heavy}' if heavy or end.code else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tinygpt" in done.stdout
