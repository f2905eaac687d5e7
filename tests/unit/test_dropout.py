import pytest
import torch

from rayloom.models.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.9])
def test_a_share_p_is_dropped_and_the_rest_scaled_by_what_is_left(p):
    torch.manual_seed(1)
    found = Dropout(p)(torch.ones(1001, 257))
    assert (found == 0).float().mean() == pytest.approx(p, abs=0.004)  # 4 standard deviations
    assert found[found > 0].unique() == pytest.approx(1 / (1 - p), rel=2e-4)


def test_units_are_dropped_by_themselves():
    """No unit's fate tells that of its neighbours, though four share a random number."""
    torch.manual_seed(2)
    kept = (Dropout(0.5)(torch.ones(100_000, 4)) > 0).float()
    assert torch.corrcoef(kept.T).fill_diagonal_(0).abs().max() < 0.016  # 5 standard deviations


def test_gradients_are_those_of_the_kept_units():
    torch.manual_seed(3)
    inputs = torch.randn(7, 5, requires_grad=True)
    found = Dropout(0.3)(inputs)
    found.sum().backward()
    assert torch.equal(inputs.grad * inputs.detach(), found.detach())


def test_the_same_seed_drops_the_same_units():
    def draw():
        torch.manual_seed(4)
        return Dropout(0.4)(torch.ones(33, 3))

    assert torch.equal(draw(), draw())


@pytest.mark.parametrize(("p", "kept"), [(0.0, 1.0), (1.0, 0.0)])
def test_none_or_all_is_dropped(p, kept):
    assert torch.equal(Dropout(p)(torch.ones(5, 5)), torch.full((5, 5), kept))


def test_nothing_is_dropped_in_evaluation():
    inputs = torch.randn(4, 4)
    assert Dropout(0.5).eval()(inputs) is inputs
