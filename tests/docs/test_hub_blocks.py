"""Hub configuration blocks in the documentation: valid as written and with every option uncommented."""

import re
from pathlib import Path

import pytest

from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import load

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(re.findall(r"```toml\n(# hub\.toml.*?)```", page.read_text(), re.DOTALL))
]


def test_documentation_has_hub_blocks() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_documented_hub_block_is_valid(block: str, optional: bool, tmp_path: Path) -> None:
    if optional:
        block = re.sub(r"^#(?=\w+ = )", "", block, flags=re.MULTILINE)
        block = block.replace('"http://127', '"https://127')  # required with a token
    file = tmp_path / "hub.toml"
    file.write_text(block)
    assert load(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={}) != HubConfig()
