import kernel_groups
import pytest
from kernel_cases import Case, Convolution


@pytest.mark.parametrize(
    "group, count",
    [("resnet18", 11), ("resnet18_32", 11), ("resnet50", 23), ("vgg16", 9), ("vgg16_32", 9)],
)
def test_distinct_convolutions_of_a_network(group, count):
    found = kernel_groups.cases([group])
    parts = [case.part for case in found]
    # of all but the first layer, the gradient of the data as well
    assert (parts.count("forward"), parts.count("weight"), parts.count("data")) == (
        count,
        count,
        count - 1,
    )


def test_the_first_layer_and_a_strided_one_are_as_the_papers_have_them():
    found = list(kernel_groups.cases(["resnet18"]))
    assert found[0] == Case(Convolution(8, 3, 224, 64, 7, 2, 3), "forward")
    assert Case(Convolution(8, 64, 56, 128, 1, 2, 0), "data") in found


def test_depthwise_layers_alone():
    found = kernel_groups.cases(["depthwise"])
    assert {(case.work.groups, case.work.kernel) for case in found} == {
        (channels, 3) for channels in (32, 96, 144, 192, 384, 576, 960)
    }


def test_a_case_of_several_groups_is_measured_once():
    found = kernel_groups.cases(["resnet18", "resnet50"])
    assert found[Case(Convolution(8, 64, 56, 64, 3, 1, 1), "forward")] == ["resnet18", "resnet50"]


def test_products():
    names = {case.work.name for case in kernel_groups.cases(["sgemm"])}
    assert {"64x64x64 NN", "513x513x513 TN", "4096x4096x4096 NT"} <= names and len(names) == 30
    assert {case.part for case in kernel_groups.cases(["derived"])} == {"data", "weight"}
