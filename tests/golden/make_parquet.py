"""Makes small Parquet files as people have them, in tests/golden/parquet.

Each holds the same five rows (ROWS) in other columns, encodings and compressions; the tests of the crate
`trainyard-datasets` read them. Run: python make_parquet.py (pyarrow 26.0.1).
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent / "parquet"

CHATS = [
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi, wörld 😀"}],
    [{"role": "system", "content": "be short"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": ""}],
    None,
    [],
    [{"role": "user", "content": None}, {"role": "assistant", "content": "a\r\nb"}],
]
TEXTS = ["hello", "", None, "wörld 😀", "a\r\nb"]

CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int32())]))
PARTS = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))


def write(name, columns, **options):
    pq.write_table(pa.table(columns), FOLDER / name, **options)


def main():
    FOLDER.mkdir(exist_ok=True)
    ids = pa.array(range(5))
    texts = pa.array(TEXTS)
    chats = pa.array(CHATS, type=CHAT)
    for compression in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        write(f"text_{compression}.parquet", {"id": ids, "text": texts}, compression=compression)
    write("text_large_string_v2.parquet", {"text": texts.cast(pa.large_string())}, data_page_version="2.0", version="2.6")
    for encoding in ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
        write(f"text_{encoding.lower()}.parquet", {"text": texts}, use_dictionary=False, column_encoding={"text": encoding})
    write("text_dictionary.parquet", {"text": texts.dictionary_encode()})
    write("text_int.parquet", {"text": ids})
    write("text_binary.parquet", {"text": pa.array([b"ok", b"\xc3\x28", b"a\x00b", None, b""])})
    write("messages.parquet", {"id": ids, "messages": chats})
    write("messages_row_groups_v2.parquet", {"messages": chats}, row_group_size=2, data_page_version="2.0")
    write("messages_two_levels.parquet", {"messages": chats}, use_compliant_nested_type=False)
    write("messages_json.parquet", {"messages": pa.array([None if chat is None else json.dumps(chat) for chat in CHATS])})
    parts = [[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]]
    turn = pa.struct([("role", pa.string()), ("content", PARTS)])
    write("messages_parts.parquet", {"messages": pa.array(parts, type=pa.list_(turn))})
    pair = {"prompt": ["p", "", None], "completion": ["c", "d", "e"]}
    write("pairs.parquet", pair)
    alpaca = {"instruction": ["i", "i"], "input": ["", None], "output": ["o", "o"], "system": [None, "s"]}
    write("instructions.parquet", alpaca)
    write("no_rows.parquet", {"text": pa.array([], type=pa.string())})
    write("no_known_column.parquet", {"id": ids, "Text": texts})


if __name__ == "__main__":
    main()
