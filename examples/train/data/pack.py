"""Packs the handwritten digits of scikit-learn's package into `digits.bin`.

    pip download --no-deps scikit-learn
    unzip scikit_learn-*.whl sklearn/datasets/data/digits.csv.gz
    python3 pack.py sklearn/datasets/data/digits.csv.gz digits.bin

The packed file holds the word `DIGITS01`; the number of examples (4 bytes, little-endian); the numbers of rows, columns
and classes, and the highest value of a pixel (1 byte each); for each example, its class and its pixels (1 byte each);
and the FNV-1a hash of all preceding bytes (8 bytes, little-endian).
"""

import gzip
import struct
import sys

with gzip.open(sys.argv[1], "rt") as lines:
    examples = [[int(float(field)) for field in line.split(",")] for line in lines if line.strip()]
packed = b"DIGITS01" + struct.pack("<IBBBB", len(examples), 8, 8, 10, 16)
for *pixels, label in examples:
    packed += bytes([label, *pixels])
digest = 0xCBF29CE484222325
for byte in packed:
    digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
with open(sys.argv[2], "wb") as out:
    out.write(packed + struct.pack("<Q", digest))
