import pytest

from torchtpu import config


def test_defaults(monkeypatch):
    for name in config.SETTINGS:
        monkeypatch.delenv(name, raising=False)
        assert config.get(name) == config.SETTINGS[name].default
    config.check()
    monkeypatch.setenv("TORCHTPU_EAGER_MODE", "")
    assert config.get("TORCHTPU_EAGER_MODE") == "fused"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("TORCHTPU_EAGER_MODE", "Fused", "fused"),
        ("TORCHTPU_CPU_DEVICES", "4", 4),
        ("TORCHTPU_MEMORY_LIMIT", "1000", 1000),
        ("TORCHTPU_MEMORY_LIMIT", "1GiB", 2**30),
        ("TORCHTPU_MEMORY_LIMIT", "1.5 MiB", 3 * 2**19),
        ("TORCHTPU_MEMORY_LIMIT", "2gb", 2 * 10**9),
        ("TORCHTPU_MEMORY_LIMIT", "0", 0),
        ("TORCHTPU_NAN_CHECK", "1", True),
        ("TORCHTPU_NAN_CHECK", "off", False),
    ],
)
def test_values(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert config.get(name) == value
    assert isinstance(config.get(name), config.SETTINGS[name].type)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("TORCHTPU_EAGER_MODE", "lazy", "debug, strict, fused"),
        ("TORCHTPU_PLATFORM", "gpu", "tpu, cuda, cpu"),
        ("TORCHTPU_CPU_DEVICES", "0", "1 or more"),
        ("TORCHTPU_CPU_DEVICES", "many", "1 or more"),
        ("TORCHTPU_MEMORY_LIMIT", "1 parsec", "number of bytes"),
        ("TORCHTPU_MEMORY_LIMIT", "-1", "number of bytes"),
        ("TORCHTPU_MEMORY_LIMIT", "0.5", "number of bytes"),
        ("TORCHTPU_FALLBACK", "never", "warn, error, silent"),
        ("TORCHTPU_NAN_CHECK", "2", "0 or 1"),
        ("TORCHTPU_MAX_WINDOW", "0", "1 or more"),
        ("TORCHTPU_FUSED_COMPILE", "async", "background, sync"),
    ],
)
def test_bad_values_name_the_variable_and_what_is_allowed(monkeypatch, name, text, allowed):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=name) as raised:
        config.get(name)
    assert allowed in str(raised.value)
    assert repr(text) in str(raised.value)
    with pytest.raises(ValueError, match=name):
        config.check()


def test_every_setting_is_described():
    text = config.describe()
    assert all(name in text for name in config.SETTINGS)
    with pytest.raises(KeyError):
        config.get("TORCHTPU_NO_SUCH_THING")


def test_bad_value_in_a_process(run_python):
    error = run_python(
        "import torch, torchtpu; torch.ones(1, device='tpu')", fails=True, TORCHTPU_CPU_DEVICES="none"
    )
    assert "ValueError: TORCHTPU_CPU_DEVICES='none' is not valid: expected a whole number, 1 or more" in error
