"""Prices looked up: a team's own lists first, then prices.yaml. Nothing is looked up in the network or made up."""

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from configs.keys import explain
from configs.schema.operations import LOCAL_WORKER, Basis, Charge, CostConfig, Price, PriceList
from configs.yaml_files import read_yaml_file
from tasks.foundation.errors import ConfigError
from tasks.foundation.s3_path import local_or_s3

UNNAMED = "unnamed machine"  # its `batch.*_instance` is null
PRICES = Path(__file__).with_name("prices.yaml")
_EXAMPLE = (
    "- {basis: on_demand, region: us-east-1, date: 2026-07-20, source: a page, "
    "dollars_per_hour: {trn1.32xlarge: 21.50}}"
)
_LISTS = TypeAdapter(tuple[PriceList, ...])


def read_prices(path: PurePath, label: str = "") -> tuple[PriceList, ...]:
    """Return the price lists of a YAML file.

    Raises:
        ConfigError: the file can't be read, or is not a list of price lists; names file, entry and key.
    """
    try:
        return _LISTS.validate_python(read_yaml_file(path, label))
    except ValidationError as error:
        raise ConfigError(
            f"{label}{path}: {explain(error, tuple[PriceList, ...])}; expected a list, as in `{_EXAMPLE}`"
        ) from None


@cache
def published() -> tuple[PriceList, ...]:
    """Return the lists of prices.yaml."""
    return read_prices(PRICES)


def find_price(lists: Iterable[PriceList], instance: str, region: str, basis: Basis) -> Price | None:
    """Return the newest price of an instance type in a region; None if no list has it."""
    found = [one.price(instance) for one in lists if (one.region, one.basis) == (region, basis)]
    return max((one for one in found if one is not None), key=lambda one: one.date, default=None)


def price_of(instance: str | None, cost: CostConfig, lists: Sequence[PriceList] = ()) -> Price | None:
    """Return the price that a run is charged with; None if it is not known.

    Args:
        instance: an instance type, or `LOCAL_WORKER`; None: the configuration names no type.
        lists: lists over the configured ones, for example of `--prices FILE`.
    """
    if instance is None:
        return None
    if instance == LOCAL_WORKER:
        return _of_local_worker(cost)
    for layer in (lists, cost.prices, published()):
        price = find_price(layer, instance, cost.region, cost.basis)
        if price is None and cost.basis == "sagemaker":
            price = _on_sagemaker(find_price(layer, instance, cost.region, "on_demand"), cost.sagemaker_factor)
        if price is not None:
            return price
    return None


def cost_of(charges: Iterable[Charge]) -> float | None:
    """Return the dollars of charges; None if the price of one is not known."""
    return sum_dollars(one.cost for one in charges)


def sum_dollars(dollars: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of them is not known."""
    each = list(dollars)
    known = [one for one in each if one is not None]
    return sum(known) if len(known) == len(each) else None


def merged(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """Return the charges added up by instance and price."""
    found: dict[tuple[str | None, Price | None], float] = {}
    for one in charges:
        key = one.instance, one.price
        found[key] = found.get(key, 0.0) + one.billable_seconds
    return tuple(
        Charge(instance=instance, price=price, billable_seconds=round(seconds, 3))
        for (instance, price), seconds in found.items()
    )


def unpriced(charges: Iterable[Charge]) -> tuple[str, ...]:
    """Return the instances whose price is not known, each once; a machine that no setting names is `unnamed`."""
    return tuple(dict.fromkeys(one.instance or UNNAMED for one in charges if one.price is None))


def basis_of(charges: Iterable[Charge]) -> str:
    """Return basis, region and dates of the prices, as in `on demand, us-east-1, 2026-07-20`; or the machines
    without a price, as in `no price for trn2.48xlarge`. Empty without charges.
    """
    charges = tuple(charges)
    if missing := unpriced(charges):
        return f"no price for {', '.join(missing)}"
    dates: dict[str, list[dt.date]] = {}
    for price in (one.price for one in charges):
        if price is not None:
            words = ", ".join(filter(None, (price.basis.replace("_", " "), price.region)))
            dates.setdefault(words, []).append(price.date)
    return "; ".join(
        f"{words}, {min(days)}" + (f" to {max(days)}" if min(days) < max(days) else "") for words, days in dates.items()
    )


def repriced(charges: Iterable[Charge], lists: Sequence[PriceList]) -> tuple[Charge, ...]:
    """Return the charges at the prices of other lists: of the same basis and region if these have it, else the newest.

    A machine that no list has loses its price, so that a sum never mixes two times.
    """
    return merged(one.model_copy(update={"price": _listed(one, lists)}) for one in charges)


def _listed(charge: Charge, lists: Sequence[PriceList]) -> Price | None:
    if charge.instance is None:
        return None
    then = charge.price
    same = find_price(lists, charge.instance, then.region, then.basis) if then is not None else None
    found = [price for one in lists if (price := one.price(charge.instance)) is not None]
    return same or max(found, key=lambda one: one.date, default=None)


def take_in_prices(tree: dict[str, Any]) -> None:
    """Put the lists of files that `cost.prices` names in their place, so that the configuration stands alone.

    Raises:
        ConfigError: a file can't be read; names it.
    """
    section = tree["cost"]
    prices = section.get("prices") if isinstance(section, dict) else None
    if isinstance(prices, str):
        prices = [prices]
    if isinstance(prices, list):
        section["prices"] = [
            entry for each in prices for entry in (_lists_in(each) if isinstance(each, str) else [each])
        ]


def _lists_in(name: str) -> list[Any]:
    return [one.model_dump(mode="json") for one in read_prices(local_or_s3(name), "cost.prices: ")]


def _of_local_worker(cost: CostConfig) -> Price | None:
    if cost.dollars_per_worker_hour is None:
        return None
    return Price(
        instance=LOCAL_WORKER,
        region="",
        basis="stated",
        dollars_per_hour=cost.dollars_per_worker_hour,
        date=dt.datetime.now(dt.UTC).date(),
        source="cost.dollars_per_worker_hour",
    )


def _on_sagemaker(price: Price | None, factor: float) -> Price | None:
    if price is None:
        return None
    return price.model_copy(
        update={
            "basis": "sagemaker",
            "dollars_per_hour": round(price.dollars_per_hour * factor, 6),
            "source": f"{factor:g} x {price.source}",
        }
    )
