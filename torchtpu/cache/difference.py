"""What distinguishes one program's description from another's, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchtpu.cache.key import structure

Description = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """kind: "shape", "dtype", "argument", "alive", …, what a remedy depends on. place: where, so that the same cause is
    recognised when only its values are new. text: for people."""

    kind: str
    place: tuple[Any, ...]
    text: str


REMEDIES = {
    "shape": "Pad that dimension to a few sizes, or leave the odd batch out (DataLoader(drop_last=True)); compile the sizes that "
    "remain beforehand with torchtpu.warmup.",
    "dtype": "Cast the tensor before it comes here, so that it always has one dtype.",
    "view": "Make the tensor contiguous before it comes here, or slice at a fixed place: each view of a storage is a program of its own.",
    "argument": "That argument is part of the program. Keep it constant, or use an operation that takes it as a tensor.",
    "alive": "Hold or drop results in the same way at each step: a value that is kept only now and then changes what the program returns.",
    "donated": "Hold or drop tensors in the same way at each step, and don't export them (DLPack) now and then.",
    "operations": "Other operations were recorded. End windows at a fixed place (torchtpu.synchronize() or a read) before the code that "
    "varies, or keep the loop's body the same at each step.",
    "environment": "Such programs are compiled once more and then found again.",
}


def _plural(n: int) -> str:
    return f"{n} dimension{'' if n == 1 else 's'}"


def _argument_names(op: str) -> list[str]:
    from torchtpu.program.signature import overload

    name, _, variant = op.partition(".")
    try:
        return [argument.name for argument in overload(name, variant)._schema.arguments]
    except (AttributeError, RuntimeError):
        return []


def _operand_names(operation: Mapping[str, Any]) -> dict[int, str]:
    """The schema's name for each operand's position; members of a list are name[i]."""
    found: dict[int, str] = {}
    for name, item in zip(_argument_names(operation["op"]), operation["arguments"], strict=False):
        members = item if item and isinstance(item[0], list) else [item]
        for i, member in enumerate(members):
            if member and member[0] == "t":
                found[member[1]] = f"{name}[{i}]" if members is item else name
    return found


def _value(item: Any) -> str:
    if isinstance(item, dict):
        ((kind, value),) = item.items()
        if kind == "float":
            return repr(float.fromhex(value))
        return f"torch.{value}" if kind == "dtype" else str(value)
    if isinstance(item, list):
        return "[" + ", ".join(_value(x) for x in item) + "]"
    return repr(item)


def _template(item: Any) -> str:
    if not item:
        return "[]"
    if isinstance(item[0], list):
        return "[" + ", ".join(_template(x) for x in item) + "]"
    tag = item[0]
    if tag == "t":
        return "a tensor"
    if tag == "n" or (tag == "h" and item[2]):  # PyTorch hands some Python numbers on as tensors
        return {"bool": "a bool", "int": "an int", "float": "a float", "complex": "a complex number"}[item[-1]]
    return f"a 0-d {item[1]['dtype']} tensor of the CPU" if tag == "h" else _value(item[1])


def _operands(old: Mapping[str, Any], new: Mapping[str, Any], at: tuple[Any, ...], where: str) -> Iterator[Difference]:
    names = _operand_names(new)
    if len(old["operands"]) != len(new["operands"]):
        yield Difference("argument", (*at, "operands"), f"{where}{len(old['operands'])} → {len(new['operands'])} operands")
        return
    for i, (a, b) in enumerate(zip(old["operands"], new["operands"], strict=True)):
        label = f"{where}operand {i + 1}" + (f" ({names[i]})" if i in names else "")
        slot_a, dtype_a, sizes_a, strides_a, offset_a, *lazy_a = a
        slot_b, dtype_b, sizes_b, strides_b, offset_b, *lazy_b = b
        if dtype_a != dtype_b:
            yield Difference("dtype", (*at, i, "dtype"), f"{label}: {dtype_a['dtype']} → {dtype_b['dtype']}")
        if len(sizes_a) != len(sizes_b):
            yield Difference("shape", (*at, i, "rank"), f"{label}: {_plural(len(sizes_a))} → {_plural(len(sizes_b))}")
            continue
        for d, (m, n) in enumerate(zip(sizes_a, sizes_b, strict=True)):
            if m != n:
                yield Difference("shape", (*at, i, d), f"{label}, dimension {d}: {m} → {n}")
        if strides_a != strides_b and sizes_a == sizes_b:
            yield Difference("view", (*at, i, "strides"), f"{label}: strides {tuple(strides_a)} → {tuple(strides_b)}")
        if offset_a != offset_b:
            yield Difference("view", (*at, i, "offset"), f"{label}: storage offset {offset_a} → {offset_b}")
        if lazy_a != lazy_b:
            yield Difference("view", (*at, i, "lazy"), f"{label}: lazily conjugated or negated, which it was not, or no longer")
        if slot_a != slot_b:
            yield Difference("view", (*at, i, "storage"), f"{label}: shares its storage with other operands than before")


def _operation(old: Mapping[str, Any], new: Mapping[str, Any], at: tuple[Any, ...], where: str) -> Iterator[Difference]:
    yield from _operands(old, new, at, where)
    names = _argument_names(new["op"])
    for i, (a, b) in enumerate(zip(old["arguments"], new["arguments"], strict=True)):
        if a != b:
            name = names[i] if i < len(names) else str(i)
            yield Difference("argument", (*at, "argument", i), f"{where}argument {name}: {_template(a)} → {_template(b)}")
    if old["default"] != new["default"]:
        text = f"{where}default dtype {old['default']['dtype']} → {new['default']['dtype']}"
        yield Difference("dtype", (*at, "default"), text)
    for name, kind in (("fresh", "shape"), ("writes", "view"), ("written", "argument"), ("needs", "alive")):
        if old[name] != new[name]:
            what = {"fresh": "results of other shapes or dtypes", "writes": "writes into a storage of another shape",
                    "written": "writes other arguments", "needs": "reads storages that it did not, or fewer"}[name]
            yield Difference(kind, (*at, name), f"{where}{what}")


def _results(description: Description) -> list[tuple[int, str]]:
    """For each result of the program's operations: the node that makes it, and the operator."""
    found = []
    for n, node in enumerate(description["nodes"]):
        operation = description["operations"][node[0]]
        count = len(operation["writes"]) + sum(f is not None for f in operation["fresh"])
        found += [(n, operation["op"])] * count
    return found


