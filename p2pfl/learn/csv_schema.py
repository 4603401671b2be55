"""What the columns of a table mean and where they go in the model's input: declared in `[task]`, equal on all nodes."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A numeric column takes two inputs: (value - mean) / std, and 1.0 where it is missing. A category takes one per
    value, all 0 where it is missing. Regression targets are standardized too if a mean or std is declared for them.
    """

    target: str
    numeric: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]
    classes: tuple[str, ...] | None
    """None is regression."""
    means: dict[str, float]
    stds: dict[str, float]

    @property
    def width(self) -> int:
        return 2 * len(self.numeric) + sum(len(values) for values in self.categories.values())

    @property
    def outputs(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    def standardized(self, column: str, value: float) -> float:
        return (value - self.means.get(column, 0.0)) / self.stds.get(column, 1.0)


def make_schema(
    *,
    target: str,
    numeric: list[str],
    categories: dict[str, list[str]],
    classes: list[str] | None,
    means: dict[str, float],
    stds: dict[str, float],
) -> Schema:
    """Check that the declared columns make sense together.

    Raises:
        UserError: a column is declared twice, there is none, or a list of values is too short.
    """
    columns = [target, *numeric, *categories]
    if len(columns) == 1:
        raise UserError("there are no features", key="task.numeric", allowed="columns in numeric or categories")
    for column in columns:
        if columns.count(column) > 1:
            raise UserError("this column is declared twice", key="task", value=column)
    for key, values in (*((f"categories.{name}", v) for name, v in categories.items()), ("classes", classes)):
        if values is not None and (len(values) < 2 or len(set(values)) < len(values)):
            raise UserError("wrong values", key=f"task.{key}", value=values, allowed="two or more different ones")
    _check_scales([*numeric, *([target] if classes is None else [])], means, stds)
    return Schema(
        target=target,
        numeric=tuple(numeric),
        categories={name: tuple(values) for name, values in categories.items()},
        classes=None if classes is None else tuple(classes),
        means=means,
        stds=stds,
    )


def _check_scales(numeric: list[str], means: dict[str, float], stds: dict[str, float]) -> None:
    for key, table in (("means", means), ("stds", stds)):
        for column in table:
            if column not in numeric:
                raise UserError("no numeric column", key=f"task.{key}", value=column, allowed=", ".join(numeric))
    for column, std in stds.items():
        if not std > 0:
            raise UserError("no standard deviation", key=f"task.stds.{column}", value=std, allowed="above 0")
