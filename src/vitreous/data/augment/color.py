"""Colour operations on uint8 batches. As torchvision's, but each image has its own amount.

Shapes: images (B, C, H, W), C = 1 or 3 in RGB order; amounts float32 (B,) on the images' device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """Multiply by the amount: 0 is black, 1 changes nothing."""
    return _to_uint8((images * amount.view(-1, 1, 1, 1)).clamp(0, 255))


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with the image's mean luma: 0 is uniform grey, 1 changes nothing."""
    pixels = images.float()
    return _to_uint8(_blend(pixels, _mean_luma(pixels), amount))


def saturation(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with the greyscale image: 0 is greyscale, 1 changes nothing. One channel is returned unchanged."""
    pixels = images.float()
    return _to_uint8(_blend(pixels, _luma(pixels), amount))


def sharpness(images: Tensor, amount: Tensor) -> Tensor:
    """Blend with a 3 x 3 smoothed image: 0 is smooth, 1 changes nothing. Border pixels are unchanged."""
    H, W = images.shape[2:]
    if H <= 2 or W <= 2:
        return images
    pixels = images.float()
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).to(pixels.device, non_blocking=True)
    inner = F.conv2d(pixels.flatten(0, 1)[:, None], kernel[None, None]).unflatten(0, images.shape[:2])[:, :, 0]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = inner
    return _to_uint8(_blend(pixels, smooth, amount))


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest ``bits`` (1 to 8) of each pixel."""
    return images & (256 - torch.pow(2.0, 8 - bits.round())).to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels at or above the threshold (0 to 255)."""
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 255 - images, images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    from torchvision.transforms.v2.functional import autocontrast  # takes a second to import, and few runs need it

    return autocontrast(images)


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel."""
    from torchvision.transforms.v2.functional import equalize  # likewise

    return equalize(images)


def grayscale(images: Tensor) -> Tensor:
    """Return the luma in every channel."""
    return _to_uint8(_luma(images.float())).expand_as(images)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Apply a Gaussian blur with sigma in pixels, above 0; borders are reflected."""
    rows, columns = (_blur_matrix(sigma, size)[:, None] for size in images.shape[2:])
    return _to_uint8((rows @ images.float() @ columns.transpose(2, 3)).clamp(0, 255))


def jitter_(pixels: Tensor, factors: Tensor) -> Tensor:
    """Vary brightness, then contrast, then saturation of float32 pixels in [0, 255] in place, by ``factors`` (B, 3)."""
    brightness, contrast, saturation = factors.view(-1, 3, 1, 1, 1).unbind(1)
    pixels.mul_(brightness).clamp_(0, 255)
    level = _mean_luma(pixels) * (1 - contrast)
    pixels.mul_(contrast).add_(level).clamp_(0, 255)  # addcmul is slower with one factor per image
    return torch.lerp(_luma(pixels), pixels, saturation, out=pixels).clamp_(0, 255)


def _luma(pixels: Tensor) -> Tensor:
    """Return the ITU-R 601 luma (B, 1, H, W); one channel is its own luma."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _mean_luma(pixels: Tensor) -> Tensor:
    return _luma(pixels).mean((1, 2, 3), keepdim=True)


def _blend(pixels: Tensor, other: Tensor, amount: Tensor) -> Tensor:
    """Return ``amount * pixels + (1 - amount) * other``, clamped to [0, 255]; floats."""
    return torch.lerp(other, pixels, amount.view(-1, 1, 1, 1)).clamp(0, 255)


def _to_uint8(pixels: Tensor) -> Tensor:
    return pixels.round().to(torch.uint8)


def _blur_matrix(sigma: Tensor, size: int) -> Tensor:
    """Return Gaussian weights (B, size, size) with reflected borders; rows sum to 1."""
    position = torch.arange(size, device=sigma.device, dtype=sigma.dtype)
    distance = (position[:, None] - position[None, :])[None]
    total = position[:, None] + position[None, :]
    variance = 2 * sigma.view(-1, 1, 1).square()
    weight = torch.exp(-distance.square() / variance)
    # Reflection maps pixel -j to j and 2 (size - 1) - j to j; the border pixels have no mirror image.
    left = torch.exp(-total.square() / variance) * (position > 0)
    right = torch.exp(-(2 * (size - 1) - total).square() / variance) * (position < size - 1)
    return F.normalize(weight + left + right, p=1, dim=2)