def _same_operators(old: Description, new: Description) -> Iterator[Difference]:
    single = len(new["nodes"]) == 1
    seen: set[tuple[int, int]] = set()
    for n, (a, b) in enumerate(zip(old["nodes"], new["nodes"], strict=True)):
        one, other = old["operations"][a[0]], new["operations"][b[0]]
        where = "" if single else f"operation {n + 1} ({other['op']}): "
        if (a[0], b[0]) not in seen and one != other:
            seen.add((a[0], b[0]))
            yield from _operation(one, other, (n,), where)
        if a[1:] != b[1:]:
            yield Difference("operations", (n, "wiring"), f"{where}takes its operands from other operations or inputs")
    for i, (x, y) in enumerate(zip(old["inputs"], new["inputs"], strict=False)):
        if x != y:
            text = f"input {i + 1}: storage {x[0]}{x[1]} → {y[0]}{y[1]}"
            yield Difference("shape" if x[0] == y[0] else "dtype", ("input", i), text)
    if len(old["inputs"]) != len(new["inputs"]):
        yield Difference("operations", ("inputs",), f"{len(old['inputs'])} → {len(new['inputs'])} inputs")
    for (n, op), was, now in zip(_results(new), old["alive"], new["alive"], strict=False):
        if was != now:
            state = "is held by a tensor, which it was not" if now == "1" else "is no longer held by a tensor"
            yield Difference("alive", ("alive", n), f"the result of operation {n + 1} ({op}) {state}")
    for i in sorted(set(old["donated"]) ^ set(new["donated"])):
        state = "can be overwritten, which it could not" if i in new["donated"] else "is still in use, which it was not"
        yield Difference("donated", ("donated", i), f"input {i + 1} {state}")


def differences(old: Description, new: Description) -> list[Difference]:
    """What is different in `new`, the most telling first: the operators, then operation by operation."""
    a, b = structure(old), structure(new)
    if a == b:
        found = list(_same_operators(old, new))
        return found or ([] if old == new else [Difference("operations", ("wiring",), "wired differently")])
    import difflib

    found = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag in ("insert", "replace"):
            found += [Difference("operations", ("operations",), f"a new operation at position {n + 1}: {b[n]}") for n in range(k, m)]
        if tag in ("delete", "replace"):
            found += [Difference("operations", ("operations",), f"without operation {n + 1} of before: {a[n]}") for n in range(i, j)]
    return found


def environments(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """What is different about versions, device and options."""
    found = []
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            changed = [f"{k} {a.get(k)} → {b.get(k)}" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
            text = f"{name}: " + ", ".join(changed)
        else:
            text = f"{name} {a} → {b}"
        found.append(Difference("environment", ("environment", name), text))
    return found
