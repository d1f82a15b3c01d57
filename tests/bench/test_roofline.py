import pytest
from roofline import contractions, least_milliseconds

from graphgrad.models import mlp, resnet18, transformer_encoder


def multiplications(proto):
    return sum(each.multiplications for each in contractions(proto))


def test_multiplications_are_the_published_ones():
    """Of a ResNet-18 for images of 224×224: 1.8 thousand millions."""
    assert multiplications(resnet18(batch=1)) == 1_814_073_344
    assert multiplications(resnet18(batch=3)) == 3 * 1_814_073_344


def test_a_layer_that_takes_the_input_has_no_gradient_of_it():
    first, second = contractions(mlp((8, 6, 4), batch=3))
    assert first.operations == 2 * 2 * 3 * 8 * 6 and second.operations == 3 * 2 * 3 * 6 * 4
    assert first.bytes == 2 * 4 * (3 * 8 + 8 * 6 + 3 * 6)
    assert second.bytes == 3 * 4 * (3 * 6 + 6 * 4 + 3 * 4)


def test_scores_of_attention_are_no_bytes():
    sizes = {"layers": 1, "width": 8, "heads": 2, "feed_forward": 16, "sequence": 12}
    products = [
        each for each in contractions(transformer_encoder(**sizes, batch=3)) if not each.of_weight
    ]
    assert [each.multiplications for each in products] == [3 * 2 * 12 * 12 * 4] * 2
    assert [each.bytes for each in products] == [3 * 4 * 2 * (3 * 12 * 8)] * 2


def test_the_least_time_is_that_of_operations_and_of_bytes():
    proto = mlp((8, 4), batch=3)  # 192 multiplications
    parameters = 8 * 4 + 4
    milliseconds = least_milliseconds(proto, {"gflops": 1e-6, "gb_per_s": 1e-6})
    moved = 2 * 4 * (3 * 8 + 8 * 4 + 3 * 4) + 5 * 4 * parameters
    assert milliseconds == pytest.approx(2 * 2 * 96 + moved)
