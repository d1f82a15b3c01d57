from tests.peers import peer


def test_gradients_are_timed(bench):
    peer("onnx_ad")
    peer("onnxruntime")
    arguments = ["--json", "--batch", "2", "--width", "0.1", "--threads", "1", "--rounds", "1"]
    result = bench("onnx_gradient.py", *arguments)
    assert result["ms"].keys() == {"forward", "graphgrad", "by_hand", "onnx_ad"}
    assert all(value > 0 for value in result["ms"].values()) and result["distance"] < 1e-3
