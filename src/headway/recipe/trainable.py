"""What this version's engine builds, of all that a recipe can describe. Everything else can be planned, and only that.

Precision of a parameter is what its products run in:

    float32    read from the master weight: embeddings, routers, and what the recipe names so
    bfloat16   everything else
    float8     as bfloat16, and the projections of blocks multiply in 8 bits (``model/float8.py``): those of attention, of the
               feed-forward, of shared experts, and of heads for further tokens. Never embedding, head, routers, norms, biases;
               and not routed experts, whose grouped products stay in bfloat16. Where float8 is named for any of these together
               with a projection (a whole layer), they compute in bfloat16, and a router as it did
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from headway.base.errors import ConfigError, EnvironmentFault, Problem
from headway.recipe.lines import KeyPath
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ModelSpec, PrecisionSpec

TRAINED_PRECISIONS = ("bfloat16", "float32", "float8")
FROM_MASTER = (Role.EMBEDDING, Role.ROUTER, Role.BALANCE)
FLOAT8_STEP = 16
"""Both sizes of a weight are multiples of it: cuBLAS and CUTLASS take no others in 8 bits. Refused on a CPU too, where
products are emulated: a recipe trains everywhere or nowhere."""
PLAN_ONLY = "it can be planned, with headway plan"


def refuse_untrainable(
    precision: PrecisionSpec, locate: Callable[[KeyPath], str] = lambda path: "", model: ModelSpec | None = None
) -> None:
    """ConfigError for a type of products that cannot be trained, EnvironmentFault where the package that multiplies is absent.

    ``locate`` says where a key of the recipe stands. With ``model`` also names and sizes are checked, as the engine does.
    """
    asked: list[tuple[KeyPath, str]] = [(("precision", "compute"), precision.compute)]
    asked += [(("precision", "modules", name), kind) for name, kind in precision.modules.items()]
    if unknown := [(path, kind) for path, kind in asked if kind not in TRAINED_PRECISIONS]:
        raise ConfigError([_unknown(path, kind, locate(path)) for path, kind in unknown])
    if model is not None:
        parameter_precisions(model, precision)
    if find_spec("torchao") is None and (float8 := [path for path, kind in asked if kind == "float8"]):
        raise EnvironmentFault(
            [without_torchao(_key(path), "is not installed in this environment", locate(path)) for path in float8]
        )


def parameter_precisions(model: ModelSpec, precision: PrecisionSpec) -> dict[str, str]:
    """Parameter -> float32, bfloat16 or float8; ``head.weight`` is there for tied embeddings too.

    Of the names that ``precision.modules`` gives the longest that stands in a parameter's name decides. ConfigError for one
    that stands in none, for float8 where nothing can multiply in it, and for projections whose sizes float8 cannot take.
    """
    shapes = _shapes(model)
    found = {name: "float32" if shape.role in FROM_MASTER else precision.compute for name, shape in shapes.items()}
    for part, kind in sorted(precision.modules.items(), key=lambda item: len(item[0])):
        named = [shape for name, shape in shapes.items() if f".{part}." in f".{name}."]
        _refuse_name(part, kind, named, list(shapes))
        kept = FROM_MASTER if kind == "float8" else (Role.EMBEDDING, Role.BALANCE)
        found |= {shape.name: kind for shape in named if shape.role not in kept}
    found = {name: "bfloat16" if kind == "float8" and not _is_projection(shapes[name]) else kind for name, kind in found.items()}
    _refuse_sizes([shapes[name] for name, kind in found.items() if kind == "float8"])
    return found


def refuse_names(model: ModelSpec, precision: PrecisionSpec, locate: Callable[[KeyPath], str] = lambda path: "") -> None:
    """ConfigError for what ``precision.modules`` names and no parameter has, or what cannot multiply in float8."""
    shapes = _shapes(model)
    for part, kind in precision.modules.items():
        try:
            _refuse_name(part, kind, [shape for name, shape in shapes.items() if f".{part}." in f".{name}."], list(shapes))
        except ConfigError as error:
            (problem,) = error.problems
            raise ConfigError([replace(problem, where=locate(("precision", "modules", part)))]) from error


def _shapes(model: ModelSpec) -> dict[str, ParameterShape]:
    """By name, with a head in any case."""
    shapes = {shape.name: shape for shape in parameter_shapes(model)}
    shapes.setdefault("head.weight", ParameterShape("head.weight", (model.vocabulary, model.width), Role.HEAD))
    return shapes


def without_torchao(key: str, cause: str, where: str = "") -> Problem:
    """``key``: what asks for float8."""
    return Problem(
        f"{key} = 'float8' needs torchao, which {cause}",
        f"products in 8 bits run through torchao; those in bfloat16 and float32 do not, and without it {PLAN_ONLY}",
        "install it with its float8 extra: pip install '.[float8]' in a clone of Headway",
        where,
    )


def _is_projection(shape: ParameterShape) -> bool:
    """A matrix inside that whole rows of tokens are multiplied with; experts have an axis more."""
    return shape.role in (Role.MATRIX, Role.RESIDUAL) and len(shape.shape) == 2


def _unknown(path: KeyPath, kind: str, where: str) -> Problem:
    return Problem(
        f"{_key(path)} = {kind!r} cannot be trained by this version",
        f"products run in {', '.join(TRAINED_PRECISIONS[:-1])} or {TRAINED_PRECISIONS[-1]}",
        f'{PLAN_ONLY}; to train, use "bfloat16"',
        where,
    )


def _refuse_name(part: str, kind: str, named: list[ParameterShape], names: list[str]) -> None:
    if not named:
        raise ConfigError(
            f"precision.modules names {part!r}, and no parameter of this model has it in its name",
            "a module is named as its parameters are, by whole parts of the name: layers.0, attention, ffn.down, head",
            f"modules here: {', '.join(_modules(names))}",
        )
    if kind == "float8" and not any(_is_projection(shape) for shape in named):
        raise ConfigError(
            f"precision.modules.{part} = 'float8', and nothing in {part!r} multiplies in float8",
            "float8 is for projections of blocks; embedding, head, routers, norms and routed experts stay in wider types",
            f'leave it out, or name it "bfloat16"; {PLAN_ONLY}',
        )


def _modules(names: list[str]) -> list[str]:
    """Each kind of module once, layers by number left out."""
    return list(dict.fromkeys(".".join(part for part in name.split(".")[:-1] if not part.isdigit()) for name in names))


def _refuse_sizes(projections: list[ParameterShape]) -> None:
    """One problem per size, whatever the number of layers."""
    by_size: dict[tuple[int, ...], list[str]] = {}
    for shape in projections:
        if any(size % FLOAT8_STEP for size in shape.shape):
            by_size.setdefault(shape.shape, []).append(shape.name)
    if by_size:
        raise ConfigError([_wrong_size(size, names) for size, names in by_size.items()])


def _wrong_size(size: tuple[int, ...], names: list[str]) -> Problem:
    others = f" and {len(names) - 1} more like it" if len(names) > 1 else ""
    return Problem(
        f"{names[0]}{others}: {' x '.join(map(str, size))} cannot multiply in float8",
        f"both sizes of a weight in float8 are multiples of {FLOAT8_STEP}",
        f'change the size, or name the module "bfloat16" under precision.modules; {PLAN_ONLY}',
    )


def _key(path: KeyPath) -> str:
    return ".".join(map(str, path))
