"""Names of columns: the roles that they suggest, and their form in options.

Alone, since a golden set is read by them.
"""

import re
from collections.abc import Iterable

TIME = "time"
_NAMES = {
    TIME: "time timestamp date datetime ts at when created created_at updated_at modified_at event_time "
    "event_timestamp unixtime unix_time epoch datum zeit zeitpunkt tag fecha heure",
    "item_id": "item_id itemid product_id productid clicked_id sku asin doc_id docid document_id passage_id article_id "
    "artikel artikelnummer artikel_nr artikel_id produkt_id produktid ean gtin",
    "id": "id row_id rowid event_id log_id review_id interaction_id uuid key",
    "label": "label click clicked clicks rating stars score grade gain relevance relevant judgement judgment "
    "klick "
    "bewertung purchased bought gekauft kauf",
    "query": "query q search search_term search_query searchterm keyword keywords question query_text suchbegriff "
    "suche suchanfrage anfrage frage requete requête consulta",
    "item": "item title product product_title product_name item_title item_text name answer document passage doc titel "
    "bezeichnung produktname produkt produkttitel artikelname artikelbezeichnung titre produit titulo",
    "deleted": "deleted removed is_deleted gelöscht geloescht entfernt",
    "text": "text title product_title item product name description titel bezeichnung produktname titre",
}


def named_like(column: str, role: str) -> bool:
    """Return True if a column has a name of the role."""
    return score(column, role) > 0


def score(name: str, role: str) -> int:
    """Return 2 for a name of the role, 1 for a word in the name that is one, else 0."""
    words = _NAMES[role].split()
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(".")[2])  # `productId`
    plain = re.sub(r"[^\w]+", "_", parted).strip("_").casefold()
    if plain in words:
        return 2
    ends_in_id = plain.endswith(("_id", "_nr")) and role in ("query", "item", "text", "label")
    return int(not ends_in_id and bool({*plain.split("_")} & {*words} - {"at", "id", "key", "tag", "name"}))


_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')  # an even number of quotes follows one outside of them
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def written(name: str) -> str:
    """Return the name of a column as options take it: in quotes, as in CSV, if it has signs or outer blanks.

    `unwritten` is the inverse.
    """
    plain = name == name.strip() and not {*',;="'} & {*name} and name
    return name if plain else '"' + name.replace('"', '""') + '"'


def unwritten(text: str) -> str:
    """Return the name of a column that an option has; without quotes, blanks around it do not count."""
    text = text.strip()
    found = _QUOTED.fullmatch(text)
    return found[1].replace('""', '"') if found else text


def parted(text: str) -> list[str]:
    """Return the parts of an option between commas that stand outside of quotes."""
    return _COMMA.split(text)


def pairs_written(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the text of --map: `query=q,item=title`."""
    return ",".join(f"{name}={written(column)}" for name, column in pairs)
