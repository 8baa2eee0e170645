"""What is one turn of a solution."""

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
    found = [command.splitlines()[0] for command in measure.commands(SCRIPT) if command.strip()]
    assert found == FIRST_LINES
    assert measure.turns(SCRIPT) == 7


def test_a_script_that_breaks_off_is_counted_up_to_there() -> None:
    assert measure.turns("echo a\nif true; then\necho b\n") == 2


def test_of_a_long_script_every_line_is_a_turn() -> None:
    assert measure.turns("#!/bin/bash\n" + "echo a \\\n b\n" * 300) == 600


def test_the_number_of_a_step_is_a_word_and_no_part_of_one() -> None:
    assert measure.words("1:sort a uniquely to b\n2:delete c sparing d\n") == 11
