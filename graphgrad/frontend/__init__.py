"""Import of models, ONNX files and Relax modules, and export to ONNX.

Start with `onnx_import` and `model`; `onnx_importer` translates node by node, with `converters`.
"""
