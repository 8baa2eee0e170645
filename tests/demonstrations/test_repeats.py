"""Documents that teach copying."""

from components.demonstrations import repeats
from components.demonstrations.tokenizer import SPECIALS


def test_a_repeat_says_its_first_half_again_and_learns_from_what_the_first_half_foretells() -> None:
    for sample in repeats(20, vocab_size=300, seed=3):
        half = len(sample.tokens) // 2
        assert sample.tokens[:half].tolist() == sample.tokens[half:].tolist()
        assert not sample.loss_mask[: half + 1].any()
        assert sample.loss_mask[half + 1 :].all()
        assert len(SPECIALS) <= sample.tokens.min()
        assert sample.tokens.max() < 300


def test_repeats_are_a_function_of_their_seed() -> None:
    first, again, other = (repeats(3, vocab_size=768, seed=seed) for seed in (1, 1, 2))
    assert [s.tokens.tolist() for s in first] == [s.tokens.tolist() for s in again]
    assert [s.tokens.tolist() for s in first] != [s.tokens.tolist() for s in other]
