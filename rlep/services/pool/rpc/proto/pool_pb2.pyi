from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenRequest(_message.Message):
    __slots__ = ("pool", "tokenizer_digest", "cap", "minimum", "vocabulary", "read_only", "writer")
    POOL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    pool: str
    tokenizer_digest: str
    cap: int
    minimum: int
    vocabulary: int
    read_only: bool
    writer: str
    def __init__(self, pool: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., cap: _Optional[int] = ..., minimum: _Optional[int] = ..., vocabulary: _Optional[int] = ..., read_only: _Optional[bool] = ..., writer: _Optional[str] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("json", "epoch")
    JSON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    json: str
    epoch: int
    def __init__(self, json: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("prompt_id", "record", "content_id", "quarantined")
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    record: bytes
    content_id: bytes
    quarantined: bool
    def __init__(self, prompt_id: _Optional[str] = ..., record: _Optional[bytes] = ..., content_id: _Optional[bytes] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class AddFrame(_message.Message):
    __slots__ = ("pool", "call", "writer", "epoch", "records", "total", "vocabulary", "quarantined")
    POOL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    call: str
    writer: str
    epoch: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    total: int
    vocabulary: int
    quarantined: bool
    def __init__(self, pool: _Optional[str] = ..., call: _Optional[str] = ..., writer: _Optional[str] = ..., epoch: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., total: _Optional[int] = ..., vocabulary: _Optional[int] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class AddReply(_message.Message):
    __slots__ = ("inserted", "duplicates", "refused", "evicted")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    inserted: int
    duplicates: int
    refused: _containers.RepeatedCompositeFieldContainer[Refused]
    evicted: int
    def __init__(self, inserted: _Optional[int] = ..., duplicates: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refused, _Mapping]]] = ..., evicted: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("content_id", "reason")
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    content_id: str
    reason: str
    def __init__(self, content_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("pool", "prompt_ids", "count", "seed", "step", "minimum")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    count: int
    seed: int
    step: int
    minimum: int
    def __init__(self, pool: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., seed: _Optional[int] = ..., step: _Optional[int] = ..., minimum: _Optional[int] = ...) -> None: ...

class SampleFrame(_message.Message):
    __slots__ = ("counts", "ids", "record_lengths", "records", "available", "minimum", "vocabulary")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    ids: bytes
    record_lengths: bytes
    records: bytes
    available: bytes
    minimum: int
    vocabulary: int
    def __init__(self, counts: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., record_lengths: _Optional[bytes] = ..., records: _Optional[bytes] = ..., available: _Optional[bytes] = ..., minimum: _Optional[int] = ..., vocabulary: _Optional[int] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("pool", "after", "prompt_ids", "quarantined", "limit")
    POOL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    after: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    quarantined: bool
    limit: int
    def __init__(self, pool: _Optional[str] = ..., after: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., quarantined: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class ExportFrame(_message.Message):
    __slots__ = ("records", "next")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next: str
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("pool", "prompt_id", "content_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_id: str
    content_id: str
    def __init__(self, pool: _Optional[str] = ..., prompt_id: _Optional[str] = ..., content_id: _Optional[str] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("pool", "prompt_ids", "counts", "ids")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    counts: bytes
    ids: bytes
    def __init__(self, pool: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., counts: _Optional[bytes] = ..., ids: _Optional[bytes] = ...) -> None: ...

class ContentsRequest(_message.Message):
    __slots__ = ("pool", "prompt_ids", "after", "quarantined")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    after: str
    quarantined: bool
    def __init__(self, pool: _Optional[str] = ..., prompt_ids: _Optional[_Iterable[str]] = ..., after: _Optional[str] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class ContentsReply(_message.Message):
    __slots__ = ("prompt_ids", "counts", "ids", "next")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[str]
    counts: bytes
    ids: bytes
    next: str
    def __init__(self, prompt_ids: _Optional[_Iterable[str]] = ..., counts: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., next: _Optional[str] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("pool", "holder", "milliseconds")
    POOL_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    holder: str
    milliseconds: int
    def __init__(self, pool: _Optional[str] = ..., holder: _Optional[str] = ..., milliseconds: _Optional[int] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("holder", "milliseconds")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    milliseconds: int
    def __init__(self, holder: _Optional[str] = ..., milliseconds: _Optional[int] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("pool", "prompt_id", "content_ids", "quarantine", "quarantined")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_id: str
    content_ids: _containers.RepeatedScalarFieldContainer[str]
    quarantine: bool
    quarantined: bool
    def __init__(self, pool: _Optional[str] = ..., prompt_id: _Optional[str] = ..., content_ids: _Optional[_Iterable[str]] = ..., quarantine: _Optional[bool] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class CountReply(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class PoolRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class DigestReply(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("pool", "after", "limit")
    POOL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    after: str
    limit: int
    def __init__(self, pool: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("names", "next")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    next: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., next: _Optional[str] = ...) -> None: ...

class ListTrajectoriesRequest(_message.Message):
    __slots__ = ("pool", "prompt_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    prompt_id: str
    def __init__(self, pool: _Optional[str] = ..., prompt_id: _Optional[str] = ...) -> None: ...

class ListTrajectoriesReply(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    def __init__(self, ids: _Optional[bytes] = ...) -> None: ...
