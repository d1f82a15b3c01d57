"""Models come in here, ONNX files and Relax modules, and go out as ONNX.

Start with `onnx_import` and `model`; `onnx_importer` translates node by node, with `converters`.
"""
