"""Encoded samples: smaller on every hop, decoded where the training happens.

    from hfs.codecs import EncodedDataset, WantedOutput, decode

    volumes = EncodedDataset("/mnt/data/encoded", WantedOutput(op="log1p"))   # NumPy float16; device="cuda": tensors
    volume, label = volumes[0]
    array = decode(open("sample.hfsc", "rb").read(), op="log1p", dtype="float32", channels="first")

`hfs encode SRC DST` makes the files. Runs inside training jobs: torch is imported only where a device is asked for.
"""

from hfs.codecs.codec import CodecError, WantedOutput
from hfs.codecs.dataset import EncodedDataset
from hfs.codecs.sample import decode, decode_all, encode

__all__ = ["CodecError", "EncodedDataset", "WantedOutput", "decode", "decode_all", "encode"]
