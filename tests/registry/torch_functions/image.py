"""What the ops of registry/image.py are in torch."""

from tests.registry.torch_functions.layout import to_layout

COORDINATES = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def resize(rank):
        canonical = {2: "NCHW", 3: "NCDHW"}[rank]

        def function(
            x,
            size,
            method="linear",
            layout=canonical,
            coordinate_transformation_mode="half_pixel",
            cubic_exclude=0,
            cubic_alpha=-0.75,
            rounding_method="round",
            **_,
        ):
            mode = _interpolation(rank, method, coordinate_transformation_mode, rounding_method)
            if mode is None or cubic_exclude or cubic_alpha != -0.75:
                return None
            align = (
                {}
                if "nearest" in mode
                else {"align_corners": COORDINATES[coordinate_transformation_mode]}
            )
            if coordinate_transformation_mode == "pytorch_half_pixel" and 1 in size:
                return None  # torch's own half_pixel has no exception for one output
            y = nn.interpolate(to_layout(x, layout, canonical), tuple(size), mode=mode, **align)
            return to_layout(y, canonical, layout)

        return function

    def grid_sample(x, grid, method="bilinear", padding_mode="zeros", align_corners=False, **_):
        points_first = grid.movedim(1, -1)
        return nn.grid_sample(x, points_first, method, padding_mode, align_corners)

    def affine_grid(theta, size, align_corners=True):
        if align_corners and 1 in size:
            return None  # torch warns of it
        grid = nn.affine_grid(theta, [theta.shape[0], 1, *size], align_corners)
        return grid.movedim(-1, 1)

    return {
        "relax.image.affine_grid": affine_grid,
        "relax.image.grid_sample": grid_sample,
        "relax.image.resize2d": resize(2),
        "relax.image.resize3d": resize(3),
    }


def _interpolation(rank, method, coordinates, rounding):
    """Return torch's name of an interpolation, or None."""
    if method == "nearest_neighbor":
        # torch's nearest rounds the asymmetric coordinate down; nearest-exact the half-pixel one.
        if coordinates == "asymmetric" and rounding in ("", "floor"):
            return "nearest"
        exact = coordinates == "half_pixel" and rounding == "round_prefer_ceil"
        return "nearest-exact" if exact else None
    if coordinates not in COORDINATES:
        return None
    if method == "linear":
        return {2: "bilinear", 3: "trilinear"}[rank]
    return "bicubic" if rank == 2 else None
