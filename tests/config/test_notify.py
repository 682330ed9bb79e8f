"""Receivers of findings: URLs, names, filters and labels."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import ConfigProblemsError, InvalidValueError, load, resolve
from gpufleet.config.named_files import check_named_files
from gpufleet.config.notify import AlertmanagerConfig, FindingReceiversConfig, WebhookConfig, receiver_address
from gpufleet.fleet.rules.table import RULES_BY_ID

SECRET = "/etc/gpufleet/webhook.secret"


def webhook(url: str = "https://tickets.example/x", *, name: str = "w", insecure: bool = False) -> WebhookConfig:
    return WebhookConfig(name=name, url=url, secret_file=SECRET, insecure=insecure)


def test_every_rule_can_be_selected() -> None:
    table = {"name": "w", "url": "https://x.example", "secret_file": SECRET}
    for rule in RULES_BY_ID:
        assert msgspec.convert(table | {"rules": [rule]}, WebhookConfig).rules == (rule,)
    for rule in ("gpu", "gpu.*", "gpu..lost", ".lost", "gpu.lost.", "GPU.lost", "gpu/lost", "a." + "b" * 100):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(table | {"rules": [rule]}, WebhookConfig)


@pytest.mark.parametrize(
    "url", ["https://u:SECRET@x", "https://u:SECRET/x@y", "http://x.example/SECRET", "https://x/SECRET a", "x/SECRET"]
)
def test_errors_do_not_contain_the_url(url: str) -> None:
    for make in (webhook, lambda one: AlertmanagerConfig(name="a", urls=(one,))):
        with pytest.raises(InvalidValueError) as caught:
            make(url)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_addresses_distinguish_paths_without_showing_them() -> None:
    urls = [
        "https://a.example/one",
        "https://a.example/two",
        "https://a.example",
        "http://a.example",
        "https://[::1]:9/",
    ]
    found = [receiver_address(one) for one in urls]
    assert len(set(found)) == len(urls)
    assert not any("one" in address or "two" in address or "/" in address for address in found)
    assert found[2:] == ["a.example:443", "a.example:80", "[::1]:9"]
    assert receiver_address("https://A.example:443/one/") == found[0]


@pytest.mark.parametrize("url", ["tickets:443", "https://", "https://u:p@x", "https://x#y", "http://tickets.example"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        webhook(url)
    assert caught.value.key == "url"
    with pytest.raises(InvalidValueError) as caught:
        AlertmanagerConfig(name="a", urls=("https://alerts.example", url))
    assert caught.value.key == "urls"


def test_plain_http_is_for_loopback_and_trusted_networks() -> None:
    for url in ("http://127.0.0.1:9093", "http://localhost:9093", "https://alerts.example"):
        assert webhook(url).url == url
        assert AlertmanagerConfig(name="a", urls=(url,)).urls == (url,)
    assert webhook("http://tickets.example", insecure=True).insecure


def test_labels_of_the_hub_are_refused() -> None:
    urls = ("https://alerts.example",)
    assert AlertmanagerConfig(name="a", urls=urls, labels=("site=lab",)).label_pairs == {"site": "lab"}
    for labels in (("severity=critical",), ("a.b=c",), ("site",)):
        with pytest.raises(InvalidValueError) as caught:
            AlertmanagerConfig(name="a", urls=urls, labels=labels)
        assert caught.value.key == "labels"


def test_addresses_and_names_are_unique() -> None:
    for other in ("https://alerts.example", "https://alerts.example/", "https://ALERTS.example:443"):
        with pytest.raises(InvalidValueError):
            AlertmanagerConfig(name="a", urls=("https://alerts.example", other))
    with pytest.raises(InvalidValueError) as caught:
        FindingReceiversConfig(webhook=(webhook(), webhook("https://other.example")))
    assert caught.value.key == "webhook"
    assert len(FindingReceiversConfig(webhook=(webhook(), webhook(name="v"))).webhook) == 2


def test_receivers_are_tables_of_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(
        '[[findings.webhook]]\nname = "w"\nurl = "https://x.example"\nsecret_file = "/s"\nrules = ["gpu.lost"]\n'
        '[[findings.alertmanager]]\nname = "a"\nurls = ["http://127.0.0.1:9093"]\n'
    )
    findings = load(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={}).findings
    assert [one.rules for one in findings.webhook] == [("gpu.lost",)]
    assert [one.urls for one in findings.alertmanager] == [("http://127.0.0.1:9093",)]
    file.write_text('[[findings.webhook]]\nname = "w"\nurl = "https://x.example"\n')
    with pytest.raises(ConfigProblemsError):  # without a secret
        load(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})


def test_secret_file_is_checked(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "hub.toml"
    file.write_text(f'[[findings.webhook]]\nname = "w"\nurl = "https://x.example"\nsecret_file = "{secret}"\n')
    resolved = resolve(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    for content, expected in ((None, 1), ("with space", 1), ("0123456789abcdef", 0)):
        if content is not None:
            secret.write_text(content)
        problems = check_named_files(resolved, daemon=False)
        assert [one.key for one in problems] == ["findings.webhook[0].secret_file"] * expected


@pytest.mark.parametrize("link", ["https://hub.example", "http://hub.example:8470/", "https://x.example/gpufleet/"])
def test_link_of_a_finding_is_its_page_on_the_hub(link: str) -> None:
    config = FindingReceiversConfig(link=link)
    assert config.finding_link("0a1b") == f"{link.rstrip('/')}/ui/#/findings/0a1b"
    assert FindingReceiversConfig().finding_link("0a1b") is None


@pytest.mark.parametrize("link", ["hub.example", "https://", "https://u:p@hub.example", "https://x/?a", "https://x/#/"])
def test_link_is_the_root_of_an_http_server(link: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        FindingReceiversConfig(link=link)
    assert caught.value.key == "link"
