"""Numbers as text: three digits, the right unit, and back again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.support.tables import text_table
from regard.support.text import format_count, format_size, parse_size


@given(st.integers(0, 10**14), st.booleans())
def test_a_size_reads_back_to_three_digits(size, binary):
    text = format_size(size, binary=binary)
    assert parse_size(text) == pytest.approx(size, rel=0.0051 if size >= 1000 else 0)
    number = text.split()[0]
    assert len(number.replace(".", "")) <= 4
    assert float(number) < 1024


@given(st.integers(0, 10**14))
def test_a_count_is_the_size_without_its_unit(count):
    assert format_count(count) == format_size(count).replace("B", "").rstrip()


@pytest.mark.parametrize("size", ["2 XB", "1.2.3 MB", ".", "-5", "", True, -1])
def test_what_is_no_size_is_refused_by_the_name_of_the_argument(size):
    with pytest.raises(ValueError, match=r"^budget must be a number of bytes or a size"):
        parse_size(size, "budget")


@given(st.lists(st.tuples(*[st.text("abc ", max_size=9).map(str.strip)] * 3), min_size=1, max_size=5))
def test_columns_start_at_the_same_place(rows):
    header = ("first", "second", "third")
    lines = text_table([header, *rows], right={1})
    widths = [len(part) for part in lines[1].split("  ")]
    for row, line in zip([header, *rows], [lines[0], *lines[2:]], strict=True):
        padded = line.ljust(len(lines[1]))
        begin = 0
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            assert padded[begin : begin + width] == (cell.rjust(width) if number == 1 else cell.ljust(width))
            begin += width + 2


def test_the_last_column_is_wrapped_to_the_width():
    lines = text_table([("id", "text"), ("a", "word " * 30)], width=40)
    assert max(map(len, lines)) <= 40
    assert [line[:4].strip() for line in lines[2:]] == ["a", *[""] * (len(lines) - 3)]
    assert " ".join(line[4:] for line in lines[2:]).split() == ["word"] * 30
