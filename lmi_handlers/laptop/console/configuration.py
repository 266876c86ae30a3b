"""The configuration as `lmi check` knows it, as the console shows it. Secrets are redacted."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lmi_handlers.config.properties import Setting
from lmi_handlers.config.report import effect_of
from lmi_handlers.core.redaction import REDACTED, is_secret, redacted
from lmi_handlers.preflight.checks import warnings
from lmi_handlers.preflight.configuration import CUSTOM_CODE, Configuration


class SettingView(msgspec.Struct, frozen=True):
    """An option, its value as text, the source of the value, and who reads it."""

    key: str
    value: str
    source: str
    effect: str
    is_set: bool


class ConfigurationView(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one model. `reason` says why this backend was chosen."""

    model: str
    backend: str
    reason: str
    warnings: list[str]
    settings: list[SettingView]


def configuration_view(configuration: Configuration) -> ConfigurationView:
    """Return what `lmi check --all` prints."""
    return ConfigurationView(
        model=configuration.properties.name,
        backend="model.py" if configuration.backend is CUSTOM_CODE else configuration.selection.name,
        reason=redacted(configuration.selection.reason),
        warnings=[redacted(warning) for warning in warnings(configuration)],
        settings=[*_settings(configuration, is_set=True), *_settings(configuration, is_set=False)],
    )


def _settings(configuration: Configuration, *, is_set: bool) -> Iterator[SettingView]:
    loaded = configuration.loaded
    for setting in loaded.explicit if is_set else loaded.defaults:
        effect = effect_of(setting, configuration.backend, loaded.properties)
        yield SettingView(setting.key, _shown(setting), setting.source, effect, is_set)


def _shown(setting: Setting) -> str:
    return REDACTED if is_secret(setting.key, setting.text) else setting.text[:2000]
