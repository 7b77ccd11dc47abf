import ml_dtypes
import numpy as np
import pytest

from torchtpu.runtime import client, transfer

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


def send(array):
    return transfer.from_host(array.ctypes.data, array.nbytes, str(array.dtype), array.shape, 0)


def receive(array):
    out = np.empty(array.shape, array.dtype)
    transfer.to_host(array, out.ctypes.data, out.nbytes)
    return out


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (300, 200)])
@pytest.mark.parametrize("name", DTYPES)
def test_round_trip_keeps_dtype_and_copies(name, shape):
    dtype = transfer.numpy_dtype(name)
    host = (np.arange(int(np.prod(shape)), dtype="int64") % 2).astype(dtype).reshape(shape)
    expected = host.copy()
    array = send(host)
    host[...] = np.ones((), dtype)
    assert array.dtype == dtype and array.shape == shape
    np.testing.assert_array_equal(receive(array).view(np.uint8 if shape else dtype), expected.view(np.uint8 if shape else dtype))


def test_fast_path_is_in_use():
    # Otherwise a jaxlib that has renamed something costs time at every transfer, and nobody sees why.
    assert transfer.batched_device_put is not None


@pytest.mark.parametrize("path", ["fast", "public"])
@pytest.mark.parametrize("misalignment", [0, 1, 4])
@pytest.mark.parametrize("nbytes", [4, 64, 4096, 1 << 20, 1 << 24])
def test_source_may_change_after_the_call(monkeypatch, nbytes, misalignment, path):
    if path == "public":
        monkeypatch.setattr(transfer, "batched_device_put", None)
    # XLA's CPU client would rather share memory that is aligned to 64 bytes than copy it.
    memory = np.empty(nbytes + 128, "uint8")
    start = -memory.ctypes.data % 64 + misalignment
    source = memory[start : start + nbytes]
    source[:] = 7
    array = transfer.from_host(source.ctypes.data, nbytes, "uint8", (nbytes,), 0)
    source[:] = 9
    got = receive(array)
    assert got.min() == got.max() == 7


def test_large_values_survive():
    host = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    np.testing.assert_array_equal(receive(send(host)), host)
    pi = np.array([np.pi], "float64")
    assert receive(send(pi))[0] == np.pi


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty(shape):
    array = send(np.empty(shape, "int64"))
    assert array.shape == shape and array.dtype == np.int64
    receive(array)


def test_public_path(monkeypatch):
    monkeypatch.setattr(transfer, "batched_device_put", None)
    host = np.arange(6, dtype="int64").reshape(2, 3)
    array = send(host)
    host[:] = 0
    assert array.dtype == np.int64
    np.testing.assert_array_equal(receive(array), np.arange(6).reshape(2, 3))


def test_sizes_must_agree():
    array = send(np.ones(4, "float32"))
    with pytest.raises(ValueError, match="16 bytes, its destination 8"):
        transfer.to_host(array, np.empty(2, "float32").ctypes.data, 8)
    with pytest.raises((ValueError, TypeError)):
        transfer.from_host(np.ones(1, "uint8").ctypes.data, 1, "float32", (4,), 0)
    with pytest.raises(TypeError):
        transfer.numpy_dtype("float3")


def test_scalar_vector_and_across():
    values = np.array([1.5, 2.5], "float64")
    array = transfer.scalar_vector(values, 0)
    values[:] = 0
    np.testing.assert_array_equal(receive(array), [1.5, 2.5])
    assert transfer.across(array, 0) is array
    assert array.devices() == {client.device(0)}


def test_reading_leaves_no_copy_behind():
    array = send(np.ones(4, ml_dtypes.bfloat16))
    receive(array)
    assert getattr(array, "_npy_value", None) is None
