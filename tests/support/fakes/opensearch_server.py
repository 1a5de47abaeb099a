"""An OpenSearch or Elasticsearch server in this process, on loopback, with the requests that the target and its readers
make. Written from the documents of both: docs.opensearch.org (Index, Document and Search APIs, k-NN) and
elastic.co/docs/api. Emulated: it searches exactly, ranks texts by BM25 over all words, and keeps nothing on disk.

As the real ones, it finds only refreshed documents in searches, counts and deletions by query, refuses what they
refuse with their types of error, and changes all aliases of a request or none. A copy of an index answers no
first request, and has neither the aliases nor the number of replicas of its source.
"""

from __future__ import annotations

import base64
import copy
import fnmatch
import json
import math
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

MOST_HITS = 10_000  # index.max_result_window
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_ONE_SHARD = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
Json = dict[str, Any]


class Refused(Exception):
    """An answer with an error, as `{"error": {"type", "reason"}, "status"}`."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.kind = status, kind


class _Index:
    def __init__(self, settings: Json, mappings: Json) -> None:
        self.settings, self.mappings = settings, mappings
        self.starting = 0  # requests that a copy, whose shards are not there yet, does not answer
        self.live: dict[str, Json] = {}  # as of now, for reads by id
        self.seen: dict[str, Json] = {}  # as of the last refresh, for searches


class OpensearchServer:
    """A server; `url` is its address. `elastic`: it answers as Elasticsearch 9, else as OpenSearch 3."""

    def __init__(self, elastic: bool = False, user: tuple[str, str] | None = None) -> None:
        self.elastic, self.user = elastic, user
        self.indices: dict[str, _Index] = {}
        self.aliases: dict[str, set[str]] = {}
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for head and body: two wait for each other's receipt

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, found = server.respond(self.command, self.path, body, self.headers.get("Authorization"))
                data = b"" if found is None else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Print nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def empty(self) -> str:
        """Forget everything; return the address."""
        self.indices.clear()
        self.aliases.clear()
        return self.url

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def respond(self, method: str, target: str, body: bytes, proof: str | None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        split = urlsplit(target)
        parts = [unquote(part) for part in split.path.strip("/").split("/") if part]
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        try:
            with self.lock:
                if self.user is not None and proof != _basic(*self.user):
                    raise Refused(401, "security_exception", "missing or wrong authentication credentials")
                lines = [json.loads(line) for line in body.splitlines()] if "_bulk" in parts else []
                asked = json.loads(body) if body and not lines else {}
                return 200, self._route(method, parts, query, asked, lines)
        except Refused as error:
            found = {"error": {"type": error.kind, "reason": str(error)}, "status": error.status}
            return error.status, found

    def _route(self, method: str, parts: list[str], query: dict[str, str], asked: Json, lines: list[Json]) -> Any:
        match method, parts:
            case "GET", []:
                version = {"number": "9.2.0"} if self.elastic else {"number": "3.2.0", "distribution": "opensearch"}
                return {"version": version}
            case (("GET" | "HEAD"), ["_alias", name]):
                return self._alias(name)
            case "POST", ["_aliases"]:
                return self._move(asked["actions"])
            case "GET", ["_cat", "indices", pattern]:
                return [{"index": name} for name in self.indices if fnmatch.fnmatchcase(name, pattern)]
            case "PUT", [name, "_clone", target]:
                return self._clone(name, target, asked)
            case "HEAD", [name]:
                self._index(name)
                return None
            case "PUT", [name]:
                return self._create(name, asked)
            case "DELETE", [name]:
                self._own(name)
                del self.indices[name]
                for held in self.aliases.values():
                    held.discard(name)
                return {"acknowledged": True}
        name, call = parts[0], parts[1]
        index = self._index(name)
        if index.starting and call not in ("_mapping", "_settings"):
            index.starting -= 1
            raise Refused(503, "search_phase_execution_exception", "all shards failed")
        calls: dict[str, Callable[[], Any]] = {
            "_mapping": lambda: self._mapping(name, index, method, asked),
            "_settings": lambda: self._settings(name, index, method, asked, query),
            "_forcemerge": lambda: {"_shards": {"failed": 0}},
            "_bulk": lambda: self._bulk(index, lines),
            "_refresh": lambda: self._refresh(index),
            "_count": lambda: {"count": len(_matching(index.seen, asked.get("query"))), "_shards": _ONE_SHARD},
            "_mget": lambda: {"docs": [self._got(index, each) for each in asked["ids"]]},
            "_delete_by_query": lambda: self._delete(index, asked["query"], query),
            "_search": lambda: self._search(index, asked),
        }
        return calls[call]()

    def _names(self, name: str) -> set[str]:
        return self.aliases.get(name) or {name}

    def _index(self, name: str) -> _Index:
        (own,) = self._names(name)
        if own not in self.indices:
            raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
        return self.indices[own]

    def _own(self, name: str) -> _Index:
        if self.aliases.get(name):
            reason = f"The provided expression [{name}] matches an alias, specify the corresponding concrete indices"
            raise Refused(400, "illegal_argument_exception", reason)
        return self._index(name)

    def _alias(self, name: str) -> Json:
        if not self.aliases.get(name):
            raise Refused(404, "aliases_not_found_exception", f"alias [{name}] missing")
        return {each: {"aliases": {name: {}}} for each in self.aliases[name]}

    def _move(self, actions: list[Json]) -> Json:
        """Apply all actions, or none."""
        after = copy.deepcopy(self.aliases)
        for action in actions:
            ((what, of),) = action.items()
            if of["alias"] in self.indices:
                reason = f"an index or data stream exists with the same name as the alias [{of['alias']}]"
                raise Refused(400, "invalid_alias_name_exception", reason)
            self._own(of["index"])
            held = after.setdefault(of["alias"], set())
            if what == "remove" and of["index"] not in held:
                raise Refused(404, "aliases_not_found_exception", f"aliases [{of['alias']}] missing")
            (held.add if what == "add" else held.discard)(of["index"])
        self.aliases = after
        return {"acknowledged": True}

    def _create(self, name: str, asked: Json) -> Json:
        if name in self.indices or self.aliases.get(name):
            raise Refused(400, "resource_already_exists_exception", f"index [{name}] already exists")
        if not _NAME.fullmatch(name):
            raise Refused(400, "invalid_index_name_exception", f"Invalid index name [{name}]")
        field = asked["mappings"]["properties"]["vector"]
        if field["type"] != ("dense_vector" if self.elastic else "knn_vector"):
            raise Refused(400, "mapper_parsing_exception", f"No handler for type [{field['type']}]")
        if not self.elastic and not asked["settings"].get("index.knn"):
            raise Refused(400, "mapper_parsing_exception", "index.knn is false")
        if field.get("dims", field.get("dimension", 0)) > (4096 if self.elastic else 16_000):
            raise Refused(400, "mapper_parsing_exception", "Dimension value cannot be greater than the limit")
        _expect_compression(field)
        self.indices[name] = _Index(asked.get("settings", {}), asked["mappings"])
        return {"acknowledged": True}

    def _mapping(self, name: str, index: _Index, method: str, asked: Json) -> Json:
        if method == "PUT":
            index.mappings.update(asked)
            return {"acknowledged": True}
        return {each: {"mappings": index.mappings} for each in self._names(name)}

    def _settings(self, name: str, index: _Index, method: str, asked: Json, query: dict[str, str]) -> Json:
        """Change settings, where null is the default, or return them all as texts."""
        if method == "PUT":
            changed = {**index.settings, **asked}
            index.settings = {key: value for key, value in changed.items() if value is not None}
            return {"acknowledged": True}
        if query.get("flat_settings") != "true":
            raise Refused(400, "not_emulated", "nested settings")
        found = {"index.number_of_replicas": 1, **index.settings}
        return {name: {"settings": {key: str(value) for key, value in found.items()}}}

    def _clone(self, name: str, target: str, asked: Json) -> Json:
        source = self._own(name)
        if target in self.indices or self.aliases.get(target):
            raise Refused(400, "resource_already_exists_exception", f"index [{target}] already exists")
        if source.settings.get("index.blocks.write") is not True:
            reason = f'index {name} must be read-only to resize index. use "index.blocks.write=true"'
            raise Refused(500, "illegal_state_exception", reason)
        if asked.keys() - {"settings", "aliases"}:
            raise Refused(400, "x_content_parse_exception", f"unknown field in {sorted(asked)}")
        own = ("index.number_of_replicas", "index.auto_expand_replicas")
        kept = {key: value for key, value in source.settings.items() if key not in own}
        changed = {**kept, **asked.get("settings", {})}
        made = _Index({key: value for key, value in changed.items() if value is not None}, dict(source.mappings))
        made.live, made.seen, made.starting = dict(source.live), dict(source.live), 1
        self.indices[target] = made
        return {"acknowledged": True, "shards_acknowledged": False, "index": target}

    def _bulk(self, index: _Index, lines: list[Json]) -> Json:
        made, left = [], iter(lines)
        for line in left:
            ((what, action),) = line.items()
            identity, document = action["_id"], next(left) if what == "index" else None
            wrong, status = self._wrong(index, identity, document) if document is not None else None, 400
            if index.settings.get("index.blocks.write") is True:
                blocked = "blocked by: [FORBIDDEN/8/index write (api)];"
                wrong, status = {"type": "cluster_block_exception", "reason": blocked}, 403
            if wrong is not None:
                made.append({what: {"_id": identity, "status": status, "error": wrong}})
            elif document is not None:
                index.live[identity] = document
                made.append({what: {"_id": identity, "status": 201}})
            else:
                there = index.live.pop(identity, None) is not None
                made.append({what: {"_id": identity, "status": 200 if there else 404}})
        return {"errors": any("error" in result for each in made for result in each.values()), "items": made}

    def _wrong(self, index: _Index, identity: str, document: Json) -> Json | None:
        fields = index.mappings["properties"]
        unknown = document.keys() - fields.keys()
        width = fields["vector"].get("dims", fields["vector"].get("dimension"))
        if unknown:
            return {"type": "strict_dynamic_mapping_exception", "reason": f"introduction of {sorted(unknown)}"}
        if len(identity.encode()) > 512:
            return {
                "type": "action_request_validation_exception",
                "reason": "id is longer than 512 bytes",
            }
        if len(document["vector"]) != width or not any(document["vector"]):
            return {
                "type": "mapper_parsing_exception",
                "reason": f"a vector of zeros, or not of {width} dims",
            }
        return None

    def _refresh(self, index: _Index) -> Json:
        index.seen = dict(index.live)
        return {"_shards": {"failed": 0}}

    def _got(self, index: _Index, identity: str) -> Json:
        document = index.live.get(identity)
        return {"_id": identity, "found": document is not None, "_source": self._kept(index, document)}

    def _kept(self, index: _Index, document: Json | None) -> Json:
        """The source, without vectors where Elasticsearch leaves them out."""
        if document is None:
            return {}
        leaves_out = self.elastic and index.settings.get("index.mapping.exclude_source_vectors") is not False
        return {name: value for name, value in document.items() if name != "vector" or not leaves_out}

    def _delete(self, index: _Index, query: Json, parameters: dict[str, str]) -> Json:
        if index.settings.get("index.blocks.write") is True:
            raise Refused(403, "cluster_block_exception", "blocked by: [FORBIDDEN/8/index write (api)];")
        gone = _matching(index.seen, query)
        for identity in gone:
            index.live.pop(identity, None)
        if parameters.get("refresh") == "true":
            self._refresh(index)
        return {"deleted": len(gone)}

    def _search(self, index: _Index, asked: Json) -> Json:
        size = asked.get("size", 10)
        if size > MOST_HITS:
            raise Refused(400, "illegal_argument_exception", f"Result window is above [{MOST_HITS}]")
        if "aggs" in asked:
            return {"aggregations": {name: _counted(index.seen, each) for name, each in asked["aggs"].items()}}
        scored = dict(_scored(index.seen, asked, self.elastic))
        order, field = sorted(scored, key=lambda identity: -scored[identity]), ""
        if "sort" in asked:
            ((field, _),) = asked["sort"][0].items()
            order = sorted(scored, key=lambda identity: index.seen[identity][field])
            if after := asked.get("search_after"):
                order = [identity for identity in order if index.seen[identity][field] > after[0]]
        hits = []
        for identity in order[:size]:
            source = self._kept(index, index.seen[identity])
            if isinstance(asked.get("_source"), list):
                source = {name: source[name] for name in asked["_source"] if name in source}
            hit = {"_id": identity, "_score": scored[identity], "_source": source}
            hits.append({**hit, "sort": [index.seen[identity][field]]} if "sort" in asked else hit)
        return {"hits": {"hits": hits}}


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _matching(documents: dict[str, Json], query: Json | None) -> list[str]:
    return [identity for identity, document in documents.items() if query is None or _holds(query, identity, document)]


def _holds(query: Json, identity: str, document: Json) -> bool:
    ((what, of),) = query.items()
    match what:
        case "match_all":
            return True
        case "term":
            ((field, value),) = of.items()
            return document.get(field) == (value["value"] if isinstance(value, dict) else value)
        case "ids":
            return identity in of["values"]
        case "match":
            ((field, value),) = of.items()
            return bool(set(_words(value)) & set(_words(document.get(field, ""))))
        case "bool":
            must = [*of.get("must", []), *_listed(of.get("filter", []))]
            should = of.get("should", [])
            return (
                all(_holds(each, identity, document) for each in must)
                and not any(_holds(each, identity, document) for each in of.get("must_not", []))
                and (not should or bool(must) or any(_holds(each, identity, document) for each in should))
            )
    raise Refused(400, "parsing_exception", f"unknown query [{what}]")


def _expect_compression(field: Json) -> None:
    """Refuse a form that the documents don't have: OpenSearch's knn-memory-optimized, Elasticsearch's dense-vector."""
    level, mode = field.get("compression_level", "1x"), field.get("mode", "in_memory")
    if level not in ("1x", "2x", "4x", "8x", "16x", "32x") or mode not in ("in_memory", "on_disk"):
        raise Refused(400, "mapper_parsing_exception", f"Invalid compression level [{level}] or mode [{mode}]")
    options = field.get("index_options", {"type": "hnsw"})
    kind, again = options["type"], options.get("rescore_vector", {"oversample": 1.0})["oversample"]
    if kind not in ("hnsw", "int8_hnsw", "bbq_hnsw") or not 1 <= again <= 10:
        raise Refused(400, "mapper_parsing_exception", f"Failed to parse index_options {options}")
    if kind == "bbq_hnsw" and field["dims"] < 64:
        raise Refused(400, "mapper_parsing_exception", "bbq_hnsw does not support dimensions fewer than 64")


