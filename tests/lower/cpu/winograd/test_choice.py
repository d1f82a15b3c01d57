"""Which layers are filtered, with which tiles: what measurements have shown."""

from dataclasses import replace

import pytest

from graphgrad.lower.cpu.tuning import ZEN5, Processor, WinogradCosts
from graphgrad.lower.cpu.winograd.choice import choose_convolution, choose_weight_gradient
from graphgrad.lower.cpu.winograd.forward import Convolution
from graphgrad.lower.cpu.winograd.transforms import Images
from graphgrad.lower.cpu.winograd.weight import WeightGradient

UNIT = Processor(vector_bytes=64, registers=32)


def convolution(count, size, channels, filters=None, unit=UNIT):
    images = Images(None, 1, 1, count, size, size, channels)
    conv = Convolution(images, size, size, filters or channels, False, None, None)
    return choose_convolution(conv, unit)


def weight_gradient(count, size, channels, filters=None):
    data = Images(None, 1, 1, count, size, size, channels)
    cotangent = Images(None, 0, 0, count, size, size, filters or channels)
    return choose_weight_gradient(WeightGradient(data, cotangent, True, None), UNIT)


CHOOSE = [convolution, weight_gradient]


@pytest.mark.parametrize(
    "layer",
    [(8, 56, 64), (8, 28, 128), (8, 14, 256), (8, 7, 512), (32, 4, 512), (1, 224, 64)],
    ids=str,
)
@pytest.mark.parametrize("choose", CHOOSE)
def test_common_layers_take_large_tiles(choose, layer):
    assert choose(*layer).filtering.products == 6


@pytest.mark.parametrize("choose", CHOOSE)
def test_small_images_take_small_tiles(choose):
    assert choose(64, 2, 256).filtering.products == 4


@pytest.mark.parametrize("choose", CHOOSE)
def test_one_image_of_many_channels_is_computed_directly(choose):
    assert choose(1, 4, 512) is None


@pytest.mark.parametrize("choose", CHOOSE)
def test_nothing_to_compute(choose):
    assert choose(0, 8, 64) is None


@pytest.mark.parametrize("choose", CHOOSE)
@pytest.mark.parametrize("channels", [(8, 64), (64, 8), (72, 64), (64, 72)], ids=str)
def test_channels_are_whole_vectors(choose, channels):
    assert choose(8, 28, *channels) is None


@pytest.mark.parametrize("layer", [(7, 30, 48), (1, 100, 64), (8, 28, 128), (9, 8, 512)], ids=str)
@pytest.mark.parametrize("choose", CHOOSE)
def test_blocks_are_whole(choose, layer):
    count, size, channels = layer
    blocks = choose(*layer).blocks
    if blocks.images:
        assert count % blocks.images == 0
        assert -(-size // 4) % blocks.rows == 0
        assert blocks.images == 1 or blocks.rows == -(-size // 4)
    else:
        assert channels % blocks.depth == 0


def test_a_block_for_each_of_many_threads():
    blocks = convolution(8, 8, 32).blocks
    assert 8 // blocks.images * (2 // blocks.rows) >= 8


def tiles_in_block(blocks, size):
    return blocks.images * blocks.rows * -(-size // 4)


def test_weights_that_are_read_for_each_block_have_larger_blocks():
    larger = replace(UNIT, winograd=WinogradCosts(streamed_block_bytes=5 << 17))
    for layer, gains in (((32, 8, 256), True), ((8, 14, 256), True), ((32, 32, 64), False)):
        counts = [
            tiles_in_block(convolution(*layer, unit=unit).blocks, layer[1])
            for unit in (UNIT, larger)
        ]
        assert (counts[1] > counts[0]) == gains


def test_few_data_are_read_again_for_each_panel_of_many_weights():
    assert convolution(4, 14, 256, unit=ZEN5).blocks.depth == 128
    assert convolution(8, 14, 256, unit=ZEN5).blocks.images
    assert convolution(1, 28, 64, unit=ZEN5).blocks.images  # few weights as well
    assert convolution(4, 14, 256).blocks.images
