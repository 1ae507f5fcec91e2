"""A docstring, part by part."""

from zootomy.registry import describe, names, read_documentation, slots


def example():
    """Says it in a line.

    The first paragraph,
    on two lines.

        y = x + a

        z = y²

    The second.

        this is shown, but no formula

    Args:
        x: `[N]` what goes in,
            more of it.
        a, b: two of a kind.

    Returns:
        What comes
        out.

    Raises:
        ValueError: at times.

    Source: a paper, arXiv:1,
        section 2.

    >>> example()
    """


def test_every_part():
    found = read_documentation(example)
    assert found.summary == "Says it in a line."
    assert found.remarks == "The first paragraph, on two lines.\nThe second."
    assert found.formula == "y = x + a\n\nz = y²"
    assert found.arguments == {
        "x": "`[N]` what goes in, more of it.",
        "a": "two of a kind.",
        "b": "two of a kind.",
    }
    assert found.returns == "What comes out."
    assert found.source == "a paper, arXiv:1, section 2."


def test_nothing_said():
    def silent():
        pass

    found = read_documentation(silent)
    assert (found.summary, found.formula, found.remarks, found.returns) == ("", "", "", "")
    assert found.arguments == {}


def test_a_formula_with_nothing_beside_it():
    def short():
        """Says it in a line.

        y = x²
        """

    assert read_documentation(short).formula == "y = x²"

    def prose():
        """Says it in a line.

        And in another one.
        """

    assert read_documentation(prose).formula == ""
    assert read_documentation(prose).remarks == "And in another one."


def test_every_hyperparameter_says_what_it_means():
    for place in slots():
        for name in () if place.choices else names(place.name):
            for entry in describe(place.name, name).hyperparameters.values():
                assert entry.meaning, f"{place.name}.{name}: {entry.name}"
        for entry in place.parameters.values():
            assert entry.meaning, f"{place.name}: {entry.name}"


def test_every_block_says_what_it_returns_and_whence_it_comes():
    for place in slots():
        for name in () if place.choices else names(place.name):
            said = describe(place.name, name).documentation
            assert said.summary, f"{place.name}.{name}"
            assert said.formula, f"{place.name}.{name}"
            assert said.returns, f"{place.name}.{name}"
            assert said.source, f"{place.name}.{name}"
