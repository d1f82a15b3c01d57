import numpy as np
import onnx
import pytest
import zoo
from zoo_weights import random_weights


class Quadratic:
    """Σ a·x² of each value, with its derivatives."""

    size = 1.0

    def __init__(self, point, factors):
        self.point, self.factors = point, factors

    def __call__(self, moved):
        values = {**self.point, **moved}
        return sum(float(np.sum(a * values[name] ** 2)) for name, a in self.factors.items())

    def gradients(self):
        return {name: 2 * a * self.point[name] for name, a in self.factors.items()}


@pytest.fixture
def quadratic():
    generator = np.random.default_rng(0)
    point = {f"w{index}": generator.standard_normal((2, 3)) for index in range(20)}
    factors = {name: 10.0 ** (-index % 3) for index, name in enumerate(point)}
    return Quadratic(point, {**factors, "w19": 0.0})


def test_right_gradients_agree(quadratic):
    report = zoo.Report("net")
    zoo.compare(quadratic, quadratic.point, quadratic.gradients(), report)
    assert report.zero == 1 and report.groups >= 3
    assert report.error < 1e-5


@pytest.mark.parametrize(
    "name, wrong",
    [("w0", lambda g: 0 * g), ("w19", lambda g: g + 1e-3), ("w1", lambda g: 1.01 * g)],
    ids=["silently zero", "not zero", "too large"],
)
def test_a_wrong_gradient_is_found(quadratic, name, wrong):
    gradients = quadratic.gradients()
    gradients[name] = wrong(gradients[name])
    with pytest.raises(zoo.Disagreement, match="differences give"):
        zoo.compare(quadratic, quadratic.point, gradients, zoo.Report("net"))


def test_nan_is_no_gradient(quadratic):
    gradients = {**quadratic.gradients(), "w3": np.full((2, 3), np.nan)}
    with pytest.raises(zoo.Disagreement, match="w3 is not finite"):
        zoo.compare(quadratic, quadratic.point, gradients, zoo.Report("net"))


def test_what_rounding_hides_is_not_checked(quadratic):
    quadratic.size = 1e9
    with pytest.raises(zoo.Disagreement, match="too flat"):
        zoo.compare(quadratic, quadratic.point, quadratic.gradients(), zoo.Report("net"))


def test_groups_hold_values_of_like_weight():
    weights = {"a": 0.0, "b": 0.0, "c": 1.0, "d": 9.0, "e": 11.0, "f": 200.0}
    assert list(zoo.groups(weights)) == [["a"], ["b"], ["c", "d"], ["e"], ["f"]]


def test_weights_follow_their_slots():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 9]>
        net (float[1, 3, 4, 4] x) => (float[1, 64, 4, 4] y) <int64[4] shape = {64, 3, 3, 3}>
        {
            w = ConstantOfShape(shape)
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            y = BatchNormalization(c, scale, shift, mean, variance)
        }"""
    )
    for name in ("scale", "shift", "mean", "variance", "unread"):
        tensor = onnx.numpy_helper.from_array(np.ones(64, "float32"), name)
        model.graph.initializer.append(tensor)
    weights = random_weights(model.graph, 0)
    assert set(weights) == {"w", "scale", "shift", "mean", "variance"}
    assert weights["w"].shape == (64, 3, 3, 3)
    assert weights["w"].std() == pytest.approx((2 / 27) ** 0.5, rel=0.1)
    assert weights["variance"].min() > 0
    assert weights["scale"].mean() == pytest.approx(1, abs=0.1)
    assert abs(weights["shift"]).max() < 0.5
