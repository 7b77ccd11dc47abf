"""The key of a program: a digest of what is computed and of everything that turns it into machine code.

What is computed is written down as a *description*: JSON, the same text in every process. It has no ids, addresses,
paths, source lines or hashes of Python's. What turns it into code is the *environment*: our lowerings, the versions of
PyTorch and JAX, the device, and the options of both. Two programs with one key are the same code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform as host
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchtpu.lowering import registry

FORMAT = 1  # of descriptions and entries; part of every key

# jax.config options that say where and how loudly JAX works, not what it makes. All others are part of the key.
_NOT_CODE = re.compile(
    r"cache|log|dump|debug|traceback|explain|report|warn|verbose|source_|pprint|guard|leak|timeout|transfer|transport|topology|"
    r"platform|devices?$|backend|client|collectives|distributed|recover|preemption|proxy|share_binary|async_dispatch|export|"
    r"serialization|jax2tf|enable_x64|pgle|no_tracing|no_execution|xla_profile"
)
_XLA_FLAGS_NOT_CODE = re.compile(r"--xla_(dump|hlo_profile|vlog|force_host_platform_device_count)")


class NotCacheableError(TypeError):
    """The program holds something that cannot be written down, so it is kept in this process only."""


def plain(value: Any) -> Any:
    """`value` as JSON can hold it, so that different values never become the same. Raises NotCacheableError."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, with the sign of zero
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, torch.layout | torch.memory_format):
        return {"name": str(value)}
    raise NotCacheableError(f"{type(value).__name__} in a program's description")


def dump(value: Any) -> str:
    """JSON in the one form that digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _operation(signature: Any) -> dict[str, Any]:
    if signature.name.split("::")[0] not in ("aten", "prims", "torchtpu") or registry.is_foreign(signature.op):
        raise NotCacheableError(f"the code of {signature.name} can change without a new version of PyTorch or torchtpu")
    # A device names the place, not the code: programs serve every device of their kind.
    arguments = [
        ["v", "device"] if "Device" in str(argument.type) else plain(item)
        for argument, item in zip(signature.op._schema.arguments, signature.arguments, strict=True)
    ]
    operands = []
    for o in signature.operands:
        v = o.view
        operands.append([o.slot, plain(o.dtype), v.sizes, v.strides, v.offset, v.conj, v.neg])
    return {
        "op": signature.name + ("." + signature.op._overloadname if signature.op._overloadname != "default" else ""),
        "arguments": arguments,
        "operands": operands,
        "default": plain(signature.default_float),
        "random": signature.random,
        "needs": signature.needs,
        "fresh": plain(signature.fresh),
        "written": signature.written,
        "writes": [[slot, str(dtype), shape] for slot, (dtype, shape) in signature.writes.items()],
    }


def operation(signature: Any) -> str:
    """The description of one operation, kept with its signature. Raises NotCacheableError."""
    text = getattr(signature, "description", None)
    if text is None:
        text = signature.description = dump(_operation(signature))
    return text


def window(function: Any, donated: tuple[int, ...]) -> dict[str, Any]:
    """The description of a window (a `WindowFunction`): distinct operations, and how they are wired.

    donated: positions of the inputs whose memory the program takes over. Raises NotCacheableError.
    """
    texts: dict[str, int] = {}
    nodes = []
    for signature, codes, first_float, first_int in function.nodes:
        index = texts.setdefault(operation(signature), len(texts))
        nodes.append([index, list(codes), first_float, first_int])
    return {
        "operations": [json.loads(text) for text in texts],
        "nodes": nodes,
        "inputs": [[str(dtype), list(shape)] for dtype, shape in function.externals],
        "alive": "".join("01"[alive] for alive in function.alive),
        "donated": list(donated),
        "floats": function.n_floats,
        "ints": function.n_ints,
    }


@functools.cache
def code_digest() -> str:
    """Digest of the sources that turn a window into a JAX function and that into an executable."""
    import torchtpu

    root = Path(torchtpu.__file__).parent
    files = [*(root / "lowering").glob("*.py")]
    files += [root / "program" / name for name in ("builder.py", "compiler.py", "signature.py")]
    digest = hashlib.sha256()
    for path in sorted(files):
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:32]


@functools.cache
def cpu_features() -> str:
    """What of the host's CPU decides the code that XLA's CPU client makes: the model and its instruction sets."""
    found: dict[str, str] = {"machine": host.machine()}
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in wanted and name.strip() not in found:
                    found[name.strip()] = " ".join(sorted(value.split()))
                if not line.strip():
                    break  # the first processor stands for all
    except OSError:
        found["processor"] = host.processor()
    return hashlib.sha256(dump(found).encode()).hexdigest()[:16]


def processors() -> int:
    """How many threads XLA's CPU client divides loops for."""
    nproc = os.environ.get("NPROC", "")
    return int(nproc) if nproc.isdecimal() and int(nproc) else len(os.sched_getaffinity(0))


def _xla_flags(name: str) -> list[str]:
    last: dict[str, str] = {}
    for flag in os.environ.get(name, "").split():
        if not _XLA_FLAGS_NOT_CODE.match(flag):
            last[flag.partition("=")[0]] = flag
    return sorted(last.values())


# XLA reads its flags once, when the client starts; later changes of the variable change nothing.
@functools.cache
def _fixed(device_kind: str, platform: str, client_version: str) -> dict[str, Any]:
    import jax
    import jaxlib

    import torchtpu

    found: dict[str, Any] = {
        "format": FORMAT,
        "torchtpu": torchtpu.__version__,
        "lowerings": code_digest(),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "platform": platform,
        "device": device_kind,
        "client": client_version,
        "XLA_FLAGS": _xla_flags("XLA_FLAGS"),
    }
    if platform == "cpu":
        found["cpu"] = cpu_features()
        found["processors"] = processors()
    else:
        found["LIBTPU_INIT_ARGS"] = _xla_flags("LIBTPU_INIT_ARGS")
        for plugin in ("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"):
            try:
                found[plugin] = importlib.metadata.version(plugin)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


@functools.cache
def _jax_options() -> tuple[str, ...]:
    import jax

    return tuple(sorted(n for n in jax.config.values if not _NOT_CODE.search(n) and hasattr(jax.config, n)))  # type: ignore[attr-defined]


def environment(device: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides the code beside the description. device: a jax.Device. options: XLA's compiler options."""
    import jax

    client = device.client
    found = dict(_fixed(device.device_kind, device.platform, client.platform_version))
    found["jax options"] = {name: str(getattr(jax.config, name)) for name in _jax_options()}
    found["matmul precision"] = torch.get_float32_matmul_precision()
    found["deterministic"] = torch.are_deterministic_algorithms_enabled()  # some of PyTorch's decompositions ask
    found["compiler options"] = {name: str(value) for name, value in options.items()}
    return found


def _digest(value: Any, digits: int) -> str:
    return hashlib.sha256(dump(value).encode()).hexdigest()[:digits]


def digest(description: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """The key, 80 hexadecimal digits: 16 of the sequence of operators, 32 of the whole description, 32 of the
    environment. So programs that differ in a shape or in a version are found next to each other."""
    return _digest(structure(description), 16) + _digest(description, 32) + _digest(environment, 32)


def structure(description: Mapping[str, Any]) -> tuple[str, ...]:
    """The operators of a program in order."""
    names = [operation["op"] for operation in description["operations"]]
    return tuple(names[node[0]] for node in description["nodes"])
