"""Corruptions and shifts of test images, to measure the robustness of a classifier.

The 15 corruptions of ImageNet-C, each at severities 1 to 5 (Hendrycks and Dietterich 2019, arXiv 1903.12261), and
shifts along one parameter, such as an angle. In reading order:

- apply.py: :func:`corrupt` and :func:`shift`, the entry points, which check their input and seed the random numbers.
- levels.py: the parameters of a severity, and which of the two published tables an image size uses.
- noise.py, blur.py, weather.py and digital.py: the four groups of the paper.
- shifts.py: scale, rotation, brightness and permuted patches.
- sampling.py and crystals.py: what these share, and the texture of frost.

To add a corruption, write one function (see apply.py for its signature) and add one line to :data:`CORRUPTIONS`.
"""

__all__ = ["CORRUPTIONS", "SHIFTS"]

CORRUPTIONS = {
    "gaussian_noise": "vitreous.data.corruptions.noise:gaussian_noise",
    "shot_noise": "vitreous.data.corruptions.noise:shot_noise",
    "impulse_noise": "vitreous.data.corruptions.noise:impulse_noise",
    "defocus_blur": "vitreous.data.corruptions.blur:defocus_blur",
    "glass_blur": "vitreous.data.corruptions.blur:glass_blur",
    "motion_blur": "vitreous.data.corruptions.blur:motion_blur",
    "zoom_blur": "vitreous.data.corruptions.blur:zoom_blur",
    "snow": "vitreous.data.corruptions.weather:snow",
    "frost": "vitreous.data.corruptions.weather:frost",
    "fog": "vitreous.data.corruptions.weather:fog",
    "brightness": "vitreous.data.corruptions.weather:brightness",
    "contrast": "vitreous.data.corruptions.digital:contrast",
    "elastic_transform": "vitreous.data.corruptions.digital:elastic_transform",
    "pixelate": "vitreous.data.corruptions.digital:pixelate",
    "jpeg_compression": "vitreous.data.corruptions.digital:jpeg_compression",
}
"""Names of the corruptions, in the order of the paper. Import paths, so that listing the names loads no numpy."""

SHIFTS = {
    "scale": "vitreous.data.corruptions.shifts:scale",
    "rotation": "vitreous.data.corruptions.shifts:rotation",
    "brightness": "vitreous.data.corruptions.shifts:brightness",
    "patch_shuffle": "vitreous.data.corruptions.shifts:patch_shuffle",
    "patch_shuffle_fraction": "vitreous.data.corruptions.shifts:patch_shuffle_fraction",
}
"""Names of the shifts. The docstring of each function gives its parameter, with the unit and the range."""
