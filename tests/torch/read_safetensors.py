#!/usr/bin/env python3
"""Reads a safetensors file with nothing but the standard library, as a second opinion on Lockstep's own reader.

    read_safetensors.py FILE    prints "tensor NAME DTYPE SHAPE SHA256" by name, then "metadata KEY VALUE" by key

Names and values are printed as JSON strings.
"""
import hashlib
import json
import struct
import sys

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def main():
    with open(sys.argv[1], "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length].decode("utf-8"))
    data = content[8 + length:]
    metadata = header.pop("__metadata__", {})
    covered = 0
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        size = BYTES[entry["dtype"]]
        for dimension in entry["shape"]:
            size *= dimension
        assert size == end - begin and end <= len(data), name
        assert end == begin or begin % BYTES[entry["dtype"]] == 0, f"{name} is not aligned"
        covered += size
        shape = "x".join(map(str, entry["shape"])) or "scalar"
        print("tensor", json.dumps(name), entry["dtype"], shape, hashlib.sha256(data[begin:end]).hexdigest())
    assert covered == len(data), "holes"
    assert (8 + length) % 8 == 0, "the data is not aligned"
    for key, value in sorted(metadata.items()):
        print("metadata", json.dumps(key), json.dumps(value))
    if "lockstep.data_sha256" in metadata:
        assert metadata["lockstep.data_sha256"] == hashlib.sha256(data).hexdigest(), "the hash of the data"


if __name__ == "__main__":
    main()
