"""``croissant.json``: the dataset described for machines, after MLCommons Croissant 1.0.

Owns the JSON-LD document: every shard of the manifest with its sha256, and one record set for each
table. ``card.py`` writes the text for people.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from llmperf_common.schemas import TABLES
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.tables.reader import Dataset

CROISSANT_FILE = "croissant.json"
_PARQUET = "application/x-parquet"

# fmt: off
_CONTEXT: dict[str, Any] = {
    "@language": "en", "@vocab": "https://schema.org/", "citeAs": "cr:citeAs", "column": "cr:column",
    "conformsTo": "dct:conformsTo", "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"}, "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/", "equivalentProperty": "cr:equivalentProperty", "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract", "field": "cr:field", "fileObject": "cr:fileObject", "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet", "format": "cr:format", "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath", "key": "cr:key", "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/", "recordSet": "cr:recordSet", "references": "cr:references",
    "regex": "cr:regex", "repeated": "cr:repeated", "replace": "cr:replace", "samplingRate": "cr:samplingRate", "sc": "https://schema.org/",
    "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField", "transform": "cr:transform",
}
# fmt: on
_DATA_TYPES = {
    pa.string(): "sc:Text",
    pa.bool_(): "sc:Boolean",
    pa.int32(): "sc:Integer",
    pa.int64(): "sc:Integer",
    pa.float64(): "sc:Float",
    pa.timestamp("us", tz="UTC"): "sc:DateTime",
}


def croissant_json(
    dataset: Dataset, *, name: str, description: str, license_name: str | None
) -> bytes:
    """Return the bytes of ``croissant.json``; a table without shards has no record set."""
    tables = [table for table in TABLES if dataset.shards(table)]
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "datePublished": dataset.run.created_at,
        "version": f"{dataset.manifest.version}.0.0",
        "distribution": [
            *(_file_object(entry) for table in tables for entry in dataset.shards(table)),
            *(_file_set(table, dataset.shards(table)) for table in tables),
        ],
        "recordSet": [_record_set(table) for table in tables],
    }
    if license_name is not None:
        document["license"] = license_name
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _file_object(entry: ShardEntry) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": entry.name,
        "name": entry.name,
        "contentUrl": entry.name,
        "contentSize": f"{entry.bytes} B",
        "encodingFormat": _PARQUET,
        "sha256": entry.sha256,
    }


def _file_set(table: str, entries: tuple[ShardEntry, ...]) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"{table}-files",
        "name": f"{table}-files",
        "encodingFormat": _PARQUET,
        "includes": [entry.name for entry in entries],
    }


def _record_set(table: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "field": [_field(table, f) for f in TABLES[table] if not _is_list_of_lists(f.type)],
    }


def _is_list_of_lists(kind: pa.DataType) -> bool:
    """Whether a column has nested lists, which Croissant 1.0 forbids, so that it is left out."""
    return bool(pa.types.is_list(kind) and pa.types.is_list(kind.value_type))


def _field(table: str, field: pa.Field) -> dict[str, Any]:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    unit = f" Unit: {metadata['unit']}." if "unit" in metadata else ""
    found: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{table}/{field.name}",
        "name": field.name,
        "description": metadata["description"] + unit,
    }
    kind = field.type
    if pa.types.is_list(kind):
        found["repeated"] = True
        kind = kind.value_type
    if pa.types.is_struct(kind):
        # Leave out lists in structs (a polynomial's terms), which readers of Croissant 1.0 cannot
        # read.
        flat = [member for member in kind if not pa.types.is_nested(member.type)]
        found["subField"] = [_member(table, field.name, member) for member in flat]
    else:
        found["dataType"] = _DATA_TYPES[kind]
        found["source"] = _source(table, field.name)
    return found


def _member(table: str, column: str, member: pa.Field) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{table}/{column}/{member.name}",
        "name": f"{column}/{member.name}",
        "dataType": _DATA_TYPES[member.type],
        "source": {**_source(table, column), "transform": {"jsonPath": member.name}},
    }


def _source(table: str, column: str) -> dict[str, Any]:
    return {"fileSet": {"@id": f"{table}-files"}, "extract": {"column": column}}
