"""Reports for people: coverage, progress, loss curves, tables, the graph of a model.

Start with `coverage`, or with `training` for the output of a training run. `graph` lists nodes,
`layers` places them, and `page` puts facts into an HTML page, which ``page.js`` shows.
"""
