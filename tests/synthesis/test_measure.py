"""What is one turn of a solution."""

from hypothesis import given, settings
from hypothesis import strategies as st

from components.synthesis import measure

SCRIPT = """#!/bin/bash
# it's a comment
set -euo pipefail
cd /app || exit 1
mkdir -p out && cd out
echo one \\
  two

for name in a b; do
  echo "$name" \\
    >> list
done
python3 - <<'EOF'
print("for ever;")

EOF
if [ -f list ]
then sort list | \\
  uniq > sorted
fi
count() {
  wc -l < "$1"
}
echo 'two
lines'; echo x
"""
FIRST_LINES = [
    "#!/bin/bash", "# it's a comment", "set -euo pipefail", "cd /app || exit 1", "mkdir -p out && cd out",
    "echo one \\",
    "for name in a b; do", "python3 - <<'EOF'", "if [ -f list ]", "count() {", "echo 'two",
]  # fmt: skip


def test_a_turn_is_what_one_types_at_a_prompt() -> None:
    assert [command.splitlines()[0] for command in measure.commands(SCRIPT)] == FIRST_LINES
    assert measure.turns(SCRIPT) == 7


def test_a_script_that_breaks_off_is_counted_up_to_there() -> None:
    assert measure.turns("echo a\nif true; then\necho b\n") == 2


FRAGMENTS = [
    "echo",
    "x",
    "if",
    "then",
    "fi",
    "(",
    ")",
    "{",
    "}",
    "|",
    "&&",
    ";",
    "'",
    '"',
    "$(",
    "<<",
    "EOF",
    "for",
    "#",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map(" ".join))
@settings(max_examples=60, deadline=None)
def test_what_looks_complete_is_complete_to_bash(line: str) -> None:
    if measure._is_plain(line):
        unfinished = ("unexpected end of file", "unexpected EOF", "here-document")
        assert not any(sign in measure._read(line).stderr for sign in unfinished), line


def test_the_number_of_a_step_is_a_word_and_no_part_of_one() -> None:
    assert measure.words("1:sort a uniquely to b\n2:delete c sparing d\n") == 11
