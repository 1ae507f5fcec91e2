"""What docs/real_models.md says of the example's defaults is what the example has."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_options_it_names():
    page = (ROOT / "docs" / "real_models.md").read_text()
    tree = ast.parse((ROOT / "examples" / "smollm2.py").read_text())
    options = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    defaults = {
        node.target.id: ast.unparse(node.value)
        for node in options.body
        if isinstance(node, ast.AnnAssign)
    }
    assert float(defaults["learning_rate"]) == 5e-6
    assert "learning rate of 5e-6" in page
    assert f"{defaults['prompts']} prompts with {defaults['group_size']}\n   completions" in page
    assert f"on {defaults['held_out']} problems" in page
    assert defaults["model"] == "Path('runs/smollm2/model')"
    assert "`runs/smollm2/model`" in page
