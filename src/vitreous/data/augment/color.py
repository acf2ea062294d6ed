"""Colour operations on whole uint8 batches, each image with its own amount; as torchvision's, which take one for all.

Shapes: images (B, C, H, W) with C 1 or 3 in RGB order, amounts (B,) float32 on the images' device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

__all__ = [
    "autocontrast",
    "blur",
    "brightness",
    "contrast",
    "equalize",
    "grayscale",
    "jitter_",
    "posterize",
    "saturation",
    "sharpness",
    "solarize",
]


def _luma(pixels: Tensor) -> Tensor:
    """ITU-R 601 luma, (B, 1, H, W); a single channel is its own."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blend(pixels: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """``amount`` of the pixels and the rest of the other; below 0 and above 1 go beyond the two. Floats in 0..255."""
    return torch.lerp(other, pixels, amount.view(-1, 1, 1, 1)).clamp(0, 255)


def _mean_luma(pixels: Tensor) -> Tensor:
    return _luma(pixels).mean((1, 2, 3), keepdim=True)


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round().to(torch.uint8)


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """Multiply by the amount: 0 is black, 1 changes nothing."""
    return _bytes((images * amount.view(-1, 1, 1, 1)).clamp(0, 255))


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with the image's mean luma: 0 is flat grey, 1 changes nothing."""
    pixels = images.float()
    return _bytes(_blend(pixels, _mean_luma(pixels), amount))


def saturation(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with the grey image: 0 is grey, 1 changes nothing. One channel stays as it is."""
    pixels = images.float()
    return _bytes(_blend(pixels, _luma(pixels), amount))


def sharpness(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with a 3 x 3 smoothed image: 0 is smooth, 1 changes nothing. The outermost pixels stay."""
    H, W = images.shape[2:]
    if H <= 2 or W <= 2:
        return images
    pixels = images.float()
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).to(pixels.device, non_blocking=True)
    inner = F.conv2d(pixels.flatten(0, 1)[:, None], kernel[None, None]).unflatten(0, images.shape[:2])[:, :, 0]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = inner
    return _bytes(_blend(pixels, smooth, amount))


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest ``bits`` (1 to 8) of each pixel."""
    mask = 256 - torch.pow(2.0, 8 - bits.round())
    return images & mask.to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels at or above the threshold (0 to 255)."""
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 255 - images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    result: Tensor = tv.autocontrast(images)
    return result


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel."""
    result: Tensor = tv.equalize(images)
    return result


def grayscale(images: Tensor) -> Tensor:
    """Luma in every channel."""
    return _bytes(_luma(images.float())).expand_as(images)


def _blur_matrix(sigma: Tensor, size: int) -> Tensor:
    """(B, size, size) Gaussian weights, reflected at the borders; rows sum to 1."""
    at = torch.arange(size, device=sigma.device, dtype=sigma.dtype)
    apart = (at[:, None] - at[None, :])[None]
    variance = 2 * sigma.view(-1, 1, 1).square()
    weight = torch.exp(-apart.square() / variance)
    # Reflection folds pixel -j onto j and 2 (size - 1) - j onto j; the border pixels themselves have no second image.
    left = torch.exp(-(at[:, None] + at[None, :]).square() / variance) * (at > 0)
    right = torch.exp(-(2 * (size - 1) - at[:, None] - at[None, :]).square() / variance) * (at < size - 1)
    return F.normalize(weight + left + right, p=1, dim=2)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur, sigma in pixels above 0; borders reflected."""
    rows, columns = (_blur_matrix(sigma, size)[:, None] for size in images.shape[2:])
    return _bytes((rows @ images.float() @ columns.transpose(2, 3)).clamp(0, 255))


def jitter_(pixels: Tensor, amount: Tensor) -> Tensor:
    """Vary brightness, then contrast, then saturation, in place and without rounding.

    Args:
        pixels: float32 (B, C, H, W) in [0, 255], and so it stays.
        amount: (B, 3) the three factors, none below 0.
    """
    brightness, contrast, saturation = amount.view(-1, 3, 1, 1, 1).unbind(1)
    pixels.mul_(brightness).clamp_(0, 255)
    level = _mean_luma(pixels) * (1 - contrast)
    pixels.mul_(contrast).add_(level).clamp_(0, 255)  # addcmul with factors of one pixel takes three times as long
    return torch.lerp(_luma(pixels), pixels, saturation, out=pixels).clamp_(0, 255)