def _scored(documents: dict[str, Json], asked: Json, elastic: bool) -> Iterator[tuple[str, float]]:
    """Yield each hit with its score; scores of several parts of a `bool.should`, or of query and knn, add up."""
    found: defaultdict[str, float] = defaultdict(float)
    parts = [asked["query"]] if "query" in asked else []
    if elastic and "knn" in asked:
        knn = asked["knn"]
        _add(found, _nearest(documents, knn["field"], knn["query_vector"], knn["k"], knn.get("filter")))
    elif "knn" in asked:
        raise Refused(400, "parsing_exception", "Unknown key for a START_OBJECT in [knn].")
    if not parts and "knn" not in asked:
        parts = [{"match_all": {}}]
    for query in parts:
        _add(found, _score(documents, query, elastic))
    yield from found.items()


def _score(documents: dict[str, Json], query: Json, elastic: bool) -> dict[str, float]:
    ((what, of),) = query.items()
    if what == "knn":
        if elastic:
            raise Refused(400, "parsing_exception", "[knn] query doesn't support this form")
        ((field, knn),) = of.items()
        return _nearest(documents, field, knn["vector"], knn["k"], knn.get("filter"))
    if what == "match":
        ((field, text),) = of.items()
        return _bm25(documents, field, text)
    if what == "bool" and "should" in of:
        found: defaultdict[str, float] = defaultdict(float)
        for each in of["should"]:
            _add(found, _score(documents, each, elastic))
        rest = {name: value for name, value in of.items() if name != "should"}
        return {each: score for each, score in found.items() if _holds({"bool": rest}, each, documents[each])}
    return dict.fromkeys(_matching(documents, query), 1.0)


