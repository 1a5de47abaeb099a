from tasks.contracts.evaluation import FewRows, few_rows


def test_a_span_is_compared_with_the_median_of_the_eight_before_it() -> None:
    weeks = {f"2026-W{20 + n}": rows for n, rows in enumerate([1200, 1250, 41, 1190, 1210, 470, 400, 5000, 1200, 60])}
    assert few_rows(weeks, 0.6) == [
        FewRows(span="2026-W22", rows=41, usual=1225.0),
        FewRows(span="2026-W25", rows=470, usual=1200.0),
        FewRows(span="2026-W26", rows=400, usual=1195.0),
        FewRows(span="2026-W29", rows=60, usual=1195.0),
    ]
    assert few_rows(weeks, None) == []
    assert few_rows({"a": 100, "b": 1}, 0.6) == [], "one span before is no habit"
