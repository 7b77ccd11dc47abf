"""Gives the native core its Python callbacks. Light: JAX and the lowerings are imported at the first operation."""

from __future__ import annotations

from typing import Any

_installed = False

# Operators whose in-place form never looks at what it overwrites.
_UNREAD = frozenset({
    "zero", "fill", "copy", "normal", "uniform", "random", "exponential", "geometric", "log_normal", "cauchy", "bernoulli",
})


def _describe_operator(name: str, overload: str) -> dict[str, Any]:
    from torchtpu.lowering import graph, registry
    from torchtpu.program.signature import overload as find_overload
    from torchtpu.runtime import client

    op = find_overload(name, overload)
    entry = registry.find(op)
    if entry is not None and entry.platforms is not None and client.platform() not in entry.platforms:
        entry = None
    lowered = entry is not None or graph.decomposition(op) is not None
    base = registry.functional_name(op).split(".")[0]
    in_place = name.split("::")[1] == base + "_"
    return {
        "lowered": lowered,
        "static": entry.static if entry else frozenset(),
        "all_static": entry is None,
        "written": registry.written_arguments(op, entry),
        "unread": frozenset({"self"}) if in_place and base in _UNREAD else frozenset(),
    }


def _infer_outputs(told: dict[str, Any]) -> list[Any] | None:
    from torchtpu.program.signature import infer_outputs

    return infer_outputs(told)


def _make_signature(told: dict[str, Any]) -> Any:
    from torchtpu.lowering.validate import validate
    from torchtpu.program.signature import Signature

    signature = Signature(told)
    validate(signature)
    return signature


def _build(window: dict[str, Any], wait: bool) -> Any:
    from torchtpu.program.compiler import build

    return build(window, wait)


def _build_parts(windows: list[dict[str, Any]]) -> list[Any]:
    from torchtpu.program.compiler import build_parts

    return build_parts(windows)


def _improve(program: Any) -> None:
    from torchtpu.program.compiler import improve

    improve(program)


def _verify(flags: list[Any]) -> None:
    from torchtpu.eager.errors import verify

    verify(flags)


def _explain_failure(error: Any, signature: Any) -> Any:
    from torchtpu.eager.errors import explain_failure

    return explain_failure(error, signature)


def _explain_call(kind: str, text: str, told: dict[str, Any]) -> BaseException:
    from torchtpu.eager.errors import explain_call

    return explain_call(kind, text, told)


def _nan_check(results: Any, signature: Any) -> None:
    from torchtpu.eager.errors import nan_check

    nan_check(results, signature)


def _fallback(name: str) -> None:
    from torchtpu.program.stats import note_fallback

    note_fallback(name)


def _from_host(address: int, nbytes: int, dtype: str, shape: tuple[int, ...], device_index: int) -> Any:
    # The core goes straight to the transfer function from now on.
    from torchtpu import _C
    from torchtpu.runtime import transfer

    _C._install({"from_host": transfer.from_host, "to_host": transfer.to_host, "across": transfer.across})
    return transfer.from_host(address, nbytes, dtype, shape, device_index)


def _to_host(array: Any, address: int, nbytes: int) -> None:
    from torchtpu.runtime import transfer

    transfer.to_host(array, address, nbytes)


def _across(array: Any, device_index: int) -> Any:
    from torchtpu.runtime import transfer

    return transfer.across(array, device_index)


def install() -> None:
    """Connects the native core with the Python packages and applies the settings of the environment. Idempotent.

    Raises ValueError, after all is connected, when a setting is not valid.
    """
    global _installed
    if _installed:
        return
    _installed = True
    from torchtpu import _C, config
    from torchtpu.eager import errors, host_operators, modes, shutdown

    _C._install({
        "describe_operator": _describe_operator,
        "infer_outputs": _infer_outputs,
        "make_signature": _make_signature,
        "build": _build,
        "build_parts": _build_parts,
        "improve": _improve,
        "verify": _verify,
        "explain_failure": _explain_failure,
        "explain_call": _explain_call,
        "fallback": _fallback,
        "from_host": _from_host,
        "to_host": _to_host,
        "across": _across,
        "user_line": errors.user_line,
        "nan_check": _nan_check,
    })
    host_operators.register()
    shutdown.register()
    config.check()
    _C._set_policy(
        config.get("TORCHTPU_MAX_WINDOW"),
        config.get("TORCHTPU_MAX_WINDOW_BYTES"),
        config.get("TORCHTPU_MAX_PROGRAMS"),
        2,
        config.get("TORCHTPU_FUSED_COMPILE") == "background",
        config.get("TORCHTPU_NAN_CHECK"),
    )
    limit = config.get("TORCHTPU_MEMORY_LIMIT")
    if limit:
        _C._set_memory_limit(limit)
    modes.set_eager_mode(config.get("TORCHTPU_EAGER_MODE"))