def _add(found: defaultdict[str, float], scores: dict[str, float]) -> None:
    for identity, score in scores.items():
        found[identity] += score


def _nearest(documents: dict[str, Json], field: str, vector: list[float], k: int, where: Any) -> dict[str, float]:
    query = np.asarray(vector)
    cosines = {}
    for identity, document in documents.items():
        if where is None or all(_holds(each, identity, document) for each in _listed(where)):
            there = np.asarray(document[field])
            cosines[identity] = float(query @ there / np.linalg.norm(query) / np.linalg.norm(there))
    best = sorted(cosines, key=lambda identity: -cosines[identity])[:k]
    return {identity: (1 + cosines[identity]) / 2 for identity in best}


def _bm25(documents: dict[str, Json], field: str, text: str) -> dict[str, float]:
    words = {identity: _words(document.get(field, "")) for identity, document in documents.items()}
    mean = sum(map(len, words.values())) / max(1, len(words))
    found: defaultdict[str, float] = defaultdict(float)
    for word in set(_words(text)):
        has = [identity for identity, there in words.items() if word in there]
        weight = math.log(1 + (len(words) - len(has) + 0.5) / (len(has) + 0.5))
        for identity in has:
            count = words[identity].count(word)
            found[identity] += weight * count / (count + 1.2 * (0.25 + 0.75 * len(words[identity]) / mean))
    return dict(found)


def _counted(documents: dict[str, Json], asked: Json) -> Json:
    field, size = asked["terms"]["field"], asked["terms"].get("size", 10)
    counts = Counter(document[field] for document in documents.values())
    return {"buckets": [{"key": key, "doc_count": count} for key, count in counts.most_common(size)]}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _listed(value: Any) -> list[Json]:
    return value if isinstance(value, list) else [value]
