"""Matrix of captures over their labels."""

from gpufleet.bench.factors import factor_matrix
from tests.support.benchmarks import loaded, measured

FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)


def test_captures_of_the_same_factors_are_pooled() -> None:
    matrix = factor_matrix(
        [
            loaded(measured(values=FIVE), file="a.json", labels={"hugepages": "on"}),
            loaded(measured(values=(7.0, 8.0)), file="b.json", labels={"hugepages": "on"}),
            loaded(measured(values=(9.0,)), file="c.json", labels={"hugepages": "off", "governor": "performance"}),
        ]
    )
    assert matrix.factors == ("machine", "governor", "hugepages")
    assert matrix.combinations == (
        ("node-1 (host_local_probe)", "performance", "off"),
        ("node-1 (host_local_probe)", "unset", "on"),
    )
    assert matrix.captures == (("c.json",), ("a.json", "b.json"))
    (row,) = matrix.measurements
    assert [cell.statistics and cell.statistics.count for cell in row.cells] == [1, 7]


def test_other_arguments_have_a_row_of_their_own() -> None:
    matrix = factor_matrix(
        [
            loaded(measured(values=FIVE), labels={"disk": "a"}),
            loaded(measured(values=FIVE, tool_version="3.36"), labels={"disk": "b"}),
        ]
    )
    assert [row.tool_version for row in matrix.measurements] == ["3.33", "3.36"]
    assert [[cell.statistics is None for cell in row.cells] for row in matrix.measurements] == [
        [False, True],
        [True, False],
    ]
    assert matrix.measurements[0].cells[1].detail


def test_measurement_that_a_capture_lacks_is_not_measured() -> None:
    matrix = factor_matrix(
        [loaded(measured("a", values=FIVE), labels={"x": "1"}), loaded(measured("b", values=FIVE), labels={"x": "2"})]
    )
    assert [[cell.detail for cell in row.cells] for row in matrix.measurements] == [
        ["", "not measured"],
        ["not measured", ""],
    ]


def test_empty_folder_has_an_empty_matrix() -> None:
    assert factor_matrix([]).measurements == ()
